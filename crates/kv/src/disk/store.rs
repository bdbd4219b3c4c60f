//! A folder of encrypted pages within a budget, for all engines of a process.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;
use std::{fs, io};

use ruvllm_runner::PageFormat;

use super::folder::{Folder, FoundPage};
use super::index::Index;
use super::page_file::{self, DamagedPage, SavedPage};
use super::page_key::{PageKey, PageName};
use super::writer::{Job, Queue, Writer};
use crate::prefix::PageHash;

/// The share of the budget that is written until the folder is looked at again: other processes may write to it too.
const SCAN_SHARE: u64 = 32;

/// Saves pages to a folder and finds them again, also after a restart. Clones are the same store: engines that share one
/// share its budget. When the last clone is dropped, all that was taken is on disk.
#[derive(Clone, Debug)]
pub struct DiskStore {
    shared: Arc<Shared>,
    /// None in tests that look at what waits to be written.
    _writer: Option<Arc<Writer>>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub folder: Folder,
    pub key: PageKey,
    budget_bytes: u64,
    queue_bytes_max: usize,
    index: Mutex<Index>,
    /// Never locked while `index` is; the other way round is fine.
    queue: Mutex<Queue>,
    /// There is a job more, or one less.
    pub changed: Condvar,
    removed: AtomicU64,
}

/// What became of reading a page.
pub(super) enum Read {
    Page { page: SavedPage, file_bytes: Option<u64> },
    Damaged(DamagedPage),
    Gone,
}

impl DiskStore {
    /// Maximum memory of pages that wait to be written: enough for a disk to catch up with a prompt.
    pub const QUEUE_BYTES_MAX: usize = 64 << 20;

    /// Opens the folder, which is made if it is not there, and looks at what is in it.
    pub fn open(path: &Path, budget_bytes: u64, key: PageKey) -> io::Result<Self> {
        let shared = Shared::open(path, budget_bytes, Self::QUEUE_BYTES_MAX, key)?;
        let writer = Some(Arc::new(Writer::start(Arc::clone(&shared))?));
        Ok(Self { shared, _writer: writer })
    }

    /// The same with another limit to what waits to be written, and without the thread that writes it.
    #[cfg(test)]
    pub(super) fn stopped(path: &Path, budget_bytes: u64, queue_bytes_max: usize, key: PageKey) -> io::Result<Self> {
        Ok(Self { shared: Shared::open(path, budget_bytes, queue_bytes_max, key)?, _writer: None })
    }

    #[cfg(test)]
    pub(super) fn started(self) -> Self {
        let writer = Writer::start(Arc::clone(&self.shared)).expect("a thread");
        Self { shared: self.shared, _writer: Some(Arc::new(writer)) }
    }

    pub fn folder(&self) -> &Path {
        self.shared.folder.path()
    }

    pub fn budget_bytes(&self) -> u64 {
        self.shared.budget_bytes
    }

    /// Pages in the folder, with those that are still to be written.
    pub fn pages(&self) -> usize {
        self.shared.index().len()
    }

    /// Of their files.
    pub fn bytes(&self) -> u64 {
        self.shared.index().bytes()
    }

    /// Files removed to stay within the budget.
    pub fn removed(&self) -> u64 {
        self.shared.removed.load(Ordering::Relaxed)
    }

    /// Whether pages are not saved for a while, because one could not be written.
    pub fn is_paused(&self) -> bool {
        !self.shared.queue().is_writing()
    }

    /// Whether a page is there, whichever process has written it.
    pub(super) fn contains(&self, hash: PageHash) -> bool {
        let name = self.name(hash);
        self.shared.index().contains(name) || self.shared.find(name)
    }

    /// Bytes of the files of these pages, as far as there are any.
    pub(super) fn bytes_of(&self, hashes: &[PageHash]) -> u64 {
        let names: Vec<PageName> = hashes.iter().map(|hash| self.name(*hash)).collect();
        let index = self.shared.index();
        names.into_iter().filter_map(|name| index.bytes_of(name)).sum()
    }

