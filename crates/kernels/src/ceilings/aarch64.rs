//! Arithmetic in vector registers on aarch64.

use std::arch::aarch64::*;
use std::arch::asm;
use std::hint::black_box;

use super::Exercise;

/// Sums that do not depend on each other: at least the latency (4 cycles) times the units (4).
const SUMS: usize = 16;

pub(super) fn float_exercise() -> Option<Exercise> {
    Some(floats)
}

pub(super) fn byte_exercise() -> Option<Exercise> {
    // SAFETY: the processor has the feature.
    std::arch::is_aarch64_feature_detected!("dotprod").then_some(|rounds| unsafe { bytes(rounds) })
}

fn floats(rounds: u64) -> u64 {
    // SAFETY: NEON is part of every aarch64 processor that Rust supports.
    let (a, b, one) = unsafe { (vdupq_n_f32(black_box(0.5)), vdupq_n_f32(black_box(0.25)), vdupq_n_f32(1.0)) };
    let mut sums = [one; SUMS];
    for _ in 0..rounds {
        for sum in &mut sums {
            // SAFETY: as above.
            *sum = unsafe { vfmaq_f32(*sum, a, b) };
        }
    }
    black_box(sums);
    rounds * SUMS as u64 * 4 * 2
}

/// # Safety
/// The processor must have the dot product instructions.
unsafe fn bytes(rounds: u64) -> u64 {
    // SAFETY: NEON as above.
    let (a, b, zero) = unsafe { (vdupq_n_s8(black_box(3)), vdupq_n_s8(black_box(2)), vdupq_n_s32(0)) };
    let mut sums = [zero; SUMS];
    for _ in 0..rounds {
        for sum in &mut sums {
            // The intrinsic is not stable.
            // SAFETY: registers only.
            unsafe {
                asm!(
                    ".arch_extension dotprod",
                    "sdot {sum:v}.4s, {a:v}.16b, {b:v}.16b",
                    sum = inout(vreg) *sum, a = in(vreg) a, b = in(vreg) b,
                    options(nomem, nostack, preserves_flags),
                );
            }
        }
    }
    black_box(sums);
    rounds * SUMS as u64 * 16 * 2
}
