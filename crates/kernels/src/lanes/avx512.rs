//! AVX-512 with VNNI: a vector is one register.

use std::arch::x86_64::*;

use super::Lanes;

#[derive(Clone, Copy)]
pub(crate) struct Avx512;

// SAFETY (all blocks below): the trait's contract gives the instruction set and valid pointers; loads and stores are
// the unaligned forms.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Lanes for Avx512 {
    type F = __m512;
    type I = __m512i;
    type B = __m512i;
    type W = __m512i;

    const TOKENS: usize = 8;
    const TILES: usize = 2;
    const SUMS: usize = 16;
    const WIDE_IS_CENTERED: bool = false;
    // Bytes of the one side are unsigned: 128 is added to each of its numbers.
    const SIGNED_BIAS: i32 = 128;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Self::F {
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self::F {
        unsafe { _mm512_loadu_ps(from) }
    }
    #[inline(always)]
    unsafe fn store(to: *mut f32, v: Self::F) {
        unsafe { _mm512_storeu_ps(to, v) }
    }
    #[inline(always)]
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn abs(v: Self::F) -> Self::F {
        unsafe { _mm512_abs_ps(v) }
    }
    #[inline(always)]
    unsafe fn keep_first(v: Self::F, count: usize) -> Self::F {
        unsafe { _mm512_maskz_mov_ps(((1u32 << count) - 1) as u16, v) }
    }
    #[inline(always)]
    unsafe fn round(v: Self::F) -> Self::F {
        unsafe { _mm512_roundscale_ps::<0>(v) }
    }
    #[inline(always)]
    unsafe fn scale_by_power(v: Self::F, n: Self::F) -> Self::F {
        unsafe { _mm512_scalef_ps(v, n) }
    }
    #[inline(always)]
    unsafe fn sum(v: Self::F) -> f32 {
        unsafe { _mm512_reduce_add_ps(v) }
    }
    #[inline(always)]
    unsafe fn largest(v: Self::F) -> f32 {
        unsafe { _mm512_reduce_max_ps(v) }
    }

    #[inline(always)]
    unsafe fn load_half(from: *const u16) -> Self::F {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn store_half(to: *mut u16, v: Self::F) {
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v)) }
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u16) -> Self::F {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_bf16_pairs(from: *const u16) -> [Self::F; 2] {
        unsafe {
            let pairs = _mm512_loadu_si512(from.cast());
            let high = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            [_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(_mm512_and_si512(pairs, high))]
        }
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self::F {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self::F {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))) }
    }
    #[inline(always)]
    unsafe fn store_i8(to: *mut i8, v: Self::F) {
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v))) }
    }

    #[inline(always)]
    unsafe fn store_codes(to: *mut i8, v: [Self::F; 2]) -> [i32; 2] {
        unsafe {
            let halves = v.map(|v| _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v)));
            let codes = _mm256_set_m128i(halves[1], halves[0]);
            _mm256_storeu_si256(to.cast(), codes);
            // Sums of four codes in each lane, then of the four lanes of each half.
            let sums = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), codes);
            let sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32::<0b10_11_00_01>(sums));
            let sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32::<0b01_00_11_10>(sums));
            [_mm256_extract_epi32::<0>(sums), _mm256_extract_epi32::<4>(sums)]
        }
    }

    #[inline(always)]
    unsafe fn splat_int(value: i32) -> Self::I {
        unsafe { _mm512_set1_epi32(value) }
    }
    #[inline(always)]
    unsafe fn to_float(v: Self::I) -> Self::F {
        unsafe { _mm512_cvtepi32_ps(v) }
    }

    #[inline(always)]
    unsafe fn load_line(from: *const u8) -> Self::B {
        unsafe { _mm512_loadu_si512(from.cast()) }
    }
    #[inline(always)]
    unsafe fn bits(line: Self::B, right: i32, mask: u8) -> Self::B {
        unsafe {
            let shifted = if right > 0 {
                _mm512_srl_epi16(line, _mm_cvtsi32_si128(right))
            } else if right < 0 {
                _mm512_sll_epi16(line, _mm_cvtsi32_si128(-right))
            } else {
                line
            };
            _mm512_and_si512(shifted, _mm512_set1_epi8(mask as i8))
        }
    }
    #[inline(always)]
    unsafe fn or(a: Self::B, b: Self::B) -> Self::B {
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn lookup(indices: Self::B, table: &[u8; 16]) -> Self::B {
        unsafe {
            let table = _mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast()));
            _mm512_shuffle_epi8(table, indices)
        }
    }
    #[inline(always)]
    unsafe fn dot(sums: Self::I, codes: Self::B, x: *const i8) -> Self::I {
        unsafe { _mm512_dpbusd_epi32(sums, codes, _mm512_set1_epi32(x.cast::<i32>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn dot_wide(sums: Self::I, codes: Self::B, x: *const i8) -> Self::I {
        unsafe { Self::dot(sums, codes, x) }
    }
    #[inline(always)]
    unsafe fn dot_signed(sums: Self::I, a: Self::B, b: Self::B) -> Self::I {
        unsafe { _mm512_dpbusd_epi32(sums, _mm512_xor_si512(a, _mm512_set1_epi8(-128)), b) }
    }
    #[inline(always)]
    unsafe fn total(v: Self::I) -> i32 {
        unsafe { _mm512_reduce_add_epi32(v) }
    }
    #[inline(always)]
    unsafe fn within(from: *const u32, least: u32, span: u32) -> u64 {
        unsafe {
            let above = _mm512_sub_epi32(_mm512_loadu_si512(from.cast()), _mm512_set1_epi32(least as i32));
            u64::from(_mm512_cmple_epu32_mask(above, _mm512_set1_epi32(span as i32)))
        }
    }
    #[inline(always)]
    unsafe fn load_words(from: *const i8) -> Self::W {
        unsafe { _mm512_cvtepi8_epi16(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn nibble_words(line: Self::B, index: usize) -> Self::W {
        unsafe {
            let low = _mm512_set1_epi16(15);
            match index {
                0 => _mm512_and_si512(line, low),
                1 => _mm512_and_si512(_mm512_srli_epi16::<4>(line), low),
                2 => _mm512_and_si512(_mm512_srli_epi16::<8>(line), low),
                _ => _mm512_srli_epi16::<12>(line),
            }
        }
    }
    #[inline(always)]
    unsafe fn dot_words(sums: Self::I, words: Self::W, x: *const i16) -> Self::I {
        // The form that saturates, which sums never come near: the compiler takes the other one apart into a multiplication
        // and an addition wherever that is shorter in time, and it is not when so many sums are under way.
        unsafe { _mm512_dpwssds_epi32(sums, words, _mm512_set1_epi32(x.cast::<i32>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn store_words(to: *mut i16, v: Self::F) {
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(v))) }
    }
}