    /// Whether `write` would accept a page of `bytes` bytes without blocking.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        let queue = self.shared.queue();
        queue.is_writing() && queue.has_room(bytes, self.shared.queue_bytes_max)
    }

    /// Takes a page to be saved, once there is room for it in the queue; it can be read at once. Returns whether it was
    /// queued: one that is on disk already is only marked as used.
    pub(super) fn write(&self, hash: PageHash, format: Option<PageFormat>, page: Cow<'_, [u8]>) -> bool {
        let name = self.name(hash);
        // Another process may have computed the same.
        if self.contains(hash) && self.touch(name) {
            return false;
        }
        let bytes = page_file::file_bytes(page.len());
        if bytes > self.shared.budget_bytes || self.is_paused() {
            return false;
        }
        self.shared.make_room(bytes);
        let found = FoundPage { used: SystemTime::now(), name, bytes };
        let page = Arc::new(SavedPage { format, bytes: page.into_owned() });
        self.shared.push_and(Job::Write(hash, name, page), || self.shared.index().add(found))
    }

    pub(super) fn read(&self, hash: PageHash) -> Read {
        let name = self.name(hash);
        if !self.touch(name) {
            return Read::Gone;
        }
        if let Some(page) = self.shared.queue().pending(name) {
            return Read::Page { page: SavedPage::clone(page), file_bytes: None };
        }
        let Ok(file) = fs::read(self.shared.folder.file(name)) else {
            self.shared.index().forget(name);
            return Read::Gone;
        };
        let file_bytes = Some(file.len() as u64);
        match page_file::decode(&self.shared.key, hash, file) {
            Ok(page) => Read::Page { page, file_bytes },
            Err(damage) => {
                self.shared.remove(name);
                Read::Damaged(damage)
            }
        }
    }

    pub(super) fn file(&self, hash: PageHash) -> PathBuf {
        self.shared.folder.file(self.name(hash))
    }

    /// Waits until the folder is as the index says.
    pub(super) fn flush(&self) {
        drop(self.shared.wait_until(Queue::is_empty));
    }

    /// Marks a page as used, in the file too. Returns whether it exists.
    fn touch(&self, name: PageName) -> bool {
        let is_there = self.shared.index().touch(name, SystemTime::now());
        is_there && self.shared.push(Job::Touch(name))
    }

    fn name(&self, hash: PageHash) -> PageName {
        self.shared.key.name(hash)
    }
}

impl PartialEq for DiskStore {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl Eq for DiskStore {}

impl Shared {
    fn open(path: &Path, budget_bytes: u64, queue_bytes_max: usize, key: PageKey) -> io::Result<Arc<Self>> {
        let folder = Folder::open(path)?;
        folder.clean()?;
        let mut index = Index::default();
        folder.pages()?.into_iter().for_each(|page| index.add(page));
        let shared = Self {
            folder,
            key,
            budget_bytes,
            queue_bytes_max,
            index: Mutex::new(index),
            queue: Mutex::default(),
            changed: Condvar::new(),
            removed: AtomicU64::new(0),
        };
        shared.make_room(0);
        Ok(Arc::new(shared))
    }

    /// Both are whole between any two statements, so what panicked elsewhere does not matter.
    pub(super) fn index(&self) -> MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn wait_until(&self, condition: impl Fn(&Queue) -> bool) -> MutexGuard<'_, Queue> {
        self.changed.wait_while(self.queue(), |queue| !condition(queue)).unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, job: Job) -> bool {
        self.push_and(job, || ())
    }

    /// Takes a job, once there is room for it, and does `and` before anything becomes of it. Returns whether it did. None that
    /// writes is taken while writing fails.
    fn push_and(&self, job: Job, and: impl FnOnce()) -> bool {
        let bytes = job.bytes();
        let is_taken = |queue: &Queue| bytes == 0 || queue.is_writing();
        let mut queue = self.wait_until(|queue| !is_taken(queue) || queue.has_room(bytes, self.queue_bytes_max));
        if !is_taken(&queue) {
            return false;
        }
        queue.push(job);
        and();
        self.changed.notify_all();
        true
    }

    fn remove(&self, name: PageName) {
        self.index().forget(name);
        self.push(Job::Remove(name));
    }

    /// Removes the least recently used pages until `bytes` more bytes fit.
    fn make_room(&self, bytes: u64) {
        loop {
            let oldest = {
                let mut index = self.index();
                let oldest = index.oldest().filter(|_| index.bytes() + bytes > self.budget_bytes);
                oldest.inspect(|oldest| index.forget(*oldest))
            };
            let Some(oldest) = oldest else { return };
            self.push(Job::Remove(oldest));
            self.removed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Looks for a page that another process has written since the folder was looked at. Returns whether it is there.
    fn find(&self, name: PageName) -> bool {
        let queue = self.queue();
        // One that is to be removed is there for a moment longer.
        if queue.names().any(|other| other == name) {
            return false;
        }
        let found = self.folder.find(name);
        found.inspect(|page| self.index().add(*page)).is_some()
    }

    /// Looks at the folder again where enough was written since the last time, so that its size holds whoever writes to it.
    pub(super) fn scan_if_due(&self) {
        if self.queue().unscanned_bytes < self.budget_bytes / SCAN_SHARE {
            return;
        }
        self.queue().unscanned_bytes = 0;
        let Ok(found) = self.folder.pages() else { return };
        // Jobs are done by this thread, so whatever changed since the folder was read is still among them.
        let queue = self.queue();
        let on_its_way: HashSet<PageName> = queue.names().collect();
        self.index().reconcile(&found, |name| on_its_way.contains(&name));
        drop(queue);
        self.make_room(0);
    }
}
