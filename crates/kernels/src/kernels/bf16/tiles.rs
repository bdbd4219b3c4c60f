//! Matmul in bf16 on AMX tiles: two blocks of 16 rows times two tiles of 16 columns at a time.

use std::arch::asm;

use super::{BLOCK_ROWS, Bf16, Bf16Product, RowBlocks, Sums, UnpackedTiles, dots};
use crate::kernels::amx::{TileConfig, release};
use crate::lanes::{Avx512, LANES, Lanes};
use crate::weights::GROUP;

/// Blocks of rows per call.
const BLOCKS: usize = 2;
/// Numbers of an operand's tile.
const OPERAND: usize = BLOCK_ROWS * GROUP;

/// What `table` knows of this module.
pub(in crate::kernels) const BF16: Bf16 =
    Bf16 { product: Bf16Product { rows: BLOCKS * BLOCK_ROWS, multiply }, ..dots::BF16 };

/// All columns of a pair of tiles are summed up before the next: taking turns to keep rows in the first-level cache costs as much
/// for loading and storing sums as it saves.
///
/// # Safety
/// As `Bf16::multiply`; AMX with bf16 is there, and the system lets this process use it.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn multiply(tiles: UnpackedTiles, x: RowBlocks, out: Sums) {
    let config = TileConfig::new(|_| (BLOCK_ROWS as u8, 64));
    let product = Product { tiles, x, out };
    // SAFETY: a valid configuration, in memory before it is read; the caller's promise covers all tiles.
    unsafe {
        asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, preserves_flags));
        for tile in (0..tiles.count).step_by(2) {
            match (x.count <= BLOCK_ROWS, tile + 1 < tiles.count) {
                (false, true) => product.run::<2, 2>(tile),
                (false, false) => product.run::<2, 1>(tile),
                (true, true) => product.run::<1, 2>(tile),
                (true, false) => product.run::<1, 1>(tile),
            }
        }
        release();
    }
}

struct Product {
    tiles: UnpackedTiles,
    x: RowBlocks,
    out: Sums,
}

impl Product {
    /// Multiplies `B` blocks of rows by `T` tiles from number `tile` on.
    ///
    /// # Safety
    /// They are there, and the tile registers are configured; AVX-512 is there.
    #[inline(always)]
    unsafe fn run<const B: usize, const T: usize>(&self, tile: usize) {
        let cols = self.tiles.cols;
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
            if self.out.adds {
                results!(load);
            } else {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    options(nomem, nostack, preserves_flags)
                );
            }
            let mut a = self.x.values;
            let mut b = self.tiles.values.add(tile * cols * LANES);
            for _ in (0..cols).step_by(GROUP) {
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
            if !self.out.factors.is_null() {
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
