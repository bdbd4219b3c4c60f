//! Products of matrices in AMX tiles.

use std::arch::asm;

use super::Exercise;
use crate::KernelSet;
use crate::kernels::amx::TileConfig;

/// Tiles of 16 rows of 64 bytes: four sums, two left and two right factors, all of the register file.
const ROWS: u8 = 16;
const ROW_BYTES: u16 = 64;
/// Multiplications and additions of one instruction: 16 x 16 sums of 64 products of bytes, or 32 of bf16.
const BYTE_OPERATIONS: u64 = 16 * 16 * 64 * 2;
const BF16_OPERATIONS: u64 = 16 * 16 * 32 * 2;
/// Instructions of a round, each for another sum: their latency is about three times their throughput.
const PRODUCTS: u64 = 4;

pub(super) fn byte_exercise() -> Option<Exercise> {
    // SAFETY: the processor and the system have been asked.
    KernelSet::Amx.is_available().then_some(|rounds| unsafe { multiply_bytes(rounds / 16) })
}

pub(super) fn bf16_exercise() -> Option<Exercise> {
    // SAFETY: as above.
    KernelSet::Amx.is_available().then_some(|rounds| unsafe { multiply_bf16(rounds / 16) })
}

macro_rules! exercise {
    ($name:ident, $instruction:literal, $operations:ident) => {
        /// # Safety
        /// The processor must have these tiles and the system must permit them.
        unsafe fn $name(rounds: u64) -> u64 {
            let config = TileConfig::new(|_| (ROWS, ROW_BYTES));
            let rounds = rounds.max(1);
            // SAFETY: one block configures, uses and releases all tiles, and says that it overwrites them. The configuration
            // is read through its address, and without `nomem` the compiler must have stored it before.
            unsafe {
                asm!(
                    "ldtilecfg [{config}]",
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "tilezero tmm4",
                    "tilezero tmm5",
                    "tilezero tmm6",
                    "tilezero tmm7",
                    "2:",
                    concat!($instruction, " tmm0, tmm4, tmm6"),
                    concat!($instruction, " tmm1, tmm4, tmm7"),
                    concat!($instruction, " tmm2, tmm5, tmm6"),
                    concat!($instruction, " tmm3, tmm5, tmm7"),
                    "dec {left}",
                    "jnz 2b",
                    "tilerelease",
                    config = in(reg) &raw const config,
                    left = inout(reg) rounds => _,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
            rounds * PRODUCTS * $operations
        }
    };
}
exercise!(multiply_bytes, "tdpbusd", BYTE_OPERATIONS);
exercise!(multiply_bf16, "tdpbf16ps", BF16_OPERATIONS);
