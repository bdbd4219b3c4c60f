//! Integrity, backup and keys of the store. What a server database does itself is an error here.

use std::path::Path;

use super::{FILE, Memory, key_source};
use crate::embedded;
use crate::error::Result;
use crate::key::{Key, KeySource};

impl Memory {
    /// Reads every page of the file: each is authenticated, so a changed byte anywhere is found. A server database checks its
    /// own pages; for one, this does nothing.
    pub fn check(&self) -> Result<()> {
        self.database.check()
    }

    /// Returns the memory that the vector index takes in this process.
    pub fn index_bytes(&self) -> usize {
        self.database.index_bytes()
    }

    /// Copies the memory to a file as it is now, while it is in use. The copy has the same key. `progress` receives the number
    /// of pages copied and of all pages.
    pub fn backup(&self, to: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<()> {
        self.database.backup(to, progress)
    }

    /// Encrypts everything with another key: a random one that replaces the key file, or the given one, where keys are kept
    /// elsewhere. Fails while another program uses the memory.
    pub fn rekey(&self, new: Option<Key>) -> Result<()> {
        self.database.rekey(new)
    }
}

/// Replaces the memory in a folder by a backup. Fails while a program uses the memory. The replaced files are kept beside it.
pub fn restore_backup(from: &Path, folder: &Path, key: Option<&KeySource>) -> Result<()> {
    let key = key_source(folder, key).key_of(from)?;
    embedded::restore(from, &folder.join(FILE), &key)
}
