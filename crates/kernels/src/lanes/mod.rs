//! Sixteen lanes: the one vector shape in which all kernels are written.
//!
//! A kernel is written once over `Lanes` and compiled for each instruction set; here are the primitives that differ.
//! Sixteen is the number of rows in a weight tile and of tokens in a KV page, so a vector never has a tail of its own.

mod scalar;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::{Neon, NeonDot, NeonI8mm};
pub(crate) use scalar::Scalar;

/// Number of lanes.
pub(crate) const LANES: usize = 16;

/// All bits of 16 numbers, then none of 16: what is kept of the first `n` lanes stands at `16 - n`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
const FIRST: [u32; 2 * LANES] = {
    let mut bits = [0; 2 * LANES];
    let mut i = 0;
    while i < LANES {
        bits[i] = u32::MAX;
        i += 1;
    }
    bits
};

/// The primitives of one instruction set.
///
/// # Safety
/// Every method may only be called where the instruction set is available, from code compiled for it. Pointers must
/// be valid for the 16 (`load*`, `store*`), 64 (`load_line`), 32 (`load_words`, `load_bf16_pairs`), 4 (`dot*`) or 2 (`dot_words`) elements that
/// the method touches.
pub(crate) trait Lanes: Copy + 'static {
    /// 16 floats.
    type F: Copy;
    /// 16 sums of products.
    type I: Copy;
    /// A line of 64 codes, 4 for each lane.
    type B: Copy;
    /// 32 signed words, 2 for each lane.
    type W: Copy;

    /// Token columns that a matmul takes at once, with `TILES` tiles of weights.
    const TOKENS: usize;
    const TILES: usize;
    /// Vectors of sums that a loop of attention keeps in registers, beside what it multiplies.
    const SUMS: usize;
    /// Whether there is a product of two tokens at once. Their sums are then kept mingled, between `mingle` and `part`.
    const PAIRS: bool = false;
    /// Whether `dot_wide` takes codes as `code - 128`.
    const WIDE_IS_CENTERED: bool;
    /// What `dot_signed` adds too much, for each number of `b`: this times the number.
    const SIGNED_BIAS: i32 = 0;

    unsafe fn splat(value: f32) -> Self::F;
    unsafe fn load(from: *const f32) -> Self::F;
    unsafe fn store(to: *mut f32, v: Self::F);
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    unsafe fn abs(v: Self::F) -> Self::F;
    /// The first `count` numbers (at most 16); zeros for the others, whatever these are.
    unsafe fn keep_first(v: Self::F, count: usize) -> Self::F;
    /// To the nearest whole number, ties to even.
    unsafe fn round(v: Self::F) -> Self::F;
    /// `v * 2^n` for whole `n` in -126..=127.
    unsafe fn scale_by_power(v: Self::F, n: Self::F) -> Self::F;
    unsafe fn sum(v: Self::F) -> f32;
    unsafe fn largest(v: Self::F) -> f32;

    unsafe fn load_half(from: *const u16) -> Self::F;
    unsafe fn store_half(to: *mut u16, v: Self::F);
    unsafe fn load_bf16(from: *const u16) -> Self::F;
    /// 16 pairs of bf16: the first of each pair, and the second.
    unsafe fn load_bf16_pairs(from: *const u16) -> [Self::F; 2];
    unsafe fn load_i8(from: *const i8) -> Self::F;
    unsafe fn load_u8(from: *const u8) -> Self::F;
    /// Stores whole numbers in -127..=127.
    unsafe fn store_i8(to: *mut i8, v: Self::F);

    /// Stores the nearest whole numbers (ties to even) of two vectors, all in -127..=127, and gives the sum of each.
    #[inline(always)]
    unsafe fn store_codes(to: *mut i8, v: [Self::F; 2]) -> [i32; 2] {
        // SAFETY: the caller's promise covers these calls too; there is room for both vectors.
        unsafe {
            let v = [Self::round(v[0]), Self::round(v[1])];
            Self::store_i8(to, v[0]);
            Self::store_i8(to.add(LANES), v[1]);
            [Self::sum(v[0]) as i32, Self::sum(v[1]) as i32]
        }
    }

    unsafe fn splat_int(value: i32) -> Self::I;
    unsafe fn to_float(v: Self::I) -> Self::F;

    unsafe fn load_line(from: *const u8) -> Self::B;
    /// Each byte shifted right (left if negative), then masked; bits that come from a neighbour must be masked off.
    unsafe fn bits(line: Self::B, right: i32, mask: u8) -> Self::B;
    unsafe fn or(a: Self::B, b: Self::B) -> Self::B;
    /// Each byte (0..16) replaced by its entry.
    unsafe fn lookup(indices: Self::B, table: &[u8; 16]) -> Self::B;
    /// Adds to each lane the dot product of its 4 codes (at most 127) and the 4 numbers at `x`.
    unsafe fn dot(sums: Self::I, codes: Self::B, x: *const i8) -> Self::I;
    /// `dot` for codes up to 255.
    unsafe fn dot_wide(sums: Self::I, codes: Self::B, x: *const i8) -> Self::I;

    /// Adds to each lane the dot product of its 4 signed numbers in each line, none of which is -128; and the bias.
    unsafe fn dot_signed(sums: Self::I, a: Self::B, b: Self::B) -> Self::I;
    /// The sum of all lanes.
    unsafe fn total(v: Self::I) -> i32;
    /// Which of 16 numbers lie in `least..=least + span`, the first in the lowest bit.
    unsafe fn within(from: *const u32, least: u32, span: u32) -> u64;

    /// 32 signed bytes.
    unsafe fn load_words(from: *const i8) -> Self::W;
    /// Nibble `index` (0..4, the lowest first) of each word of a line.
    unsafe fn nibble_words(line: Self::B, index: usize) -> Self::W;
    /// Adds to each lane the dot product of its 2 words and the 2 numbers at `x`. None of these is -32768.
    unsafe fn dot_words(sums: Self::I, words: Self::W, x: *const i16) -> Self::I;
    /// Stores the nearest whole numbers, all in 0..=32767.
    unsafe fn store_words(to: *mut i16, v: Self::F);

    /// The sums of two tokens in the order that `dot_pair` wants.
    #[inline(always)]
    unsafe fn mingle(sums: [Self::I; 2]) -> [Self::I; 2] {
        sums
    }
    /// The reverse of `mingle`.
    #[inline(always)]
    unsafe fn part(sums: [Self::I; 2]) -> [Self::I; 2] {
        sums
    }
    /// Adds to the mingled sums of two tokens the dot products of two neighbouring lines of codes (at most 127, or
    /// centered) and the 8 numbers at each `x`. Only where there are `PAIRS`.
    #[inline(always)]
    unsafe fn dot_pair(_sums: [Self::I; 2], _codes: [Self::B; 2], _x: [*const i8; 2]) -> [Self::I; 2] {
        unreachable!("these lanes have no pairs")
    }
    /// `dot_pair` for codes up to 255.
    #[inline(always)]
    unsafe fn dot_pair_wide(_sums: [Self::I; 2], _codes: [Self::B; 2], _x: [*const i8; 2]) -> [Self::I; 2] {
        unreachable!("these lanes have no pairs")
    }

    /// e^v, with a relative error below 2e-7; e^-87, as good as zero, below -87.
    #[inline(always)]
    unsafe fn exp(v: Self::F) -> Self::F {
        // SAFETY: the caller's promise covers these calls too.
        unsafe {
            let v = Self::max(v, Self::splat(-87.0));
            let n = Self::round(Self::mul(v, Self::splat(std::f32::consts::LOG2_E)));
            // ln 2 in two parts, so that the remainder keeps its low bits.
            let r = Self::fma(n, Self::splat(-0.693_359_4), v);
            let r = Self::fma(n, Self::splat(2.121_944_4e-4), r);
            let mut p = Self::splat(1.388_888_9e-3);
            for c in [8.333_334e-3, 4.166_666_8e-2, 1.666_666_7e-1, 0.5, 1.0, 1.0] {
                p = Self::fma(p, r, Self::splat(c));
            }
            Self::scale_by_power(p, n)
        }
    }
}
