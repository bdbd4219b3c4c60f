//! Matmul in bf16 by dot products of pairs (AVX-512 BF16): eight rows times two tiles of 16 columns at a time.

use std::arch::x86_64::*;

use super::pages::{unpack_keys, unpack_values};
use super::softmax::softmax;
use super::unpack::{round, unpack, unpack_floats};
use super::{BLOCK_ROWS, Bf16, Bf16Product, RowBlocks, Sums, UnpackedTiles};
use crate::lanes::LANES;
use crate::weights::GROUP;

/// Rows that are multiplied together: with two tiles, sums for twice the latency of a dot product.
const ROWS: usize = 8;

/// What `table` knows of this module.
pub(in crate::kernels) const BF16: Bf16 = Bf16 {
    product: Bf16Product { rows: BLOCK_ROWS, multiply },
    unpack,
    unpack_floats,
    round,
    unpack_keys,
    unpack_values,
    softmax,
};

/// # Safety
/// As `Bf16Product::multiply`; AVX-512 with bf16 is there.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn multiply(tiles: UnpackedTiles, x: RowBlocks, out: Sums) {
    for first in (0..x.count).step_by(ROWS) {
        for tile in (0..tiles.count).step_by(2) {
            // SAFETY: the caller's promise; eight rows are half of a block, which is whole.
            unsafe {
                if tile + 1 < tiles.count {
                    some_rows::<2>(tiles, x, out, first, tile);
                } else {
                    some_rows::<1>(tiles, x, out, first, tile);
                }
            }
        }
    }
}

/// Multiplies the rows from `first` on by `T` tiles from number `tile` on.
///
/// # Safety
/// They are there, and so is AVX-512 with bf16.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")]
unsafe fn some_rows<const T: usize>(tiles: UnpackedTiles, x: RowBlocks, out: Sums, first: usize, tile: usize) {
    let cols = tiles.cols;
    // SAFETY: groups of all rows and tiles, and their results.
    unsafe {
        let to = |row: usize, t: usize| out.to.start.add((first + row) * out.to.stride + (tile + t) * LANES);
        let mut sums = [[_mm512_setzero_ps(); T]; ROWS];
        if out.adds {
            for row in 0..ROWS {
                for t in 0..T {
                    sums[row][t] = _mm512_loadu_ps(to(row, t));
                }
            }
        }
        let rows = x.values.add(first / BLOCK_ROWS * BLOCK_ROWS * cols + first % BLOCK_ROWS * GROUP);
        let lines = tiles.values.add(tile * cols * LANES);
        for group in 0..cols / GROUP {
            let pairs = rows.add(group * BLOCK_ROWS * GROUP).cast::<i32>();
            for pair in 0..GROUP / 2 {
                let mut weights = [_mm512_setzero_si512(); T];
                for t in 0..T {
                    let line = lines.add((t * cols + group * GROUP + pair * 2) * LANES);
                    weights[t] = _mm512_loadu_si512(line.cast());
                }
                for row in 0..ROWS {
                    let x = bits(_mm512_set1_epi32(pairs.add(row * GROUP / 2 + pair).read_unaligned()));
                    for t in 0..T {
                        sums[row][t] = _mm512_dpbf16_ps(sums[row][t], x, bits(weights[t]));
                    }
                }
            }
        }
        for row in 0..ROWS {
            // Rows behind the last that counts have no factor.
            let has_factor = !out.factors.is_null() && first + row < x.count;
            let factor = _mm512_set1_ps(if has_factor { *out.factors.add(first + row) } else { 1.0 });
            for t in 0..T {
                _mm512_storeu_ps(to(row, t), _mm512_mul_ps(sums[row][t], factor));
            }
        }
    }
}

/// # Safety
/// AVX-512 is there.
#[inline(always)]
unsafe fn bits(pairs: __m512i) -> __m512bh {
    // SAFETY: both are 512 bits of which any will do.
    unsafe { std::mem::transmute(pairs) }
}
