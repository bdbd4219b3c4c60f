//! The disk tier: pages that had to leave memory, or should outlive the process.
//!
//! One encrypted file for each page, named after the hash of everything that it depends on, so nothing but the names has to be
//! read to know what is there. Files appear whole or not at all (written aside, then renamed), and several engines and
//! processes may share the folder: a file that another has removed is a miss. Files are read by whoever needs a page, and
//! changed by a thread of the store's own.

mod folder;
mod index;
mod page_file;
mod page_key;
mod read_cost;
mod store;
mod tier;
mod writer;

pub use page_file::{DamagedPage, SavedPage};
pub(crate) use page_file::{decode, encode};
pub use page_key::PageKey;
pub use store::DiskStore;
pub use tier::{DiskStats, DiskTier};

#[cfg(test)]
mod tests;
