//! Memory for weights, cut from large pieces so that the system can back it with huge pages. Or, for weights that do not fit
//! into memory, pieces of a file.
//!
//! A model reads all of its weights for every token. With pages of 4 KiB the processor would look up an address for
//! every 4 KiB of them; most matrices of a small model are smaller than one huge page, so they share.

use std::fs::File;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::aligned::AlignedVec;

/// Bytes of a piece, unless more are asked for at once. Takes memory only as far as it is used.
const PIECE_BYTES: usize = 64 << 20;
/// Every part starts at a cache line.
const ALIGN: usize = 64;

/// Hands out parts of large pieces of memory, or of a file.
#[derive(Debug)]
pub struct Arena {
    file: Option<File>,
    piece: Arc<Piece>,
    used: usize,
}

#[derive(Debug)]
struct Piece {
    start: *mut u8,
    len: usize,
    /// Owns what `start` points to.
    _bytes: PieceBytes,
}

#[derive(Debug)]
#[allow(dead_code, reason = "they own memory that is reached through a pointer")]
enum PieceBytes {
    Memory(AlignedVec<u8>),
    #[cfg(target_os = "linux")]
    File(memmap2::MmapMut),
}

// SAFETY: the bytes are only reached through parts, which do not overlap.
unsafe impl Send for Piece {}
// SAFETY: as above.
unsafe impl Sync for Piece {}

/// Some zeroed bytes of an arena, and the only way to reach them. They stay valid when the arena is gone.
#[derive(Debug)]
pub(crate) struct ArenaBytes {
    piece: Arc<Piece>,
    start: usize,
    len: usize,
}

impl Arena {
    pub fn new() -> Self {
        Self { file: None, piece: Piece::in_memory(0), used: 0 }
    }

    /// An arena whose bytes are those of a file, which grows with it. The system keeps those in memory that are used, and
    /// drops others when memory is short. Nobody else may have the file open: it had better be deleted by now.
    pub fn in_file(file: File) -> Self {
        Self { file: Some(file), ..Self::new() }
    }

    /// Fails only if there is no room for a file to grow.
    pub(crate) fn zeroed(&mut self, len: usize) -> io::Result<ArenaBytes> {
        if len > self.piece.len - self.used {
            let piece_len = len.max(PIECE_BYTES);
            self.piece = match &self.file {
                None => Piece::in_memory(piece_len),
                Some(file) => Piece::in_file(file, piece_len)?,
            };
            self.used = 0;
        }
        let start = self.used;
        self.used = self.piece.len.min((start + len).next_multiple_of(ALIGN));
        Ok(ArenaBytes { piece: Arc::clone(&self.piece), start, len })
    }
}

impl Default for Arena {
    fn default() -> Self {
        Self::new()
    }
}

impl Piece {
    fn in_memory(len: usize) -> Arc<Self> {
        let mut bytes = AlignedVec::zeroed(len);
        let start = bytes.as_mut_ptr();
        Arc::new(Self { start, len, _bytes: PieceBytes::Memory(bytes) })
    }

    /// Maps the next `len` bytes behind the end of a file.
    #[cfg(target_os = "linux")]
    fn in_file(file: &File, len: usize) -> io::Result<Arc<Self>> {
        use std::os::fd::AsRawFd;

        /// Maps begin at whole pages.
        const SYSTEM_PAGE: u64 = 64 << 10;
        let offset = file.metadata()?.len().next_multiple_of(SYSTEM_PAGE);
        let range = (libc::off_t::try_from(offset), libc::off_t::try_from(len));
        let (Ok(from), Ok(bytes)) = range else { return Err(io::ErrorKind::FileTooLarge.into()) };
        // Room is taken now: writing to a map for which there is none ends the process.
        // SAFETY: a call without pointers, for a file that is open.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), from, bytes) } {
            0 => {}
            code => return Err(io::Error::from_raw_os_error(code)),
        }
        // SAFETY: the file is ours alone, by the promise of `Arena::in_file`, and is never made shorter.
        let mut bytes = unsafe { memmap2::MmapOptions::new().offset(offset).len(len).map_mut(file)? };
        let start = bytes.as_mut_ptr();
        Ok(Arc::new(Self { start, len, _bytes: PieceBytes::File(bytes) }))
    }

    #[cfg(not(target_os = "linux"))]
    fn in_file(_: &File, _: usize) -> io::Result<Arc<Self>> {
        Err(io::Error::new(io::ErrorKind::Unsupported, "weights on disk need Linux"))
    }
}

impl Deref for ArenaBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        assert!(self.start + self.len <= self.piece.len);
        // SAFETY: in bounds; the arena gave these bytes to nobody else, and `DerefMut` needs `&mut self`.
        unsafe { std::slice::from_raw_parts(self.piece.start.add(self.start), self.len) }
    }
}

impl DerefMut for ArenaBytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        assert!(self.start + self.len <= self.piece.len);
        // SAFETY: as in `deref`, and `&mut self` makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(self.piece.start.add(self.start), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill_and_compare(mut arena: Arena) {
        let lens = [1, 63, 64, 65, PIECE_BYTES, 7, 0];
        let mut parts: Vec<ArenaBytes> = lens.map(|len| arena.zeroed(len).expect("there is room")).into();
        drop(arena);
        for (i, part) in parts.iter_mut().enumerate() {
            assert!(part.iter().all(|byte| *byte == 0) && part.as_ptr().addr().is_multiple_of(ALIGN));
            part.fill(i as u8 + 1);
        }
        for (i, part) in parts.iter().enumerate() {
            assert!(part.iter().all(|byte| *byte == i as u8 + 1));
        }
    }

    #[test]
    fn parts_do_not_overlap_and_outlive_the_arena() {
        fill_and_compare(Arena::new());
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn parts_may_be_those_of_a_file() {
        fill_and_compare(Arena::in_file(tempfile::tempfile().expect("a file")));
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn a_file_that_cannot_grow_is_an_error() {
        let file = File::options().read(true).write(true).open("/dev/null").expect("it is always there");
        assert!(Arena::in_file(file).zeroed(1).is_err());
    }
}
