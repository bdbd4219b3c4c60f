//! The bytes of a file, mapped into memory and shared. The only unsafe code outside the kernels.
//!
//! A map costs address space, not memory: pages come in when they are touched and can be given back once their contents
//! have been repacked.
#![allow(unsafe_code)]

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

/// A file's bytes, read-only. Clones share them; they stay readable until the last clone is gone.
#[derive(Clone)]
pub struct FileBytes(Arc<Source>);

enum Source {
    Mapped(Mmap),
    Memory(Vec<u8>),
}

impl FileBytes {
    /// Maps the file at `path`. Anything but a regular file is refused: a pipe or device has no size to check against.
    pub fn open(path: &Path) -> io::Result<Self> {
        // Looked at before it is opened, because opening a pipe waits for a writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
        }
        let file = File::open(path)?;
        if file.metadata()?.len() == 0 {
            return Ok(Self::from(Vec::new()));
        }
        // SAFETY: the map is private to this value and only ever read. What we cannot enforce is that nobody else
        // changes the file meanwhile: an overwritten file shows other bytes than those that were checked, a truncated
        // one raises SIGBUS on the next touch. We assume neither happens while a file is loaded (afterwards nothing is
        // read from it): the store's files belong to the user, and the store replaces them by renaming, never by writing
        // in place. Safe code over these bytes stays within the slice whatever they say.
        let map = unsafe { Mmap::map(&file)? };
        Ok(Self(Arc::new(Source::Mapped(map))))
    }

    /// Advises the system that the file will be read once, front to back: read ahead, and drop behind. Wrong for weights
    /// that are used from the map at every step.
    pub fn will_read_sequentially(&self) -> io::Result<()> {
        match &*self.0 {
            Source::Mapped(map) => advice::will_read_sequentially(map),
            Source::Memory(_) => Ok(()),
        }
    }

    /// Gives the memory behind `range` back to the system, e.g. after repacking the weights in it. It may still be
    /// read: then it comes from the file again. A range beyond the file is cut to it.
    pub fn give_back(&self, range: Range<usize>) -> io::Result<()> {
        let end = range.end.min(self.len());
        let start = range.start.min(end);
        match &*self.0 {
            Source::Mapped(map) if start < end => advice::give_back(map, start..end),
            _ => Ok(()),
        }
    }
}

#[cfg(unix)]
mod advice {
    use super::{Mmap, Range, io};

    pub fn will_read_sequentially(map: &Mmap) -> io::Result<()> {
        map.advise(memmap2::Advice::Sequential)
    }

    pub fn give_back(map: &Mmap, range: Range<usize>) -> io::Result<()> {
        // SAFETY: DontNeed is unsafe because it may lose written bytes. This map is read-only and backed by the file,
        // so dropped pages are read from the file again with the same contents.
        unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len()) }
    }
}

/// Elsewhere the system decides alone.
#[cfg(not(unix))]
mod advice {
    use super::{Mmap, Range, io};

    pub fn will_read_sequentially(_: &Mmap) -> io::Result<()> {
        Ok(())
    }

    pub fn give_back(_: &Mmap, _: Range<usize>) -> io::Result<()> {
        Ok(())
    }
}

impl From<Vec<u8>> for FileBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Source::Memory(bytes)))
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &*self.0 {
            Source::Mapped(map) => map,
            Source::Memory(bytes) => bytes,
        }
    }
}

impl fmt::Debug for FileBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileBytes({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_with(bytes: &[u8]) -> (tempfile::TempDir, std::path::PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    #[test]
    fn bytes_given_back_can_be_read_again() {
        let contents: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        let (_folder, path) = file_with(&contents);
        let file = FileBytes::open(&path).unwrap();
        file.will_read_sequentially().unwrap();
        assert_eq!(*file, contents[..]);
        file.give_back(5_000..70_000).unwrap();
        file.give_back(90_000..usize::MAX).unwrap();
        assert_eq!(*file, contents[..]);
    }

    #[test]
    fn an_empty_file_is_empty_bytes() {
        let (_folder, path) = file_with(b"");
        let file = FileBytes::open(&path).unwrap();
        assert!(file.is_empty());
        file.give_back(0..10).unwrap();
    }

    #[test]
    fn a_directory_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let error = FileBytes::open(folder.path()).unwrap_err();
        assert_eq!(error.to_string(), "not a regular file");
    }
}
