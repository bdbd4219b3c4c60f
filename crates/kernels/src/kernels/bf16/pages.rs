//! Keys and values of pages as operands of matmuls in bf16.

use std::arch::x86_64::*;

use super::unpack::pairs;
use crate::kernels::attention::Cell;
use crate::kernels::attention::integers::{Bytes, Codes, Nibbles};
use crate::kernels::attention::positive_half;
use crate::lanes::{Avx512, LANES, Lanes};
use crate::weights::GROUP;
use ruvllm_runner::{KEY_GROUP, KeyFormat, PAGE_TOKENS, VALUE_GROUP, ValueFormat};

/// Writes the keys of a cell as a tile: lines of 16 tokens times 2 dimensions, and of zeros up to a multiple of 32 dimensions.
///
/// # Safety
/// The cell holds keys of `dim`, a multiple of 16; there is room for as many lines; AVX-512 is there.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn unpack_keys(cell: Cell, dim: usize, out: *mut u16) {
    // SAFETY: offsets as in the layout of pages.
    unsafe {
        match cell.format.keys {
            KeyFormat::F16 => {
                let keys = cell.lines.cast::<u16>();
                for d in (0..dim).step_by(2) {
                    let [first, second] = [d, d + 1].map(|d| Avx512::load_half(keys.add(d * PAGE_TOKENS)));
                    put_line(out, d / 2, pairs(first, second));
                }
            }
            KeyFormat::Q8 => {
                for quad in 0..dim / 4 {
                    let codes = Avx512::load_line(cell.lines.add(quad * 64));
                    let scales = cell.scales.cast::<u16>().add(quad * 4 / KEY_GROUP * PAGE_TOKENS);
                    let scale = Avx512::load_half(scales);
                    put_quad(out, quad, codes, [(scale, _mm512_mul_ps(scale, _mm512_set1_ps(-128.0))); 4]);
                }
            }
            KeyFormat::Q6 => channel_keys::<6>(cell, dim, out),
            KeyFormat::Q4 => channel_keys::<4>(cell, dim, out),
        }
        for line in dim / 2..dim.next_multiple_of(GROUP) / 2 {
            put_line(out, line, _mm512_setzero_si512());
        }
    }
}

#[inline(always)]
unsafe fn channel_keys<const BITS: u32>(cell: Cell, dim: usize, out: *mut u16) {
    // SAFETY: a byte of scales and of offsets for each of `dim` channels, then two factors; lines as in the layout.
    unsafe {
        let (offsets, factors) = (cell.scales.add(dim).cast::<i8>(), cell.scales.add(2 * dim));
        let [scale_factor, offset_factor] = [positive_half(factors), positive_half(factors.add(2))];
        let zero = (1 << (BITS - 1)) as f32;
        let pair_lines = cell.lines.add(KeyFormat::Q4.line_bytes(dim));
        for group in 0..dim.div_ceil(KEY_GROUP) {
            let quads = (dim - group * KEY_GROUP).min(KEY_GROUP) / 4;
            for quad in 0..quads {
                let line = Avx512::load_line(cell.lines.add(group * 256 + quad % (quads / 2) * 64));
                let mut codes = Avx512::bits(line, (quad / (quads / 2) * 4) as i32, 15);
                if BITS == 6 {
                    let line = Avx512::load_line(pair_lines.add(group * 128 + quad % (quads / 4) * 64));
                    codes = Avx512::or(codes, Avx512::bits(line, (quad / (quads / 4) * 2) as i32 - 4, 3 << 4));
                }
                let first = group * KEY_GROUP + quad * 4;
                let of_channel = |d: usize| {
                    let scale = f32::from(*cell.scales.add(first + d)) * scale_factor;
                    let offset = f32::from(*offsets.add(first + d)) * offset_factor;
                    (Avx512::splat(scale), Avx512::splat(offset - zero * scale))
                };
                put_quad(out, first / 4, codes, [0, 1, 2, 3].map(of_channel));
            }
        }
    }
}

