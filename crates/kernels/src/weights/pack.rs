//! Repacking GGUF rows into tiles, once at load.

use std::num::NonZero;
use std::thread;

use super::block::{BLOCK_LEN_MAX, Block, nibble_words};
use super::format::{Format, for_format};
use super::tiles::{GROUP, LINE, PackedMatrix, TILE_ROWS, is_float, tile_bytes};
use super::{Planes, WeightType};
use crate::Arena;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PackError {
    #[error("a {kind} matrix of {rows} x {cols} takes {expected:?} bytes, got {got}")]
    Size { kind: WeightType, rows: usize, cols: usize, expected: Option<usize>, got: usize },
    #[error("row {row} holds what is not a finite number: the file is damaged")]
    NotFinite { row: usize },
    #[error("there is no room for it on disk: {reason}")]
    NoRoom { reason: String },
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
        let no_room = |error: std::io::Error| PackError::NoRoom { reason: error.to_string() };
        let mut packed = Self::empty(kind, rows, cols, arena).map_err(no_room)?;
        packed.fill(bytes, row_bytes)?;
        Ok(packed)
    }

    /// Packs all tiles, a contiguous share of them on each available core.
    fn fill(&mut self, bytes: &[u8], row_bytes: usize) -> Result<(), PackError> {
        let (kind, cols) = (self.kind(), self.cols());
        let (code_bytes, scale_bytes) = tile_bytes(kind, cols);
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        let share = self.tiles().div_ceil(cores);
        let pack_share = |first: usize, codes: &mut [u8], scales: &mut [u8]| {
            let tiles = bytes[first * TILE_ROWS * row_bytes..].chunks(TILE_ROWS * row_bytes);
            for (tile, (codes, rows)) in codes.chunks_exact_mut(code_bytes).zip(tiles).enumerate() {
                let scales = &mut scales[tile * scale_bytes..][..scale_bytes];
                pack_tile(kind, rows, row_bytes, codes, scales)
                    .map_err(|NotFinite { row }| PackError::NotFinite { row: (first + tile) * TILE_ROWS + row })?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let mut scales = self.scales.chunks_mut((share * scale_bytes).max(1));
            let mut shares = self.codes.chunks_mut(share * code_bytes).enumerate().map(|(worker, codes)| {
                let scales = scales.next().unwrap_or_default();
                move || pack_share(worker * share, codes, scales)
            });
            let own = shares.next();
            let others: Vec<_> = shares.map(|share| scope.spawn(share)).collect();
            own.map_or(Ok(()), |mut own| own())?;
            others.into_iter().try_for_each(|other| other.join().expect("packing does not panic"))
        })
    }
}

/// Whether all exponents of a row of floats are those of numbers.
fn are_finite(kind: WeightType, row: &[u8]) -> bool {
    let halves =
        |exponent: u16| row.as_chunks::<2>().0.iter().all(|bytes| u16::from_le_bytes(*bytes) & exponent != exponent);
    match kind {
        WeightType::F16 => halves(0x7c00),
        WeightType::Bf16 => halves(0x7f80),
        _ => row.as_chunks::<4>().0.iter().all(|bytes| f32::from_le_bytes(*bytes).is_finite()),
    }
}

/// A scale or float of a row of the tile is infinite or not a number.
struct NotFinite {
    row: usize,
}

/// Packs the rows of one tile, at most 16 of `row_bytes`.
fn pack_tile(
    kind: WeightType,
    rows: &[u8],
    row_bytes: usize,
    codes: &mut [u8],
    scales: &mut [u8],
) -> Result<(), NotFinite> {
    if is_float(kind) {
        let size = kind.block_bytes();
        for (r, row) in rows.chunks_exact(row_bytes).enumerate() {
            if !are_finite(kind, row) {
                return Err(NotFinite { row: r });
            }
            for (k, value) in row.chunks_exact(size).enumerate() {
                codes[(k * TILE_ROWS + r) * size..][..size].copy_from_slice(value);
            }
        }
        return Ok(());
    }
    for_format!(kind, F => pack_blocks::<F>(rows, row_bytes, codes, scales))
}

