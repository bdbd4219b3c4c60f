//! Lanes as arrays: works everywhere, and says plainly what each primitive means.

use half::{bf16, f16};

use super::{LANES, Lanes};

#[derive(Clone, Copy)]
pub(crate) struct Scalar;

#[inline(always)]
fn map(mut f: impl FnMut(usize) -> f32) -> [f32; LANES] {
    let mut numbers = [0.0; LANES];
    for (i, number) in numbers.iter_mut().enumerate() {
        *number = f(i);
    }
    numbers
}

impl Lanes for Scalar {
    type F = [f32; LANES];
    type I = [i32; LANES];
    type B = [u8; 64];
    type W = [i16; 32];

    const TOKENS: usize = 2;
    const TILES: usize = 1;
    const SUMS: usize = 2;
    const WIDE_IS_CENTERED: bool = false;

    unsafe fn splat(value: f32) -> Self::F {
        [value; LANES]
    }
    unsafe fn load(from: *const f32) -> Self::F {
        // SAFETY: the caller gives 16 floats.
        unsafe { from.cast::<Self::F>().read_unaligned() }
    }
    unsafe fn store(to: *mut f32, v: Self::F) {
        // SAFETY: the caller gives room for 16 floats.
        unsafe { to.cast::<Self::F>().write_unaligned(v) }
    }
    unsafe fn add(a: Self::F, b: Self::F) -> Self::F {
        map(|i| a[i] + b[i])
    }
    unsafe fn sub(a: Self::F, b: Self::F) -> Self::F {
        map(|i| a[i] - b[i])
    }
    unsafe fn mul(a: Self::F, b: Self::F) -> Self::F {
        map(|i| a[i] * b[i])
    }
    unsafe fn div(a: Self::F, b: Self::F) -> Self::F {
        map(|i| a[i] / b[i])
    }
    unsafe fn max(a: Self::F, b: Self::F) -> Self::F {
        map(|i| a[i].max(b[i]))
    }
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // Not `mul_add`: without an FMA instruction that is a slow library call.
        map(|i| a[i] * b[i] + c[i])
    }
    unsafe fn abs(v: Self::F) -> Self::F {
        map(|i| v[i].abs())
    }
    unsafe fn keep_first(v: Self::F, count: usize) -> Self::F {
        map(|i| if i < count { v[i] } else { 0.0 })
    }
    unsafe fn round(v: Self::F) -> Self::F {
        map(|i| v[i].round_ties_even())
    }
    unsafe fn scale_by_power(v: Self::F, n: Self::F) -> Self::F {
        map(|i| v[i] * f32::from_bits(((n[i] as i32 + 127) as u32) << 23))
    }
    unsafe fn sum(v: Self::F) -> f32 {
        v.iter().sum()
    }
    unsafe fn largest(v: Self::F) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    unsafe fn load_half(from: *const u16) -> Self::F {
        // SAFETY: the caller gives 16 halves.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        map(|i| f16::from_bits(bits[i]).to_f32())
    }
    unsafe fn store_half(to: *mut u16, v: Self::F) {
        let bits = v.map(|x| f16::from_f32(x).to_bits());
        // SAFETY: the caller gives room for 16 halves.
        unsafe { to.cast::<[u16; LANES]>().write_unaligned(bits) }
    }
    unsafe fn load_bf16(from: *const u16) -> Self::F {
        // SAFETY: the caller gives 16 numbers.
        let bits = unsafe { from.cast::<[u16; LANES]>().read_unaligned() };
        map(|i| bf16::from_bits(bits[i]).to_f32())
    }
    unsafe fn load_bf16_pairs(from: *const u16) -> [Self::F; 2] {
        // SAFETY: the caller gives 32 numbers.
        let bits = unsafe { from.cast::<[[u16; 2]; LANES]>().read_unaligned() };
        [0, 1].map(|which| map(|i| bf16::from_bits(bits[i][which]).to_f32()))
    }
    unsafe fn load_i8(from: *const i8) -> Self::F {
        // SAFETY: the caller gives 16 bytes.
        let bytes = unsafe { from.cast::<[i8; LANES]>().read_unaligned() };
        map(|i| f32::from(bytes[i]))
    }
    unsafe fn load_u8(from: *const u8) -> Self::F {
        // SAFETY: the caller gives 16 bytes.
        let bytes = unsafe { from.cast::<[u8; LANES]>().read_unaligned() };
        map(|i| f32::from(bytes[i]))
    }
    unsafe fn store_i8(to: *mut i8, v: Self::F) {
        // SAFETY: the caller gives room for 16 bytes.
        unsafe { to.cast::<[i8; LANES]>().write_unaligned(v.map(|x| x as i8)) }
    }

    unsafe fn splat_int(value: i32) -> Self::I {
        [value; LANES]
    }
    unsafe fn to_float(v: Self::I) -> Self::F {
        map(|i| v[i] as f32)
    }

    unsafe fn load_line(from: *const u8) -> Self::B {
        // SAFETY: the caller gives 64 bytes.
        unsafe { from.cast::<Self::B>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn bits(mut line: Self::B, right: i32, mask: u8) -> Self::B {
        let (right, left) = (right.max(0) as u32, (-right).max(0) as u32);
        for byte in &mut line {
            *byte = byte.wrapping_shr(right).wrapping_shl(left) & mask;
        }
        line
    }
    unsafe fn or(a: Self::B, b: Self::B) -> Self::B {
        std::array::from_fn(|i| a[i] | b[i])
    }
    unsafe fn lookup(indices: Self::B, table: &[u8; 16]) -> Self::B {
        indices.map(|index| table[usize::from(index)])
    }
    /// Loops over wrapping numbers, which a compiler turns into vectors even where it checks all others.
    #[inline(always)]
    unsafe fn dot(mut sums: Self::I, codes: Self::B, x: *const i8) -> Self::I {
        // SAFETY: the caller gives 4 numbers.
        let x = unsafe { x.cast::<[i8; 4]>().read_unaligned() }.map(i32::from);
        for (sum, codes) in sums.iter_mut().zip(codes.as_chunks::<4>().0) {
            for (code, x) in codes.iter().zip(&x) {
                *sum = sum.wrapping_add(i32::from(*code).wrapping_mul(*x));
            }
        }
        sums
    }
    #[inline(always)]
    unsafe fn dot_wide(sums: Self::I, codes: Self::B, x: *const i8) -> Self::I {
        // SAFETY: the same contract.
        unsafe { Self::dot(sums, codes, x) }
    }
    unsafe fn dot_signed(sums: Self::I, a: Self::B, b: Self::B) -> Self::I {
        let product = |i: usize| i32::from(a[i] as i8) * i32::from(b[i] as i8);
        std::array::from_fn(|lane| sums[lane] + (lane * 4..lane * 4 + 4).map(product).sum::<i32>())
    }
    unsafe fn total(v: Self::I) -> i32 {
        v.iter().sum()
    }
    unsafe fn within(from: *const u32, least: u32, span: u32) -> u64 {
        // SAFETY: the caller gives 16 numbers.
        let numbers = unsafe { from.cast::<[u32; LANES]>().read_unaligned() };
        let bit = |(i, number): (usize, &u32)| u64::from(number.wrapping_sub(least) <= span) << i;
        numbers.iter().enumerate().map(bit).sum()
    }
    unsafe fn load_words(from: *const i8) -> Self::W {
        // SAFETY: the caller gives 32 bytes.
        unsafe { from.cast::<[i8; 32]>().read_unaligned() }.map(i16::from)
    }
    unsafe fn nibble_words(line: Self::B, index: usize) -> Self::W {
        std::array::from_fn(|i| i16::from(line[2 * i + index / 2] >> (index % 2 * 4) & 15))
    }
    unsafe fn dot_words(sums: Self::I, words: Self::W, x: *const i16) -> Self::I {
        // SAFETY: the caller gives 2 numbers.
        let x = unsafe { x.cast::<[i16; 2]>().read_unaligned() };
        let product = |lane: usize| (0..2).map(|j| i32::from(words[lane * 2 + j]) * i32::from(x[j])).sum::<i32>();
        std::array::from_fn(|lane| sums[lane] + product(lane))
    }
    unsafe fn store_words(to: *mut i16, v: Self::F) {
        // SAFETY: the caller gives room for 16 words.
        unsafe { to.cast::<[i16; LANES]>().write_unaligned(v.map(|x| x.round_ties_even() as i16)) }
    }
}
