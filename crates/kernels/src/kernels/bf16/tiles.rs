//! Matmul in bf16 on AMX tiles: two blocks of 16 rows times two tiles of 16 columns at a time.

use std::arch::asm;

use super::pages::{unpack_keys, unpack_values};
use super::softmax::softmax;
use super::unpack::{round, unpack, unpack_floats};
use super::{BLOCK_ROWS, Bf16, RowBlocks, Sums, UnpackedTiles};
use crate::kernels::amx::{TileConfig, release};
use crate::lanes::{Avx512, LANES, Lanes};
use crate::weights::GROUP;

/// Blocks of rows per call.
const BLOCKS: usize = 2;
/// Maximum number of columns that are summed up before other tiles have their turn: those of all rows of a call stay in the
/// first-level cache.
const TURN_COLS_MAX: usize = 512;
/// Numbers of an operand's tile.
const OPERAND: usize = BLOCK_ROWS * GROUP;

/// What `table` knows of this module.
pub(in crate::kernels) const BF16: Bf16 =
    Bf16 { rows: BLOCKS * BLOCK_ROWS, unpack, unpack_floats, round, multiply, unpack_keys, unpack_values, softmax };

/// # Safety
/// As `Bf16::multiply`; AMX with bf16 is there, and the system lets this process use it.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn multiply(tiles: UnpackedTiles, x: RowBlocks, out: Sums) {
    let config = TileConfig::new(|_| (BLOCK_ROWS as u8, 64));
    // SAFETY: a valid configuration, in memory before it is read. Turns stay within the columns, and what they add up is
    // within the results.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, preserves_flags));
        let is_one = x.count <= BLOCK_ROWS;
        // Equal turns: each costs a store and a load of all sums.
        let turn_cols = tiles.cols.div_ceil(tiles.cols.div_ceil(TURN_COLS_MAX)).next_multiple_of(GROUP);
        for first in (0..tiles.cols).step_by(turn_cols) {
            let turn = Turn { tiles, x, out, cols: (first, tiles.cols.min(first + turn_cols)) };
            let mut tile = 0;
            while tile < tiles.count {
                match (is_one, tile + 1 < tiles.count) {
                    (false, true) => turn.run::<2, 2>(tile),
                    (false, false) => turn.run::<2, 1>(tile),
                    (true, true) => turn.run::<1, 2>(tile),
                    (true, false) => turn.run::<1, 1>(tile),
                }
                tile += 2;
            }
        }
        release();
    }
}

/// Some columns of all operands.
struct Turn {
    tiles: UnpackedTiles,
    x: RowBlocks,
    out: Sums,
    cols: (usize, usize),
}

impl Turn {
    /// Adds up the products of `B` blocks of rows and `T` tiles from number `tile` on.
    ///
    /// # Safety
    /// They are there, and the tile registers are configured; AVX-512 is there.
    #[inline(always)]
    unsafe fn run<const B: usize, const T: usize>(&self, tile: usize) {
        let cols = self.tiles.cols;
        let (first, end) = self.cols;
        let stride = self.out.to.stride * size_of::<f32>();
        // SAFETY: all of them are within the operands and results; compiled code does not touch tile registers.
        unsafe {
            let to = self.out.to.start.add(tile * LANES);
            let other_rows = to.add(BLOCK_ROWS * self.out.to.stride);
            macro_rules! result {
                (load $tile:literal $at:ident $offset:literal) => {
                    asm!(concat!("tileloadd tmm", $tile, ", [{at} + {stride} + ", $offset, "]"),
                        at = in(reg) $at, stride = in(reg) stride, options(nostack, preserves_flags))
                };
                (store $tile:literal $at:ident $offset:literal) => {
                    asm!(concat!("tilestored [{at} + {stride} + ", $offset, "], tmm", $tile),
                        at = in(reg) $at, stride = in(reg) stride, options(nostack, preserves_flags))
                };
            }
            macro_rules! results {
                ($what:ident) => {
                    result!($what 0 to 0);
                    if T == 2 {
                        result!($what 1 to 64);
                    }
                    if B == 2 {
                        result!($what 2 other_rows 0);
                    }
                    if B == 2 && T == 2 {
                        result!($what 3 other_rows 64);
                    }
                };
            }
            if first == 0 && !self.out.adds {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    options(nomem, nostack, preserves_flags)
                );
            } else {
                results!(load);
            }
            let mut a = self.x.values.add(first * BLOCK_ROWS);
            let mut b = self.tiles.values.add((tile * cols + first) * LANES);
            for _ in (first..end).step_by(GROUP) {
                match (B, T) {
                    (2, 2) => asm!(
                        "tileloadd tmm6, [{b} + {line}]",
                        "tileloadd tmm4, [{a} + {line}]",
                        "tdpbf16ps tmm0, tmm4, tmm6",
                        "tileloadd tmm7, [{c} + {line}]",
                        "tdpbf16ps tmm1, tmm4, tmm7",
                        "tileloadd tmm5, [{d} + {line}]",
                        "tdpbf16ps tmm2, tmm5, tmm6",
                        "tdpbf16ps tmm3, tmm5, tmm7",
                        a = in(reg) a, d = in(reg) a.add(cols * BLOCK_ROWS),
                        b = in(reg) b, c = in(reg) b.add(cols * LANES),
                        line = in(reg) 64usize, options(nostack, preserves_flags)),
                    (2, 1) => asm!(
                        "tileloadd tmm6, [{b} + {line}]",
                        "tileloadd tmm4, [{a} + {line}]",
                        "tdpbf16ps tmm0, tmm4, tmm6",
                        "tileloadd tmm5, [{d} + {line}]",
                        "tdpbf16ps tmm2, tmm5, tmm6",
                        a = in(reg) a, d = in(reg) a.add(cols * BLOCK_ROWS), b = in(reg) b,
                        line = in(reg) 64usize, options(nostack, preserves_flags)),
                    (1, 2) => asm!(
                        "tileloadd tmm4, [{a} + {line}]",
                        "tileloadd tmm6, [{b} + {line}]",
                        "tdpbf16ps tmm0, tmm4, tmm6",
                        "tileloadd tmm7, [{c} + {line}]",
                        "tdpbf16ps tmm1, tmm4, tmm7",
                        a = in(reg) a, b = in(reg) b, c = in(reg) b.add(cols * LANES),
                        line = in(reg) 64usize, options(nostack, preserves_flags)),
                    _ => asm!(
                        "tileloadd tmm4, [{a} + {line}]",
                        "tileloadd tmm6, [{b} + {line}]",
                        "tdpbf16ps tmm0, tmm4, tmm6",
                        a = in(reg) a, b = in(reg) b,
                        line = in(reg) 64usize, options(nostack, preserves_flags)),
                }
                (a, b) = (a.add(OPERAND), b.add(OPERAND));
            }
            results!(store);
            if end == cols && !self.out.factors.is_null() {
                self.scale::<T>(to);
            }
        }
    }

    /// Multiplies finished sums of `T` tiles by their rows' factors.
    ///
    /// # Safety
    /// As `run`.
    #[inline(always)]
    unsafe fn scale<const T: usize>(&self, to: *mut f32) {
        // SAFETY: only rows that count, each of `T` vectors.
        unsafe {
            for row in 0..self.x.count {
                let factor = Avx512::splat(*self.out.factors.add(row));
                for tile in 0..T {
                    let at = to.add(row * self.out.to.stride + tile * LANES);
                    Avx512::store(at, Avx512::mul(Avx512::load(at), factor));
                }
            }
        }
    }
}
