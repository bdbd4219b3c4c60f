//! What is in the folder, and in which order it was used.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::SystemTime;

use super::folder::FoundPage;
use super::page_key::PageName;

#[derive(Debug, Default)]
pub(super) struct Index {
    entries: HashMap<PageName, Entry>,
    /// From the one that was not used for longest.
    by_use: BTreeSet<(SystemTime, PageName)>,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    bytes: u64,
    used: SystemTime,
}

impl Index {
    pub(super) fn contains(&self, name: PageName) -> bool {
        self.entries.contains_key(&name)
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Of all files, with those that are still to be written.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn bytes_of(&self, name: PageName) -> Option<u64> {
        self.entries.get(&name).map(|entry| entry.bytes)
    }

    pub(super) fn oldest(&self) -> Option<PageName> {
        self.by_use.first().map(|(_, name)| *name)
    }

    /// Adds a page, or replaces what is known of it.
    pub(super) fn add(&mut self, page: FoundPage) {
        self.forget(page.name);
        self.entries.insert(page.name, Entry { bytes: page.bytes, used: page.used });
        self.by_use.insert((page.used, page.name));
        self.bytes += page.bytes;
    }

    /// Returns whether it exists.
    pub(super) fn touch(&mut self, name: PageName, now: SystemTime) -> bool {
        let Some(bytes) = self.bytes_of(name) else { return false };
        self.add(FoundPage { used: now, name, bytes });
        true
    }

    pub(super) fn forget(&mut self, name: PageName) {
        if let Some(entry) = self.entries.remove(&name) {
            self.by_use.remove(&(entry.used, name));
            self.bytes -= entry.bytes;
        }
    }

    /// Takes in what another process did to the folder: `found` is what is there now, but for what is on its way to or from
    /// there.
    pub(super) fn reconcile(&mut self, found: &[FoundPage], on_its_way: impl Fn(PageName) -> bool) {
        let there: HashSet<PageName> = found.iter().map(|page| page.name).collect();
        let gone = self.entries.keys().filter(|name| !there.contains(name) && !on_its_way(**name));
        let gone: Vec<PageName> = gone.copied().collect();
        gone.into_iter().for_each(|name| self.forget(name));
        for page in found.iter().filter(|page| !on_its_way(page.name)) {
            if !self.contains(page.name) {
                self.add(*page);
            }
        }
    }
}
