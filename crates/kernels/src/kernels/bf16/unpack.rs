//! Numbers rounded to bf16: weights of every format, and rows of the batch.

use std::arch::x86_64::*;

use super::BLOCK_ROWS;
use crate::kernels::matmul::{IntegerTiles, group_scales, has_halves, quad_codes};
use crate::lanes::{Avx512, LANES, Lanes};
use crate::weights::{Format, GROUP, WeightType, for_format};

/// # Safety
/// As `Bf16::unpack`; AVX-512 is there.
#[allow(clippy::undocumented_unsafe_blocks)]
pub(super) unsafe fn unpack(kind: WeightType, tiles: IntegerTiles, out: *mut u16) {
    // SAFETY: the caller's promise.
    for_format!(kind, F => unsafe { unpack_tile::<F>(tiles, out) })
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn unpack_tile<F: Format>(tile: IntegerTiles, out: *mut u16) {
    // SAFETY: 16 lines for each group of the tile.
    unsafe {
        let byte = _mm512_set1_epi32(0xff);
        for g in 0..tile.cols / GROUP {
            let lines = tile.codes.add(g * F::PLANES.lines() * 64);
            let scales = group_scales::<Avx512, F>(tile.scales, g);
            // What a code of zero stands for.
            let zero = |half: usize| {
                let offset = scales.offset[half];
                if F::ZERO == 0 {
                    offset
                } else {
                    _mm512_fnmadd_ps(_mm512_set1_ps(f32::from(F::ZERO)), scales.scale[half], offset)
                }
            };
            let zeros = [zero(0), if has_halves::<F>() { zero(1) } else { zero(0) }];
            for q in 0..8 {
                let half = if has_halves::<F>() { q / 4 } else { 0 };
                let codes = quad_codes::<Avx512, F>(lines, q);
                let value = |code: __m512i| _mm512_fmadd_ps(_mm512_cvtepi32_ps(code), scales.scale[half], zeros[half]);
                let columns = [
                    value(_mm512_and_si512(codes, byte)),
                    value(_mm512_and_si512(_mm512_srli_epi32::<8>(codes), byte)),
                    value(_mm512_and_si512(_mm512_srli_epi32::<16>(codes), byte)),
                    value(_mm512_srli_epi32::<24>(codes)),
                ];
                let to = out.add(g * GROUP * LANES + q * 64);
                _mm512_storeu_si512(to.cast(), pairs(columns[0], columns[1]));
                _mm512_storeu_si512(to.add(32).cast(), pairs(columns[2], columns[3]));
            }
        }
    }
}

/// # Safety
/// As `Bf16::unpack_floats`; AVX-512 is there.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn unpack_floats(kind: WeightType, codes: *const u8, cols: usize, out: *mut u16) {
    macro_rules! columns {
        ($load:expr) => {
            for pair in 0..cols / 2 {
                let line = pairs($load(pair * 2), $load(pair * 2 + 1));
                _mm512_storeu_si512(out.add(pair * 32).cast(), line);
            }
        };
    }
    // SAFETY: `cols` runs of 16 numbers in both.
    unsafe {
        match kind {
            WeightType::F32 => columns!(|k: usize| Avx512::load(codes.cast::<f32>().add(k * LANES))),
            WeightType::F16 => columns!(|k: usize| Avx512::load_half(codes.cast::<u16>().add(k * LANES))),
            _ => columns!(|k: usize| Avx512::load_bf16(codes.cast::<u16>().add(k * LANES))),
        }
    }
}

/// A line of two columns.
///
/// # Safety
/// AVX-512 is there.
#[inline(always)]
pub(super) unsafe fn pairs(first: __m512, second: __m512) -> __m512i {
    // SAFETY: the caller's promise.
    unsafe {
        // Halfway cases go away from zero: one addition instead of three.
        let half = _mm512_set1_epi32(0x8000);
        let first = _mm512_add_epi32(_mm512_castps_si512(first), half);
        let second = _mm512_add_epi32(_mm512_castps_si512(second), half);
        _mm512_mask_mov_epi16(_mm512_srli_epi32::<16>(first), 0xaaaa_aaaa, second)
    }
}

/// # Safety
/// As `Bf16::round`; AVX-512 with bf16 is there.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn round(x: &[f32], out: *mut u16) {
    for (g, group) in x.chunks_exact(GROUP).enumerate() {
        // SAFETY: 32 numbers go to each line; the lines of a row are as far apart as blocks are long.
        unsafe {
            let (first, second) = (Avx512::load(group.as_ptr()), Avx512::load(group.as_ptr().add(LANES)));
            let line: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(second, first));
            _mm512_storeu_si512(out.add(g * GROUP * BLOCK_ROWS).cast(), line);
        }
    }
}
