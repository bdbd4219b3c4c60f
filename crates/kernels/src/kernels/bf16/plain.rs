//! Products of bf16 on every kernel set. A product of two bf16 is exact in a float, so multiplying and adding round as often as a
//! fused instruction: all sets have the same bits.
//!
//! Rows are spread out to floats a panel of columns at a time, which the first cache holds beside a tile's part of it.

use super::{BLOCK_ROWS, RowBlocks, Sums, UnpackedTiles};
use crate::lanes::{LANES, Lanes};
use crate::weights::GROUP;

/// Columns of a panel: whole groups.
const PANEL: usize = 8 * GROUP;

/// The rows of a block as floats. `[rows, columns of a panel]`
type Panel = [[f32; PANEL]; BLOCK_ROWS];

/// # Safety
/// As `Bf16Product::multiply`, for one block; the instruction set of `L` is there.
#[inline(always)]
pub(in crate::kernels) unsafe fn multiply<L: Lanes>(tiles: UnpackedTiles, x: RowBlocks, out: Sums) {
    let mut panel: Panel = [[0.0; PANEL]; BLOCK_ROWS];
    for first in (0..tiles.cols).step_by(PANEL) {
        let cols = PANEL.min(tiles.cols - first);
        // SAFETY: the caller's promise; the columns are there, in whole groups.
        unsafe {
            spread(x, first, cols, &mut panel);
            for tile in 0..tiles.count {
                let lines = tiles.values.add((tile * tiles.cols + first) * LANES);
                let adds = out.adds || first > 0;
                // As many rows as registers hold sums of.
                if L::SUMS >= BLOCK_ROWS {
                    rows_by_tile::<L, BLOCK_ROWS>(&panel, x.count, lines, cols, out, tile, adds);
                } else {
                    rows_by_tile::<L, 4>(&panel, x.count, lines, cols, out, tile, adds);
                }
            }
        }
    }
    if !out.factors.is_null() {
        // SAFETY: rows that count have a factor, and results.
        unsafe { scale(tiles.count, x.count, out) }
    }
}

/// Makes floats of columns of a block's rows.
///
/// # Safety
/// The columns are there, in whole groups, and fit a panel.
#[inline(always)]
unsafe fn spread(x: RowBlocks, first: usize, cols: usize, panel: &mut Panel) {
    for group in 0..cols / GROUP {
        for (row, to) in panel.iter_mut().enumerate() {
            // SAFETY: a line of 32 numbers of the row.
            let line = unsafe { x.values.add(((first / GROUP + group) * BLOCK_ROWS + row) * GROUP) };
            for (col, to) in to[group * GROUP..][..GROUP].iter_mut().enumerate() {
                // SAFETY: as above.
                *to = f32::from_bits(u32::from(unsafe { *line.add(col) }) << 16);
            }
        }
    }
}

/// Multiplies the rows of a panel by a tile's columns, `R` rows at a time.
///
/// # Safety
/// The tile's columns are there, and room for the results of all rows of the block.
#[inline(always)]
unsafe fn rows_by_tile<L: Lanes, const R: usize>(
    panel: &Panel,
    count: usize,
    lines: *const u16,
    cols: usize,
    out: Sums,
    tile: usize,
    adds: bool,
) {
    for first in (0..count).step_by(R) {
        // SAFETY: the caller's promise; the block is whole.
        unsafe {
            let to = |row: usize| out.to.start.add((first + row) * out.to.stride + tile * LANES);
            let mut sums = [L::splat(0.0); R];
            if adds {
                for row in 0..R {
                    sums[row] = L::load(to(row));
                }
            }
            let rows = panel.as_ptr().add(first).cast::<f32>();
            for col in (0..cols).step_by(2) {
                let [even, odd] = L::load_bf16_pairs(lines.add(col * LANES));
                for row in 0..R {
                    let x = rows.add(row * PANEL + col);
                    sums[row] = L::fma(even, L::splat(*x), sums[row]);
                    sums[row] = L::fma(odd, L::splat(*x.add(1)), sums[row]);
                }
            }
            for row in 0..R {
                L::store(to(row), sums[row]);
            }
        }
    }
}

/// Multiplies the results of each row by its factor.
///
/// # Safety
/// There are results and factors of so many rows.
unsafe fn scale(tiles: usize, count: usize, out: Sums) {
    for row in 0..count {
        // SAFETY: the caller's promise.
        unsafe {
            let results = std::slice::from_raw_parts_mut(out.to.start.add(row * out.to.stride), tiles * LANES);
            results.iter_mut().for_each(|result| *result *= *out.factors.add(row));
        }
    }
}
