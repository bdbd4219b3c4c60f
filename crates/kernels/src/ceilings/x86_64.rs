//! Arithmetic in vector registers on x86-64.

use std::arch::x86_64::*;
use std::hint::black_box;

use super::Exercise;

/// Sums that do not depend on each other: at least the latency (5 cycles) times the units (2).
const SUMS: usize = 16;
/// The same where there are only sixteen registers: two of them hold the factors.
const SUMS_AVX2: usize = 12;

pub(super) fn float_exercise() -> Option<Exercise> {
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has the feature.
        return Some(|rounds| unsafe { floats_avx512(rounds) });
    }
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        // SAFETY: as above.
        return Some(|rounds| unsafe { floats_avx2(rounds) });
    }
    None
}

/// Only with instructions made for it: what AVX2 takes three instructions for is no ceiling of its own.
pub(super) fn byte_exercise() -> Option<Exercise> {
    if is_x86_feature_detected!("avx512vnni") {
        // SAFETY: the processor has the feature.
        return Some(|rounds| unsafe { bytes_avx512(rounds) });
    }
    if is_x86_feature_detected!("avxvnni") {
        // SAFETY: as above.
        return Some(|rounds| unsafe { bytes_avx_vnni(rounds) });
    }
    None
}

pub(super) fn bf16_exercise() -> Option<Exercise> {
    // SAFETY: the processor has the feature.
    is_x86_feature_detected!("avx512bf16").then_some(|rounds| unsafe { bf16_avx512(rounds) })
}

#[target_feature(enable = "avx512f")]
fn floats_avx512(rounds: u64) -> u64 {
    let (a, b) = (_mm512_set1_ps(black_box(0.5)), _mm512_set1_ps(black_box(0.25)));
    let mut sums = [_mm512_set1_ps(1.0); SUMS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(a, b, *sum);
        }
    }
    black_box(sums);
    rounds * SUMS as u64 * 16 * 2
}

#[target_feature(enable = "avx2,fma")]
fn floats_avx2(rounds: u64) -> u64 {
    let (a, b) = (_mm256_set1_ps(black_box(0.5)), _mm256_set1_ps(black_box(0.25)));
    let mut sums = [_mm256_set1_ps(1.0); SUMS_AVX2];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(a, b, *sum);
        }
    }
    black_box(sums);
    rounds * SUMS_AVX2 as u64 * 8 * 2
}

#[target_feature(enable = "avx512f,avx512vnni")]
fn bytes_avx512(rounds: u64) -> u64 {
    let (a, b) = (_mm512_set1_epi32(black_box(0x0102_0304)), _mm512_set1_epi32(black_box(0x0403_0201)));
    let mut sums = [_mm512_set1_epi32(1); SUMS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_dpbusd_epi32(*sum, a, b);
        }
    }
    black_box(sums);
    rounds * SUMS as u64 * 64 * 2
}

#[target_feature(enable = "avx512f,avx512bf16")]
fn bf16_avx512(rounds: u64) -> u64 {
    // SAFETY: any bits are bf16.
    let pairs = |bits: i32| unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(black_box(bits))) };
    let (a, b) = (pairs(0x3f00_3f00), pairs(0x3e80_3e80));
    let mut sums = [_mm512_set1_ps(1.0); SUMS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_dpbf16_ps(*sum, a, b);
        }
    }
    black_box(sums);
    rounds * SUMS as u64 * 32 * 2
}

#[target_feature(enable = "avx2,avxvnni")]
fn bytes_avx_vnni(rounds: u64) -> u64 {
    let (a, b) = (_mm256_set1_epi32(black_box(0x0102_0304)), _mm256_set1_epi32(black_box(0x0403_0201)));
    let mut sums = [_mm256_set1_epi32(1); SUMS_AVX2];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm256_dpbusd_avx_epi32(*sum, a, b);
        }
    }
    black_box(sums);
    rounds * SUMS_AVX2 as u64 * 32 * 2
}
