//! Memory for weights, cut from large pieces so that the system can back it with huge pages.
//!
//! A model reads all of its weights for every token. With pages of 4 KiB the processor would look up an address for
//! every 4 KiB of them; most matrices of a small model are smaller than one huge page, so they share.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::aligned::AlignedVec;

/// Bytes of a piece, unless more are asked for at once. Takes memory only as far as it is used.
const PIECE_BYTES: usize = 64 << 20;
/// Every part starts at a cache line.
const ALIGN: usize = 64;

/// Hands out parts of large pieces of memory.
#[derive(Debug)]
pub struct Arena {
    piece: Arc<Piece>,
    used: usize,
}

#[derive(Debug)]
struct Piece {
    start: *mut u8,
    len: usize,
    /// Owns what `start` points to.
    _bytes: AlignedVec<u8>,
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
        Self { piece: Piece::new(0), used: 0 }
    }

    pub(crate) fn zeroed(&mut self, len: usize) -> ArenaBytes {
        if len > self.piece.len - self.used {
            *self = Self { piece: Piece::new(len.max(PIECE_BYTES)), used: 0 };
        }
        let start = self.used;
        self.used = self.piece.len.min((start + len).next_multiple_of(ALIGN));
        ArenaBytes { piece: Arc::clone(&self.piece), start, len }
    }
}

impl Default for Arena {
    fn default() -> Self {
        Self::new()
    }
}

impl Piece {
    fn new(len: usize) -> Arc<Self> {
        let mut bytes = AlignedVec::zeroed(len);
        let start = bytes.as_mut_ptr();
        Arc::new(Self { start, len, _bytes: bytes })
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

    #[test]
    fn parts_do_not_overlap_and_outlive_the_arena() {
        let mut arena = Arena::new();
        let mut parts: Vec<ArenaBytes> = [1, 63, 64, 65, PIECE_BYTES, 7, 0].map(|len| arena.zeroed(len)).into();
        drop(arena);
        for (i, part) in parts.iter_mut().enumerate() {
            assert!(part.iter().all(|byte| *byte == 0) && part.as_ptr().addr().is_multiple_of(ALIGN));
            part.fill(i as u8 + 1);
        }
        for (i, part) in parts.iter().enumerate() {
            assert!(part.iter().all(|byte| *byte == i as u8 + 1));
        }
    }
}
