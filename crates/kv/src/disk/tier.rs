//! A folder of pages within a budget.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use std::{fs, io};

use ruvllm_kernels::ops::PageFormat;

use super::page_file::{self, SavedPage};
use crate::prefix::PageHash;

const EXTENSION: &str = "kv";

/// What the tier has done since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    pub written: u64,
    pub read: u64,
    /// Files removed to stay within the budget.
    pub removed: u64,
    /// Files that were not what they should be; they are removed.
    pub damaged: u64,
    pub pages: usize,
    pub bytes: u64,
}

/// Saves pages to a folder and finds them again, also after a restart.
#[derive(Debug)]
pub struct DiskTier {
    folder: PathBuf,
    budget_bytes: u64,
    entries: HashMap<PageHash, Entry>,
    /// From the one that was not used for longest.
    by_use: BTreeMap<u64, PageHash>,
    clock: u64,
    stats: DiskStats,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    bytes: u64,
    used: u64,
}

impl DiskTier {
    /// Opens the folder, which is made if it is not there, and looks at what is in it.
    pub fn open(folder: &Path, budget_bytes: u64) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let mut tier = Self {
            folder: folder.to_owned(),
            budget_bytes,
            entries: HashMap::new(),
            by_use: BTreeMap::new(),
            clock: 0,
            stats: DiskStats::default(),
        };
        let mut found = Vec::new();
        for shelf in fs::read_dir(folder)?.flatten().filter(|entry| entry.path().is_dir()) {
            for file in fs::read_dir(shelf.path())?.flatten() {
                match (hash_of(&file.path()), file.metadata()) {
                    (Some(hash), Ok(data)) => {
                        found.push((data.modified().unwrap_or(SystemTime::UNIX_EPOCH), hash, data.len()));
                    }
                    // What a process left unfinished when it was killed.
                    _ if is_unfinished(&file.path()) => drop(fs::remove_file(file.path())),
                    _ => {}
                }
            }
        }
        found.sort_unstable();
        for (_, hash, bytes) in found {
            tier.add(hash, bytes);
        }
        tier.shrink(0);
        Ok(tier)
    }

    pub fn contains(&self, hash: PageHash) -> bool {
        self.entries.contains_key(&hash)
    }

    pub fn stats(&self) -> DiskStats {
        DiskStats { pages: self.entries.len(), ..self.stats }
    }

    /// Saves a page. One that is there already is only marked as used.
    pub fn write(&mut self, hash: PageHash, format: PageFormat, page: &[u8]) -> io::Result<()> {
        if self.contains(hash) {
            self.touch(hash);
            return Ok(());
        }
        let file = page_file::encode(hash, format, page);
        let bytes = file.len() as u64;
        if bytes > self.budget_bytes {
            return Ok(());
        }
        self.shrink(bytes);
        let path = self.path(hash);
        let unfinished = path.with_extension(format!("{}.part", std::process::id()));
        fs::create_dir_all(path.parent().expect("files are on shelves"))?;
        fs::write(&unfinished, &file).and_then(|()| fs::rename(&unfinished, &path)).inspect_err(|_| {
            // A full disk must not stay full of half a page.
            drop(fs::remove_file(&unfinished));
        })?;
        self.add(hash, bytes);
        self.stats.written += 1;
        Ok(())
    }

    /// Reads a page back. A damaged file is removed, told about and counted: to its reader it was never there.
    pub fn read(&mut self, hash: PageHash) -> Option<SavedPage> {
        if !self.contains(hash) {
            return None;
        }
        let path = self.path(hash);
        let Ok(file) = fs::read(&path) else {
            self.forget(hash);
            return None;
        };
        match page_file::decode(hash, file) {
            Ok(page) => {
                self.touch(hash);
                self.stats.read += 1;
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

    /// Removes a page that turned out to be of no use.
    pub fn remove(&mut self, hash: PageHash) {
        drop(fs::remove_file(self.path(hash)));
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

    /// Marks a page as used, in the file too: the order outlives the process.
    fn touch(&mut self, hash: PageHash) {
        if let Some(entry) = self.entries.get_mut(&hash) {
            self.clock += 1;
            self.by_use.remove(&entry.used);
            entry.used = self.clock;
            self.by_use.insert(self.clock, hash);
            // Only the order of removal depends on it.
            if let Ok(file) = fs::File::options().write(true).open(self.path(hash)) {
                drop(file.set_modified(SystemTime::now()));
            }
        }
    }

    fn path(&self, hash: PageHash) -> PathBuf {
        let name: String = hash.bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        self.folder.join(&name[..2]).join(name).with_extension(EXTENSION)
    }
}

fn hash_of(path: &Path) -> Option<PageHash> {
    let name = path.file_stem()?.to_str().filter(|name| name.len() == 32 && name.is_ascii())?;
    if path.extension()? != EXTENSION {
        return None;
    }
    let mut bytes = [0; 16];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&name[i * 2..i * 2 + 2], 16).ok()?;
    }
    Some(PageHash::from_bytes(bytes))
}

fn is_unfinished(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "part")
}
