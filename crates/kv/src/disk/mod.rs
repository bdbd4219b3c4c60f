//! The disk tier: pages that had to leave memory, or should outlive the process.
//!
//! One file for each page, named by the hash of everything that it depends on, so nothing but the names has to be read to
//! know what is there. Files appear whole or not at all (written aside, then renamed), and several processes may share the
//! folder: a file that another has removed is a miss. Files are read by whoever needs a page, and changed by a thread of the
//! tier's own.

mod folder;
mod page_file;
mod read_cost;
mod tier;
mod writer;

pub use tier::{DiskStats, DiskTier};

#[cfg(test)]
mod tests;