fn pack_blocks<F: Format>(rows: &[u8], row_bytes: usize, codes: &mut [u8], scales: &mut [u8]) -> Result<(), NotFinite> {
    let kind = F::KIND;
    let mut block = Block::EMPTY;
    let (raw_bytes, record_bytes) = (kind.block_bytes(), F::SCALES.record_bytes());
    let group_bytes = F::PLANES.lines() * LINE;
    let block_code_bytes = kind.block_len() / GROUP * group_bytes;
    // Run by run of columns, not row by row: the lines that all rows of a run share stay in the cache.
    let run = BLOCK_LEN_MAX / kind.block_len();
    let runs = codes.chunks_mut(run * block_code_bytes).zip(scales.chunks_mut(run * record_bytes));
    for (i, (codes, records)) in runs.enumerate() {
        for (row, bytes) in rows.chunks_exact(row_bytes).enumerate() {
            let blocks = bytes[i * run * raw_bytes..].chunks_exact(raw_bytes);
            let to = codes.chunks_exact_mut(block_code_bytes).zip(records.chunks_exact_mut(record_bytes));
            for (raw, (codes, record)) in blocks.zip(to) {
                block.read_scales(kind, raw);
                if !block.scale.is_finite() || !block.offset.is_finite() {
                    return Err(NotFinite { row });
                }
                if !matches!(F::PLANES, Planes::Nibble) {
                    block.read_codes(kind, raw);
                }
                for (g, group) in codes.chunks_exact_mut(group_bytes).enumerate() {
                    if matches!(F::PLANES, Planes::Nibble) {
                        put_words(group, 0, row, nibble_words(kind, raw, g));
                    } else {
                        let codes = block.codes[g * GROUP..].first_chunk().expect("blocks are whole groups");
                        put_codes(F::PLANES, group, row, codes);
                    }
                }
                put_scales::<F>(&block, row, record);
            }
        }
    }
    Ok(())
}

/// Puts the codes of row `r` of a group into its bit planes: four neighbouring codes are a word of each. For plain
/// nibbles `nibble_words` is the short way to the same words.
/// Inlined, because `planes` is known where it is called.
#[inline(always)]
fn put_codes(planes: Planes, group: &mut [u8], r: usize, codes: &[u8; GROUP]) {
    /// The lowest bit of each of four codes.
    const LOWEST: u32 = 0x0101_0101;
    let words: [u32; GROUP / 4] = std::array::from_fn(|q| {
        u32::from_le_bytes([codes[q * 4], codes[q * 4 + 1], codes[q * 4 + 2], codes[q * 4 + 3]])
    });
    // Bits `from..from + width` of the codes, with those of every `lines`-th word side by side in one line.
    let mut put = |first: usize, lines: usize, from: usize, width: usize| {
        for line in 0..lines {
            let mut word = 0;
            for i in 0..words.len() / lines {
                word |= ((words[i * lines + line] >> from) & (LOWEST * ((1 << width) - 1))) << (i * width);
            }
            put_words(group, first + line, r, [word]);
        }
    };
    match planes {
        Planes::Byte => put(0, 8, 0, 8),
        Planes::Nibble | Planes::NibbleBit | Planes::NibblePair => put(0, 4, 0, 4),
        Planes::Pair | Planes::PairBit => put(0, 2, 0, 2),
    }
    match planes {
        Planes::Byte | Planes::Nibble | Planes::Pair => {}
        Planes::NibbleBit => put(4, 1, 4, 1),
        Planes::NibblePair => put(4, 2, 4, 2),
        Planes::PairBit => put(2, 1, 2, 1),
    }
}

/// Puts one word of row `r` into each line from `first` on.
#[inline(always)]
fn put_words<const N: usize>(group: &mut [u8], first: usize, r: usize, words: [u32; N]) {
    for (line, word) in words.into_iter().enumerate() {
        group[(first + line) * LINE + r * 4..][..4].copy_from_slice(&word.to_le_bytes());
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
