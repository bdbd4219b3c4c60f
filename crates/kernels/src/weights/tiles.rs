//! Weight matrices as tiles of 16 rows, the layout that every matmul kernel reads.
//!
//! Integer formats: for each tile and each group of 32 columns, bit planes of 64-byte lines (see `Planes`); a line
//! holds 4 neighbouring columns of each of the 16 rows. That is the operand shape of the 4-way byte dot products of
//! AVX-512 VNNI, NEON and AMX, and leaves row sums in separate lanes: no horizontal additions.
//! Scales are a stream of their own, so that lines stay aligned: records of half floats for the 16 rows, for
//! super-block formats followed by 8-bit factors of the record's 8 groups.
//! Float formats: for each tile and column, 16 values.

use std::io;

use crate::arena::{Arena, ArenaBytes};

use super::format::{Format, for_format};
use super::{Planes, Scales, WeightType};

/// Rows per tile.
pub(crate) const TILE_ROWS: usize = 16;
/// Columns per group of an integer tile.
pub(crate) const GROUP: usize = 32;
/// Bytes per line of codes.
pub(crate) const LINE: usize = 64;

/// A weight matrix `[rows, cols]`, repacked for matmul.
#[derive(Debug)]
pub struct PackedMatrix {
    kind: WeightType,
    rows: usize,
    cols: usize,
    pub(super) codes: ArenaBytes,
    pub(super) scales: ArenaBytes,
}

impl PackedMatrix {
    pub(super) fn empty(kind: WeightType, rows: usize, cols: usize, arena: &mut Arena) -> io::Result<Self> {
        let tiles = rows.div_ceil(TILE_ROWS);
        let (codes, scales) = tile_bytes(kind, cols);
        Ok(Self { kind, rows, cols, codes: arena.zeroed(tiles * codes)?, scales: arena.zeroed(tiles * scales)? })
    }

    pub fn kind(&self) -> WeightType {
        self.kind
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Memory held by the tiles.
    pub fn bytes(&self) -> usize {
        self.codes.len() + self.scales.len()
    }

    pub(crate) fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE_ROWS)
    }

    pub(crate) fn is_float(&self) -> bool {
        is_float(self.kind)
    }

    /// Codes of one tile: `cols / 32` groups of lines, or `cols` runs of 16 floats.
    pub(crate) fn tile_codes(&self, tile: usize) -> &[u8] {
        let (bytes, _) = tile_bytes(self.kind, self.cols);
        &self.codes[tile * bytes..][..bytes]
    }

    /// Scale records of one tile; empty for float formats.
    pub(crate) fn tile_scales(&self, tile: usize) -> &[u8] {
        let (_, bytes) = tile_bytes(self.kind, self.cols);
        &self.scales[tile * bytes..][..bytes]
    }
}

pub(super) fn is_float(kind: WeightType) -> bool {
    matches!(kind, WeightType::F32 | WeightType::F16 | WeightType::Bf16)
}

/// Bytes of codes and of scales in a tile of `cols` columns.
pub(super) fn tile_bytes(kind: WeightType, cols: usize) -> (usize, usize) {
    if is_float(kind) {
        return (cols * TILE_ROWS * kind.block_bytes(), 0);
    }
    let (planes, scales): (Planes, Scales) = for_format!(kind, F => (F::PLANES, F::SCALES));
    let groups = cols / GROUP;
    (groups * planes.lines() * LINE, groups / scales.record_groups() * scales.record_bytes())
}
