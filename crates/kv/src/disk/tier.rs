//! An engine's view of a disk store: what reading from it costs, and what it did for this engine.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use ruvllm_runner::PageFormat;

use super::page_file::SavedPage;
use super::read_cost::ReadCost;
use super::store::{DiskStore, Read};
use crate::prefix::PageHash;

/// What the tier has done since it was opened, and the state of its store, which others may share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    pub written: u64,
    pub read: u64,
    /// Pages that were there and not read, because computing them was faster.
    pub skipped: u64,
    /// Files that were not what they should be; they are removed.
    pub damaged: u64,
    /// Of the store: files removed to stay within the budget, pages, and bytes of files, with those that are still to be written.
    pub removed: u64,
    pub pages: usize,
    pub bytes: u64,
    /// Whether nothing is saved for a while, because a page could not be written.
    pub is_paused: bool,
}

/// Saves the pages of one engine and finds them again.
#[derive(Debug)]
pub struct DiskTier {
    store: DiskStore,
    read_cost: ReadCost,
    /// Without the state of the store.
    stats: DiskStats,
}

impl DiskTier {
    pub fn new(store: DiskStore) -> Self {
        Self { store, read_cost: ReadCost::default(), stats: DiskStats::default() }
    }

    #[cfg(test)]
    pub(super) fn store(&self) -> &DiskStore {
        &self.store
    }

    #[cfg(test)]
    pub(super) fn folder(&self) -> &std::path::Path {
        self.store.folder()
    }

    pub fn contains(&self, hash: PageHash) -> bool {
        self.store.contains(hash)
    }

    pub fn stats(&self) -> DiskStats {
        let store = &self.store;
        let (removed, pages, bytes) = (store.removed(), store.pages(), store.bytes());
        DiskStats { removed, pages, bytes, is_paused: store.is_paused(), ..self.stats }
    }

    /// Whether `write` would accept a page of `bytes` bytes without blocking.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.store.has_room(bytes)
    }

    /// Hands a page to the store, or a recurrent state, which has no format. It can be read at once, unless the disk fails.
    pub fn write<'p>(&mut self, hash: PageHash, format: impl Into<Option<PageFormat>>, page: impl Into<Cow<'p, [u8]>>) {
        self.stats.written += u64::from(self.store.write(hash, format.into(), page.into()));
    }

    /// Blocks until the folder is as `stats` reports.
    pub fn flush(&self) {
        self.store.flush();
    }

    /// Whether reading pages is predicted to take less time than `limit`.
    pub fn reads_within(&self, hashes: &[PageHash], limit: Duration) -> bool {
        self.read_cost.is_below(self.store.bytes_of(hashes), limit)
    }

    /// So many pages were not read, because that was predicted to take too long.
    pub fn skip(&mut self, pages: usize) {
        self.stats.skipped += pages as u64;
        self.read_cost.doubt();
    }

    /// Reads a page back. A damaged file is removed, logged and counted; its reader sees a miss.
    pub fn read(&mut self, hash: PageHash) -> Option<SavedPage> {
        let started = Instant::now();
        match self.store.read(hash) {
            Read::Page { page, file_bytes } => {
                if let Some(bytes) = file_bytes {
                    self.read_cost.observe(bytes, started.elapsed());
                }
                self.stats.read += 1;
                Some(page)
            }
            Read::Damaged(damage) => {
                let path = self.store.file(hash);
                tracing::warn!(path = %path.display(), "a saved KV page is ignored and removed: {damage}");
                self.stats.damaged += 1;
                None
            }
            Read::Gone => None,
        }
    }
}