/// Writes four dimensions of 16 tokens, whose codes are the bytes of each lane: `code * scale + offset`.
#[inline(always)]
unsafe fn put_quad(out: *mut u16, quad: usize, codes: __m512i, scales: [(__m512, __m512); 4]) {
    // SAFETY: the caller's promise.
    unsafe {
        let byte = _mm512_set1_epi32(0xff);
        let value = |code: __m512i, d: usize| _mm512_fmadd_ps(_mm512_cvtepi32_ps(code), scales[d].0, scales[d].1);
        let columns = [
            value(_mm512_and_si512(codes, byte), 0),
            value(_mm512_and_si512(_mm512_srli_epi32::<8>(codes), byte), 1),
            value(_mm512_and_si512(_mm512_srli_epi32::<16>(codes), byte), 2),
            value(_mm512_srli_epi32::<24>(codes), 3),
        ];
        put_line(out, quad * 2, pairs(columns[0], columns[1]));
        put_line(out, quad * 2 + 1, pairs(columns[2], columns[3]));
    }
}

/// Writes the values of the first `tokens` tokens of a cell, and zeros for the others: for each 16 dimensions, lines of these
/// times 2 tokens, `stride` numbers after those of the 16 dimensions before.
///
/// # Safety
/// The cell holds values of `dim`, a multiple of 16; there is room for as many lines; AVX-512 is there.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn unpack_values(cell: Cell, dim: usize, tokens: usize, out: *mut u16, stride: usize) {
    // SAFETY: offsets as in the layout of pages.
    unsafe {
        match cell.format.values {
            ValueFormat::F16 => {
                let values = cell.value_lines(dim).cast::<u16>();
                for part in 0..dim / LANES {
                    for token in (0..PAGE_TOKENS).step_by(2) {
                        let of_token = |token: usize| {
                            if token < tokens {
                                Avx512::load_half(values.add(token * dim + part * LANES))
                            } else {
                                _mm512_setzero_ps()
                            }
                        };
                        put_line(out.add(part * stride), token / 2, pairs(of_token(token), of_token(token + 1)));
                    }
                }
            }
            ValueFormat::Q8 => integer_values::<Bytes>(cell, dim, tokens, out, stride),
            ValueFormat::Q4 => integer_values::<Nibbles>(cell, dim, tokens, out, stride),
        }
    }
}

#[inline(always)]
unsafe fn integer_values<C: Codes>(cell: Cell, dim: usize, tokens: usize, out: *mut u16, stride: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let (mut scales, mut zeros) = ([0f32; PAGE_TOKENS], [0f32; PAGE_TOKENS]);
        for part in 0..dim / LANES {
            let group = part * LANES / VALUE_GROUP;
            if (part * LANES).is_multiple_of(VALUE_GROUP) {
                let scale = Avx512::keep_first(C::scales::<Avx512>(&cell, dim, group), tokens);
                Avx512::store(scales.as_mut_ptr(), scale);
                if C::HAS_ZEROS {
                    let zero = _mm512_mul_ps(C::zeros::<Avx512>(&cell, dim, group), _mm512_set1_ps(-1.0 / 16.0));
                    Avx512::store(zeros.as_mut_ptr(), _mm512_mul_ps(Avx512::keep_first(zero, tokens), scale));
                }
            }
            let lines = cell.value_lines(dim).add(part * C::LINES * 64);
            for pair in 0..PAGE_TOKENS / 2 {
                let words = C::tokens::<Avx512>(lines, pair / 4, pair % 4);
                let codes = [_mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(words)), _mm512_srai_epi32::<16>(words)];
                let value = |i: usize| {
                    let token = pair * 2 + i;
                    let (scale, zero) = (Avx512::splat(scales[token]), Avx512::splat(zeros[token]));
                    _mm512_fmadd_ps(_mm512_cvtepi32_ps(codes[i]), scale, zero)
                };
                put_line(out.add(part * stride), pair, pairs(value(0), value(1)));
            }
        }
    }
}

#[inline(always)]
unsafe fn put_line(out: *mut u16, line: usize, numbers: __m512i) {
    // SAFETY: the caller's promise that there is room for the line.
    unsafe { _mm512_storeu_si512(out.add(line * 2 * LANES).cast(), numbers) }
}
