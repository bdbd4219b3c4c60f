//! Products of bf16 in plain code, for every kernel set: the compiler makes vectors of it. A product of two bf16 is exact in a
//! float, so multiplying and adding round as often as a fused instruction.

use super::{BLOCK_ROWS, RowBlocks, Sums, UnpackedTiles};
use crate::lanes::LANES;
use crate::weights::GROUP;

/// Rows that are multiplied together.
const ROWS: usize = 4;

/// # Safety
/// As `Bf16Product::multiply`.
#[inline(always)]
pub(in crate::kernels) unsafe fn multiply(tiles: UnpackedTiles, x: RowBlocks, out: Sums) {
    for first in (0..x.count).step_by(ROWS) {
        for tile in 0..tiles.count {
            // SAFETY: the caller's promise; these rows are a part of a block, which is whole.
            unsafe { some_rows(tiles, x, out, first, tile) }
        }
    }
}

/// Multiplies the rows from `first` on by a tile.
///
/// # Safety
/// They are there, and there is room for the results.
#[inline(always)]
unsafe fn some_rows(tiles: UnpackedTiles, x: RowBlocks, out: Sums, first: usize, tile: usize) {
    // SAFETY: groups of all rows and of the tile, and their results.
    unsafe {
        let to = |row: usize| out.to.start.add((first + row) * out.to.stride + tile * LANES).cast::<[f32; LANES]>();
        let mut sums = [[0f32; LANES]; ROWS];
        if out.adds {
            for row in 0..ROWS {
                sums[row] = *to(row);
            }
        }
        let rows = x.values.add(first / BLOCK_ROWS * BLOCK_ROWS * tiles.cols + first % BLOCK_ROWS * GROUP);
        let lines = tiles.values.add(tile * tiles.cols * LANES);
        for col in (0..tiles.cols).step_by(2) {
            let line = lines.add(col * LANES).cast::<[[u16; 2]; LANES]>().read();
            let at = col / GROUP * GROUP * BLOCK_ROWS + col % GROUP;
            for row in 0..ROWS {
                let pair = [0, 1].map(|i| float(*rows.add(at + row * GROUP + i)));
                for lane in 0..LANES {
                    sums[row][lane] += pair[0] * float(line[lane][0]);
                    sums[row][lane] += pair[1] * float(line[lane][1]);
                }
            }
        }
        for row in 0..ROWS {
            // Rows behind the last that counts have no factor.
            if !out.factors.is_null() && first + row < x.count {
                let factor = *out.factors.add(first + row);
                sums[row].iter_mut().for_each(|sum| *sum *= factor);
            }
            *to(row) = sums[row];
        }
    }
}

fn float(bf16: u16) -> f32 {
    f32::from_bits(u32::from(bf16) << 16)
}
