//! Reading rows back out of tiles: an embedding that is also the output matrix is kept once, as tiles.

use half::f16;

use super::block::{Block, dequantize_block, dequantize_row};
use super::format::{Format, for_format};
use super::tiles::{GROUP, LINE, PackedMatrix, TILE_ROWS, is_float};
use super::{Planes, WeightType};

impl PackedMatrix {
    /// Writes the floats of one row to `out`: the same bits as `dequantize_row` gives for the bytes it was packed from.
    /// Panics if there is no such row, or `out` has another length than a row.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows() && out.len() == self.cols(), "row {row} of {} x {}", self.rows(), self.cols());
        let (tile, lane) = (row / TILE_ROWS, row % TILE_ROWS);
        if is_float(self.kind()) {
            return unpack_floats(self.kind(), self.tile_codes(tile), lane, out);
        }
        for_format!(self.kind(), F => unpack_blocks::<F>(self.tile_codes(tile), self.tile_scales(tile), lane, out));
    }
}

fn unpack_floats(kind: WeightType, values: &[u8], lane: usize, out: &mut [f32]) {
    let size = kind.block_bytes();
    for (value, column) in out.iter_mut().zip(values.chunks_exact(TILE_ROWS * size)) {
        dequantize_row(kind, &column[lane * size..][..size], std::slice::from_mut(value));
    }
}

fn unpack_blocks<F: Format>(codes: &[u8], scales: &[u8], lane: usize, out: &mut [f32]) {
    let group_bytes = F::PLANES.lines() * LINE;
    let block_code_bytes = F::KIND.block_len() / GROUP * group_bytes;
    let records = scales.chunks_exact(F::SCALES.record_bytes());
    let mut block = Block::EMPTY;
    for ((values, codes), record) in
        out.chunks_exact_mut(F::KIND.block_len()).zip(codes.chunks_exact(block_code_bytes)).zip(records)
    {
        for (group, codes) in codes.chunks_exact(group_bytes).zip(block.codes.chunks_exact_mut(GROUP)) {
            read_codes(F::PLANES, group, lane, codes);
        }
        read_scales::<F>(&mut block, lane, record);
        dequantize_block::<F>(&block, values);
    }
}

/// Gathers the codes of one row of a group from its bit planes; `put_codes` of packing says where they are.
fn read_codes(planes: Planes, group: &[u8], lane: usize, codes: &mut [u8]) {
    codes.fill(0);
    let mut take = |first: usize, lines: usize, to: usize, width: usize| {
        for line in 0..lines {
            let bytes = &group[(first + line) * LINE + lane * 4..][..4];
            for i in 0..codes.len() / 4 / lines {
                for (code, byte) in codes[(i * lines + line) * 4..][..4].iter_mut().zip(bytes) {
                    // As 16 bits: a whole byte has no bits beyond.
                    *code |= ((u16::from(*byte) >> (i * width) & ((1 << width) - 1)) << to) as u8;
                }
            }
        }
    };
    match planes {
        Planes::Byte => take(0, 8, 0, 8),
        Planes::Nibble | Planes::NibbleBit | Planes::NibblePair => take(0, 4, 0, 4),
        Planes::Pair | Planes::PairBit => take(0, 2, 0, 2),
    }
    match planes {
        Planes::Byte | Planes::Nibble | Planes::Pair => {}
        Planes::NibbleBit => take(4, 1, 4, 1),
        Planes::NibblePair => take(4, 2, 4, 2),
        Planes::PairBit => take(2, 1, 2, 1),
    }
}

fn read_scales<F: Format>(block: &mut Block, lane: usize, record: &[u8]) {
    let scales = F::SCALES;
    let half_at = |at: usize| f16::from_le_bytes([record[at], record[at + 1]]);
    block.scale = half_at(lane * 2);
    if scales.has_offset() {
        block.offset = half_at(32 + lane * 2);
    }
    if !scales.is_super() {
        return;
    }
    let subs = GROUP / scales.sub_len();
    for g in 0..scales.record_groups() {
        let group = &record[scales.header_bytes() + g * scales.group_bytes()..][..scales.group_bytes()];
        for sub in 0..subs {
            block.sub_scales[g * subs + sub] = group[sub * 16 + lane] as i8;
            if scales.has_offset() {
                block.sub_offsets[g * subs + sub] = group[(subs + sub) * 16 + lane];
            }
        }
    }
}
