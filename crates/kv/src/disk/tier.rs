//! A folder of pages within a budget.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, io};

use ruvllm_kernels::ops::PageFormat;

use super::folder::Folder;
use super::page_file::{self, SavedPage};
use super::read_cost::ReadCost;
use super::writer::{Job, Writer};
use crate::prefix::PageHash;

/// What the tier has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    pub written: u64,
    pub read: u64,
    /// Pages that were there and not read, because computing them was faster.
    pub skipped: u64,
    /// Files removed to stay within the budget.
    pub removed: u64,
    /// Files that were not what they should be; they are removed.
    pub damaged: u64,
    pub pages: usize,
    /// Of files, with those that are still to be written.
    pub bytes: u64,
}

/// Saves pages to a folder and finds them again, also after a restart. Dropping it waits until all are saved.
#[derive(Debug)]
pub struct DiskTier {
    folder: Folder,
    writer: Writer,
    budget_bytes: u64,
    entries: HashMap<PageHash, Entry>,
    /// From the one that was not used for longest.
    by_use: BTreeMap<u64, PageHash>,
    clock: u64,
    read_cost: ReadCost,
    stats: DiskStats,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    bytes: u64,
    used: u64,
}

impl DiskTier {
    /// Opens the folder, which is made if it is not there, and looks at what is in it. Pages that are still to be written
    /// take up to `queue_bytes_max` bytes of memory.
    pub fn open(path: &Path, budget_bytes: u64, queue_bytes_max: usize) -> io::Result<Self> {
        let mut tier = Self::stopped(path, budget_bytes, queue_bytes_max)?;
        tier.writer.start(tier.folder.clone())?;
        Ok(tier)
    }

    /// The same without the thread that changes files.
    pub(super) fn stopped(path: &Path, budget_bytes: u64, queue_bytes_max: usize) -> io::Result<Self> {
        let mut tier = Self {
            folder: Folder::open(path)?,
            writer: Writer::new(queue_bytes_max),
            budget_bytes,
            entries: HashMap::new(),
            by_use: BTreeMap::new(),
            clock: 0,
            read_cost: ReadCost::default(),
            stats: DiskStats::default(),
        };
        let mut found = tier.folder.pages()?;
        found.sort_unstable();
        found.iter().for_each(|page| tier.add(page.hash, page.bytes));
        tier.shrink(0);
        Ok(tier)
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn contains(&self, hash: PageHash) -> bool {
        self.entries.contains_key(&hash)
    }

    pub fn stats(&self) -> DiskStats {
        DiskStats { pages: self.entries.len(), ..self.stats }
    }

    /// Whether `write` would take a page of so many bytes without waiting.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.writer.has_room(bytes)
    }

    /// Takes a page to be saved. It can be read at once. One that is there already is only marked as used.
    pub fn write<'p>(&mut self, hash: PageHash, format: PageFormat, page: impl Into<Cow<'p, [u8]>>) {
        if self.contains(hash) {
            self.touch(hash);
            return;
        }
        let page = page.into();
        let bytes = page_file::file_bytes(page.len());
        if bytes > self.budget_bytes {
            return;
        }
        self.shrink(bytes);
        self.writer.push(Job::Write(hash, Arc::new(SavedPage { format, bytes: page.into_owned() })));
        self.add(hash, bytes);
        self.stats.written += 1;
    }

    /// Waits until the folder is as `stats` tells.
    pub fn flush(&self) {
        self.writer.flush();
    }

    /// Fails if a page could not be saved. None after it was saved either.
    pub fn check(&self) -> io::Result<()> {
        self.writer.check()
    }

    /// Whether reading pages is predicted to take less time than `limit`.
    pub fn reads_within(&self, hashes: &[PageHash], limit: Duration) -> bool {
        let bytes = hashes.iter().filter_map(|hash| self.entries.get(hash)).map(|entry| entry.bytes).sum();
        self.read_cost.is_below(bytes, limit)
    }

    /// So many pages were not read, because that was predicted to take too long.
    pub fn skip(&mut self, pages: usize) {
        self.stats.skipped += pages as u64;
        self.read_cost.doubt();
    }

    /// Reads a page back. A damaged file is removed, told about and counted: to its reader it was never there.
    pub fn read(&mut self, hash: PageHash) -> Option<SavedPage> {
        if !self.contains(hash) {
            return None;
        }
        if let Some(page) = self.writer.pending(hash) {
            self.used(hash);
            return Some(SavedPage::clone(&page));
        }
        let started = Instant::now();
        let path = self.folder.file(hash);
        let Ok(file) = fs::read(&path) else {
            self.forget(hash);
            return None;
        };
        let bytes = file.len() as u64;
        match page_file::decode(hash, file) {
            Ok(page) => {
                self.read_cost.observe(bytes, started.elapsed());
                self.used(hash);
                Some(page)
            }
            Err(damage) => {
                tracing::warn!(path = %path.display(), "a saved KV page is ignored and removed: {damage}");
                self.stats.damaged += 1;
                self.remove(hash);
                None
            }
        }
    }

    fn used(&mut self, hash: PageHash) {
        self.touch(hash);
        self.stats.read += 1;
    }

    fn remove(&mut self, hash: PageHash) {
        self.writer.push(Job::Remove(hash));
        self.forget(hash);
    }

    /// Removes what was not used for longest until there is room for so many bytes more.
    fn shrink(&mut self, bytes: u64) {
        while self.stats.bytes + bytes > self.budget_bytes
            && let Some((_, oldest)) = self.by_use.first_key_value()
        {
            self.remove(*oldest);
            self.stats.removed += 1;
        }
    }

    fn add(&mut self, hash: PageHash, bytes: u64) {
        self.clock += 1;
        self.entries.insert(hash, Entry { bytes, used: self.clock });
        self.by_use.insert(self.clock, hash);
        self.stats.bytes += bytes;
    }

    fn forget(&mut self, hash: PageHash) {
        if let Some(entry) = self.entries.remove(&hash) {
            self.by_use.remove(&entry.used);
            self.stats.bytes -= entry.bytes;
        }
    }

    /// Marks a page as used, in the file too.
    fn touch(&mut self, hash: PageHash) {
        if let Some(entry) = self.entries.get_mut(&hash) {
            self.clock += 1;
            self.by_use.remove(&entry.used);
            entry.used = self.clock;
            self.by_use.insert(self.clock, hash);
            self.writer.push(Job::Touch(hash));
        }
    }
}
