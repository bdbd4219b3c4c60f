//! AVX2 with FMA and F16C: a vector is two registers.

use std::arch::x86_64::*;

use super::{FIRST, LANES, Lanes};

#[derive(Clone, Copy)]
pub(crate) struct Avx2;

#[inline(always)]
fn both<A: Copy, R>(v: [A; 2], f: impl Fn(A) -> R) -> [R; 2] {
    [f(v[0]), f(v[1])]
}

// SAFETY (all blocks below): the trait's contract gives the instruction set and valid pointers; loads and stores are
// the unaligned forms.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Lanes for Avx2 {
    type F = [__m256; 2];
    type I = [__m256i; 2];
    type B = [__m256i; 2];
    type W = [__m256i; 2];

    const TOKENS: usize = 2;
    const TILES: usize = 1;
    const SUMS: usize = 6;
    const WIDE_IS_CENTERED: bool = true;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::F {
        unsafe { [_mm256_set1_ps(value); 2] }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::F {
        unsafe { [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))] }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, v: Self::F) {
        unsafe {
            _mm256_storeu_ps(to, v[0]);
            _mm256_storeu_ps(to.add(8), v[1]);
        }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }
    #[inline(always)]
    unsafe fn abs(v: Self::F) -> Self::F {
        unsafe { both(v, |half| _mm256_andnot_ps(_mm256_set1_ps(-0.0), half)) }
    }
    #[inline(always)]
    unsafe fn keep_first(v: Self::F, count: usize) -> Self::F {
        unsafe {
            let kept = FIRST.as_ptr().add(LANES - count).cast::<f32>();
            [_mm256_and_ps(v[0], _mm256_loadu_ps(kept)), _mm256_and_ps(v[1], _mm256_loadu_ps(kept.add(8)))]
        }
    }
    #[inline(always)]
    unsafe fn round(v: Self::F) -> Self::F {
        unsafe { both(v, |half| _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(half)) }
    }
    #[inline(always)]
    unsafe fn scale_by_power(v: Self::F, n: Self::F) -> Self::F {
        unsafe {
            let power = both(n, |half| {
                let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(half), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent))
            });
            Self::mul(v, power)
        }
    }
    #[inline(always)]
    unsafe fn sum(v: Self::F) -> f32 {
        unsafe {
            let eight = _mm256_add_ps(v[0], v[1]);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }
    #[inline(always)]
    unsafe fn largest(v: Self::F) -> f32 {
        unsafe {
            let eight = _mm256_max_ps(v[0], v[1]);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps::<1>(two, two)))
        }
    }

    #[inline(always)]
    unsafe fn load_half(from: *const u16) -> Self::F {
        unsafe { both([from, from.add(8)], |half| _mm256_cvtph_ps(_mm_loadu_si128(half.cast()))) }
    }
    #[inline(always)]
    unsafe fn store_half(to: *mut u16, v: Self::F) {
        unsafe {
            _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[0]));
            _mm_storeu_si128(to.add(8).cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v[1]));
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self::F {
        unsafe {
            both([from, from.add(8)], |half| {
                let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(half.cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
            })
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(from: *const u16) -> [Self::F; 2] {
        unsafe {
            let pairs = both([from, from.add(16)], |half| _mm256_loadu_si256(half.cast()));
            let high = _mm256_set1_epi32(0xffff_0000_u32 as i32);
            [
                both(pairs, |pairs| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(pairs))),
                both(pairs, |pairs| _mm256_castsi256_ps(_mm256_and_si256(pairs, high))),
            ]
        }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self::F {
        unsafe {
            both([from, from.add(8)], |half| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(half.cast()))))
        }
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self::F {
        unsafe {
            both([from, from.add(8)], |half| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(half.cast()))))
        }
    }
    #[inline(always)]
    unsafe fn store_i8(to: *mut i8, v: Self::F) {
        unsafe {
            let ints = both(v, |half| _mm256_cvtps_epi32(half));
            let words =
                both(ints, |half| _mm_packs_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256::<1>(half)));
            _mm_storeu_si128(to.cast(), _mm_packs_epi16(words[0], words[1]));
        }
    }

    #[inline(always)]
    unsafe fn splat_int(value: i32) -> Self::I {
        unsafe { [_mm256_set1_epi32(value); 2] }
    }
    #[inline(always)]
    unsafe fn to_float(v: Self::I) -> Self::F {
        unsafe { both(v, |half| _mm256_cvtepi32_ps(half)) }
    }

    #[inline(always)]
    unsafe fn load_line(from: *const u8) -> Self::B {
        unsafe { both([from, from.add(32)], |half| _mm256_loadu_si256(half.cast())) }
    }
    #[inline(always)]
    unsafe fn bits(line: Self::B, right: i32, mask: u8) -> Self::B {
        unsafe {
            both(line, |half| {
                let shifted = if right > 0 {
                    _mm256_srl_epi16(half, _mm_cvtsi32_si128(right))
                } else if right < 0 {
                    _mm256_sll_epi16(half, _mm_cvtsi32_si128(-right))
                } else {
                    half
                };
                _mm256_and_si256(shifted, _mm256_set1_epi8(mask as i8))
            })
        }
    }
    #[inline(always)]
    unsafe fn or(a: Self::B, b: Self::B) -> Self::B {
        unsafe { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
    }
    #[inline(always)]
    unsafe fn lookup(indices: Self::B, table: &[u8; 16]) -> Self::B {
        unsafe {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            both(indices, |half| _mm256_shuffle_epi8(table, half))
        }
    }
    #[inline(always)]
    unsafe fn dot(sums: Self::I, codes: Self::B, x: *const i8) -> Self::I {
        unsafe {
            let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
            let ones = _mm256_set1_epi16(1);
            // 2 * 127 * 127 stays below the saturation of the 16-bit pair sums.
            let products = both(codes, |half| _mm256_madd_epi16(_mm256_maddubs_epi16(half, x), ones));
            [_mm256_add_epi32(sums[0], products[0]), _mm256_add_epi32(sums[1], products[1])]
        }
    }
    #[inline(always)]
    unsafe fn dot_wide(sums: Self::I, codes: Self::B, x: *const i8) -> Self::I {
        unsafe {
            let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
            let ones = _mm256_set1_epi16(1);
            // Magnitude times signed number: at most 2 * 128 * 127, which does not saturate.
            let products = both(codes, |half| {
                let signed = _mm256_xor_si256(half, _mm256_set1_epi8(-128));
                let pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(x, signed));
                _mm256_madd_epi16(pairs, ones)
            });
            [_mm256_add_epi32(sums[0], products[0]), _mm256_add_epi32(sums[1], products[1])]
        }
    }
    #[inline(always)]
    unsafe fn dot_signed(sums: Self::I, a: Self::B, b: Self::B) -> Self::I {
        unsafe {
            let ones = _mm256_set1_epi16(1);
            // Magnitude times signed number: at most 2 * 127 * 127, which does not saturate.
            let product = |a: __m256i, b: __m256i| {
                _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(a), _mm256_sign_epi8(b, a)), ones)
            };
            [_mm256_add_epi32(sums[0], product(a[0], b[0])), _mm256_add_epi32(sums[1], product(a[1], b[1]))]
        }
    }
    #[inline(always)]
    unsafe fn total(v: Self::I) -> i32 {
        unsafe {
            let eight = _mm256_add_epi32(v[0], v[1]);
            let four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256::<1>(eight));
            let two = _mm_add_epi32(four, _mm_shuffle_epi32::<0b01_00_11_10>(four));
            _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<0b10_11_00_01>(two)))
        }
    }
    #[inline(always)]
    unsafe fn within(from: *const u32, least: u32, span: u32) -> u64 {
        unsafe {
            let (least, span) = (_mm256_set1_epi32(least as i32), _mm256_set1_epi32(span as i32));
            let [low, high] = both([from, from.add(8)], |half| {
                let above = _mm256_sub_epi32(_mm256_loadu_si256(half.cast()), least);
                // There is no unsigned comparison, but a minimum.
                let within = _mm256_cmpeq_epi32(_mm256_min_epu32(above, span), above);
                _mm256_movemask_ps(_mm256_castsi256_ps(within)) as u64
            });
            low | high << 8
        }
    }
    #[inline(always)]
    unsafe fn load_words(from: *const i8) -> Self::W {
        unsafe { both([from, from.add(16)], |half| _mm256_cvtepi8_epi16(_mm_loadu_si128(half.cast()))) }
    }
    #[inline(always)]
    unsafe fn nibble_words(line: Self::B, index: usize) -> Self::W {
        unsafe {
            let shift = _mm_cvtsi32_si128(4 * index as i32);
            both(line, |half| _mm256_and_si256(_mm256_srl_epi16(half, shift), _mm256_set1_epi16(15)))
        }
    }
    #[inline(always)]
    unsafe fn dot_words(sums: Self::I, words: Self::W, x: *const i16) -> Self::I {
        unsafe {
            let x = _mm256_set1_epi32(x.cast::<i32>().read_unaligned());
            let products = both(words, |half| _mm256_madd_epi16(half, x));
            [_mm256_add_epi32(sums[0], products[0]), _mm256_add_epi32(sums[1], products[1])]
        }
    }
    #[inline(always)]
    unsafe fn store_words(to: *mut i16, v: Self::F) {
        unsafe {
            let ints = both(v, |half| _mm256_cvtps_epi32(half));
            // Packs within 128 bits, so the middle quarters are swapped back.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(ints[0], ints[1]));
            _mm256_storeu_si256(to.cast(), words);
        }
    }
}
