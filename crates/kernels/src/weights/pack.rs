//! Repacking GGUF rows into tiles, once at load.

use std::num::NonZero;
use std::thread;

use super::block::Block;
use super::format::{Format, for_format};
use super::tiles::{GROUP, LINE, PackedMatrix, TILE_ROWS, is_float, tile_bytes};
use super::{Planes, WeightType};
use crate::Arena;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PackError {
    #[error("a {kind} matrix of {rows} x {cols} takes {expected:?} bytes, got {got}")]
    Size { kind: WeightType, rows: usize, cols: usize, expected: Option<usize>, got: usize },
    #[error("row {row} holds a scale that is not a finite number: the file is damaged")]
    ScaleNotFinite { row: usize },
}

impl PackedMatrix {
    /// Repacks `rows` x `cols` weights, stored row by row in GGUF's blocks, into memory of `arena`.
    pub fn pack(
        kind: WeightType,
        rows: usize,
        cols: usize,
        bytes: &[u8],
        arena: &mut Arena,
    ) -> Result<Self, PackError> {
        let row_bytes = kind.row_bytes(cols).filter(|_| rows > 0 && cols > 0);
        let expected = row_bytes.and_then(|row| row.checked_mul(rows));
        let (Some(row_bytes), true) = (row_bytes, expected == Some(bytes.len())) else {
            return Err(PackError::Size { kind, rows, cols, expected, got: bytes.len() });
        };
        let mut packed = Self::empty(kind, rows, cols, arena);
        packed.fill(bytes, row_bytes)?;
        Ok(packed)
    }

    /// Packs all tiles, a contiguous share of them on each available core.
    fn fill(&mut self, bytes: &[u8], row_bytes: usize) -> Result<(), PackError> {
        let (kind, cols) = (self.kind(), self.cols());
        let (code_bytes, scale_bytes) = tile_bytes(kind, cols);
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let share = self.tiles().div_ceil(cores);
        thread::scope(|scope| {
            let mut workers = Vec::new();
            let mut scales = self.scales.chunks_mut((share * scale_bytes).max(1));
            for (worker, codes) in self.codes.chunks_mut(share * code_bytes).enumerate() {
                let scales = scales.next().unwrap_or_default();
                let rows = bytes[worker * share * TILE_ROWS * row_bytes..].chunks(TILE_ROWS * row_bytes);
                workers.push(scope.spawn(move || {
                    for (tile, (codes, rows)) in codes.chunks_exact_mut(code_bytes).zip(rows).enumerate() {
                        let scales = &mut scales[tile * scale_bytes..][..scale_bytes];
                        let first_row = (worker * share + tile) * TILE_ROWS;
                        for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
                            pack_row(kind, r, row, codes, scales)
                                .map_err(|NotFinite| PackError::ScaleNotFinite { row: first_row + r })?;
                        }
                    }
                    Ok(())
                }));
            }
            workers.into_iter().try_for_each(|worker| worker.join().expect("packing does not panic"))
        })
    }
}

/// A scale of a row is infinite or not a number.
struct NotFinite;

fn pack_row(kind: WeightType, r: usize, row: &[u8], codes: &mut [u8], scales: &mut [u8]) -> Result<(), NotFinite> {
    if is_float(kind) {
        let size = kind.block_bytes();
        for (k, value) in row.chunks_exact(size).enumerate() {
            codes[(k * TILE_ROWS + r) * size..][..size].copy_from_slice(value);
        }
        return Ok(());
    }
    for_format!(kind, F => pack_blocks::<F>(kind, r, row, codes, scales))
}

fn pack_blocks<F: Format>(
    kind: WeightType,
    r: usize,
    row: &[u8],
    codes: &mut [u8],
    scales: &mut [u8],
) -> Result<(), NotFinite> {
    let mut block = Block::EMPTY;
    let group_bytes = F::PLANES.lines() * LINE;
    let block_groups = kind.block_len() / GROUP;
    for (b, raw) in row.chunks_exact(kind.block_bytes()).enumerate() {
        block.read(kind, raw);
        if !block.scale.is_finite() || !block.offset.is_finite() {
            return Err(NotFinite);
        }
        for g in 0..block_groups {
            let group = &mut codes[(b * block_groups + g) * group_bytes..][..group_bytes];
            for (k, code) in block.codes[g * GROUP..][..GROUP].iter().enumerate() {
                put_code(F::PLANES, group, r, k, *code);
            }
        }
        put_scales::<F>(&block, r, &mut scales[b * F::SCALES.record_bytes()..][..F::SCALES.record_bytes()]);
    }
    Ok(())
}

/// Adds the code of row `r`, column `k` of a group to its bit planes, which start as zeros.
fn put_code(planes: Planes, group: &mut [u8], r: usize, k: usize, code: u8) {
    let (quad, byte) = (k / 4, r * 4 + k % 4);
    let mut put = |line: usize, shift: usize, bits: u8| group[line * LINE + byte] |= bits << shift;
    match planes {
        Planes::Byte => put(quad, 0, code),
        Planes::Nibble | Planes::NibbleBit | Planes::NibblePair => put(quad % 4, quad / 4 * 4, code & 15),
        Planes::Pair | Planes::PairBit => put(quad % 2, quad / 2 * 2, code & 3),
    }
    match planes {
        Planes::Byte | Planes::Nibble | Planes::Pair => {}
        Planes::NibbleBit => put(4, quad, code >> 4),
        Planes::NibblePair => put(4 + quad % 2, quad / 2 * 2, code >> 4),
        Planes::PairBit => put(2, quad, code >> 2),
    }
}

fn put_scales<F: Format>(block: &Block, r: usize, record: &mut [u8]) {
    let scales = F::SCALES;
    record[r * 2..][..2].copy_from_slice(&block.scale.to_le_bytes());
    if scales.has_offset() {
        record[32 + r * 2..][..2].copy_from_slice(&block.offset.to_le_bytes());
    }
    if !scales.is_super() {
        return;
    }
    let subs = GROUP / scales.sub_len();
    for g in 0..8 {
        let group = &mut record[scales.header_bytes() + g * scales.group_bytes()..][..scales.group_bytes()];
        for sub in 0..subs {
            group[sub * 16 + r] = block.sub_scales[g * subs + sub] as u8;
            if scales.has_offset() {
                group[(subs + sub) * 16 + r] = block.sub_offsets[g * subs + sub];
            }
        }
    }
}
