//! NEON: a vector is four registers. `NeonDot` also uses the dot-product extension, `NeonI8mm` the matrix extension.

use std::arch::aarch64::*;
use std::arch::asm;

use super::{FIRST, LANES, Lanes};

type Floats = [float32x4_t; 4];
type Ints = [int32x4_t; 4];
type Bytes = [uint8x16_t; 4];
type Words = [int16x8_t; 4];

#[inline(always)]
fn four<A: Copy, R>(v: [A; 4], f: impl Fn(A) -> R) -> [R; 4] {
    [f(v[0]), f(v[1]), f(v[2]), f(v[3])]
}

#[inline(always)]
fn pairs<A: Copy, B: Copy, R>(a: [A; 4], b: [B; 4], f: impl Fn(A, B) -> R) -> [R; 4] {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

/// The half-float intrinsics are not stable; the instructions are part of every AArch64 processor.
#[inline(always)]
fn widen_half(bits: uint16x4_t) -> float32x4_t {
    let wide: float32x4_t;
    // SAFETY: a register-to-register conversion without side effects.
    unsafe {
        asm!("fcvtl {wide:v}.4s, {bits:v}.4h", wide = lateout(vreg) wide, bits = in(vreg) bits,
             options(pure, nomem, nostack, preserves_flags));
    }
    wide
}

#[inline(always)]
fn narrow_half(v: float32x4_t) -> uint16x4_t {
    let bits: uint16x4_t;
    // SAFETY: as in `widen_half`.
    unsafe {
        asm!("fcvtn {bits:v}.4h, {v:v}.4s", bits = lateout(vreg) bits, v = in(vreg) v,
             options(pure, nomem, nostack, preserves_flags));
    }
    bits
}

/// Four signed products per lane by widening multiplies: pair sums stay below 2 * 128 * 127 and fit 16 bits.
#[inline(always)]
unsafe fn dot_plain(sums: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
    // SAFETY: NEON is part of every AArch64 processor.
    unsafe {
        let low = vmull_s8(vget_low_s8(codes), vget_low_s8(x));
        let high = vmull_s8(vget_high_s8(codes), vget_high_s8(x));
        vpadalq_s16(sums, vpaddq_s16(low, high))
    }
}

/// The same with the `sdot` instruction, whose intrinsic is not stable.
#[inline(always)]
unsafe fn dot_extension(sums: int32x4_t, codes: int8x16_t, x: int8x16_t) -> int32x4_t {
    let mut sums = sums;
    // SAFETY: the caller checked for the extension; registers only.
    unsafe {
        asm!(".arch_extension dotprod", "sdot {sums:v}.4s, {codes:v}.16b, {x:v}.16b",
             sums = inout(vreg) sums, codes = in(vreg) codes, x = in(vreg) x,
             options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// Products of 2 rows and 2 tokens of 8 numbers each, as `[row 0 token 0, row 0 token 1, row 1 token 0, row 1 token 1]`.
#[inline(always)]
unsafe fn matrix_product(sums: int32x4_t, rows: int8x16_t, tokens: int8x16_t) -> int32x4_t {
    let mut sums = sums;
    // SAFETY: the caller checked for the extension; registers only.
    unsafe {
        asm!(".arch_extension i8mm", "smmla {sums:v}.4s, {rows:v}.16b, {tokens:v}.16b",
             sums = inout(vreg) sums, rows = in(vreg) rows, tokens = in(vreg) tokens,
             options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// The sums of two tokens, 8 rows in each half, in the order of `matrix_product`.
#[inline(always)]
unsafe fn mingle([a, b]: [Ints; 2]) -> [Ints; 2] {
    // SAFETY: NEON is part of every AArch64 processor.
    unsafe {
        // Two rows of both tokens: [a0, b0, a1, b1].
        let low = |i: usize| vzip1q_s32(a[i], b[i]);
        let high = |i: usize| vzip2q_s32(a[i], b[i]);
        [[low(0), high(0), low(1), high(1)], [low(2), high(2), low(3), high(3)]]
    }
}

#[inline(always)]
unsafe fn part([first, second]: [Ints; 2]) -> [Ints; 2] {
    // SAFETY: as in `mingle`.
    unsafe {
        let [a, b, c, d] = first;
        let [e, f, g, h] = second;
        [
            [vuzp1q_s32(a, b), vuzp1q_s32(c, d), vuzp1q_s32(e, f), vuzp1q_s32(g, h)],
            [vuzp2q_s32(a, b), vuzp2q_s32(c, d), vuzp2q_s32(e, f), vuzp2q_s32(g, h)],
        ]
    }
}

/// All 16 rows of two neighbouring lines of signed codes, times the 8 numbers at each `x`.
#[inline(always)]
unsafe fn dot_pair(sums: [Ints; 2], codes: [Bytes; 2], x: [*const i8; 2]) -> [Ints; 2] {
    // SAFETY: the caller gives 8 numbers at each `x`, and checked for the extension.
    unsafe {
        let tokens = vcombine_s8(vld1_s8(x[0]), vld1_s8(x[1]));
        let mut sums = sums;
        for i in 0..4 {
            let (left, right) = (vreinterpretq_s32_u8(codes[0][i]), vreinterpretq_s32_u8(codes[1][i]));
            // Rows of 8 columns: the 4 of the one line, then the 4 of the other.
            let rows = [vreinterpretq_s8_s32(vzip1q_s32(left, right)), vreinterpretq_s8_s32(vzip2q_s32(left, right))];
            for (j, rows) in rows.into_iter().enumerate() {
                let at = i * 2 + j;
                sums[at / 4][at % 4] = matrix_product(sums[at / 4][at % 4], rows, tokens);
            }
        }
        sums
    }
}

macro_rules! neon_lanes {
    ($name:ident, $dot:ident, $tokens:literal tokens, pairs $pairs:literal) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        // SAFETY (all blocks below): NEON is part of every AArch64 processor; pointers are valid by the trait's
        // contract, and NEON loads and stores need no alignment.
        #[allow(clippy::undocumented_unsafe_blocks)]
        impl Lanes for $name {
            type F = Floats;
            type I = Ints;
            type B = Bytes;
            type W = Words;

            const TOKENS: usize = $tokens;
            const TILES: usize = 1;
            const SUMS: usize = 6;
            const PAIRS: bool = $pairs;
            const WIDE_IS_CENTERED: bool = true;

            #[inline(always)]
            unsafe fn splat(value: f32) -> Floats {
                unsafe { [vdupq_n_f32(value); 4] }
            }
            #[inline(always)]
            unsafe fn load(from: *const f32) -> Floats {
                unsafe { four([0, 4, 8, 12], |at| vld1q_f32(from.add(at))) }
            }
            #[inline(always)]
            unsafe fn store(to: *mut f32, v: Floats) {
                unsafe { pairs([0, 4, 8, 12], v, |at, part| vst1q_f32(to.add(at), part)) };
            }
            #[inline(always)]
            unsafe fn add(a: Floats, b: Floats) -> Floats {
                unsafe { pairs(a, b, |a, b| vaddq_f32(a, b)) }
            }
            #[inline(always)]
            unsafe fn sub(a: Floats, b: Floats) -> Floats {
                unsafe { pairs(a, b, |a, b| vsubq_f32(a, b)) }
            }
            #[inline(always)]
            unsafe fn mul(a: Floats, b: Floats) -> Floats {
                unsafe { pairs(a, b, |a, b| vmulq_f32(a, b)) }
            }
            #[inline(always)]
            unsafe fn div(a: Floats, b: Floats) -> Floats {
                unsafe { pairs(a, b, |a, b| vdivq_f32(a, b)) }
            }
            #[inline(always)]
            unsafe fn max(a: Floats, b: Floats) -> Floats {
                unsafe { pairs(a, b, |a, b| vmaxq_f32(a, b)) }
            }
            #[inline(always)]
            unsafe fn fma(a: Floats, b: Floats, c: Floats) -> Floats {
                unsafe { [0, 1, 2, 3].map(|i| vfmaq_f32(c[i], a[i], b[i])) }
            }
            #[inline(always)]
            unsafe fn abs(v: Floats) -> Floats {
                unsafe { four(v, |part| vabsq_f32(part)) }
            }
            #[inline(always)]
            unsafe fn keep_first(v: Floats, count: usize) -> Floats {
                unsafe {
                    let kept = FIRST.as_ptr().add(LANES - count);
                    pairs([0, 4, 8, 12], v, |at, part| {
                        vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(part), vld1q_u32(kept.add(at))))
                    })
                }
            }
            #[inline(always)]
            unsafe fn round(v: Floats) -> Floats {
                unsafe { four(v, |part| vrndnq_f32(part)) }
            }
            #[inline(always)]
            unsafe fn scale_by_power(v: Floats, n: Floats) -> Floats {
                unsafe {
                    pairs(v, n, |v, n| {
                        let exponent = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
                        vmulq_f32(v, vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent)))
                    })
                }
            }
            #[inline(always)]
            unsafe fn sum(v: Floats) -> f32 {
                unsafe { vaddvq_f32(vaddq_f32(vaddq_f32(v[0], v[1]), vaddq_f32(v[2], v[3]))) }
            }
            #[inline(always)]
            unsafe fn largest(v: Floats) -> f32 {
                unsafe { vmaxvq_f32(vmaxq_f32(vmaxq_f32(v[0], v[1]), vmaxq_f32(v[2], v[3]))) }
            }

            #[inline(always)]
            unsafe fn load_half(from: *const u16) -> Floats {
                unsafe { four([0, 4, 8, 12], |at| widen_half(vld1_u16(from.add(at)))) }
            }
            #[inline(always)]
            unsafe fn store_half(to: *mut u16, v: Floats) {
                unsafe { pairs([0, 4, 8, 12], v, |at, part| vst1_u16(to.add(at), narrow_half(part))) };
            }
            #[inline(always)]
            unsafe fn load_bf16(from: *const u16) -> Floats {
                unsafe { four([0, 4, 8, 12], |at| vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from.add(at))))) }
            }
            #[inline(always)]
            unsafe fn load_bf16_pairs(from: *const u16) -> [Floats; 2] {
                unsafe {
                    let pairs = four([0, 8, 16, 24], |at| vld1q_u32(from.add(at).cast()));
                    let high = vdupq_n_u32(0xffff_0000);
                    [
                        four(pairs, |pairs| vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs))),
                        four(pairs, |pairs| vreinterpretq_f32_u32(vandq_u32(pairs, high))),
                    ]
                }
            }
            #[inline(always)]
            unsafe fn load_i8(from: *const i8) -> Floats {
                unsafe {
                    let bytes = vld1q_s8(from);
                    let (low, high) = (vmovl_s8(vget_low_s8(bytes)), vmovl_s8(vget_high_s8(bytes)));
                    let words = [vget_low_s16(low), vget_high_s16(low), vget_low_s16(high), vget_high_s16(high)];
                    four(words, |part| vcvtq_f32_s32(vmovl_s16(part)))
                }
            }
            #[inline(always)]
            unsafe fn load_u8(from: *const u8) -> Floats {
                unsafe {
                    let bytes = vld1q_u8(from);
                    let (low, high) = (vmovl_u8(vget_low_u8(bytes)), vmovl_u8(vget_high_u8(bytes)));
                    let words = [vget_low_u16(low), vget_high_u16(low), vget_low_u16(high), vget_high_u16(high)];
                    four(words, |part| vcvtq_f32_u32(vmovl_u16(part)))
                }
            }
            #[inline(always)]
            unsafe fn store_i8(to: *mut i8, v: Floats) {
                unsafe {
                    let words = four(v, |part| vqmovn_s32(vcvtnq_s32_f32(part)));
                    let low = vqmovn_s16(vcombine_s16(words[0], words[1]));
                    let high = vqmovn_s16(vcombine_s16(words[2], words[3]));
                    vst1q_s8(to, vcombine_s8(low, high));
                }
            }

            #[inline(always)]
            unsafe fn splat_int(value: i32) -> Ints {
                unsafe { [vdupq_n_s32(value); 4] }
            }
            #[inline(always)]
            unsafe fn to_float(v: Ints) -> Floats {
                unsafe { four(v, |part| vcvtq_f32_s32(part)) }
            }

            #[inline(always)]
            unsafe fn load_line(from: *const u8) -> Bytes {
                unsafe { four([0, 16, 32, 48], |at| vld1q_u8(from.add(at))) }
            }
            #[inline(always)]
            unsafe fn bits(line: Bytes, right: i32, mask: u8) -> Bytes {
                unsafe {
                    let shift = vdupq_n_s8(-right as i8);
                    four(line, |part| vandq_u8(vshlq_u8(part, shift), vdupq_n_u8(mask)))
                }
            }
            #[inline(always)]
            unsafe fn or(a: Bytes, b: Bytes) -> Bytes {
                unsafe { pairs(a, b, |a, b| vorrq_u8(a, b)) }
            }
            #[inline(always)]
            unsafe fn lookup(indices: Bytes, table: &[u8; 16]) -> Bytes {
                unsafe {
                    let table = vld1q_u8(table.as_ptr());
                    four(indices, |part| vqtbl1q_u8(table, part))
                }
            }
            #[inline(always)]
            unsafe fn dot(sums: Ints, codes: Bytes, x: *const i8) -> Ints {
                unsafe {
                    let x = vreinterpretq_s8_s32(vdupq_n_s32(x.cast::<i32>().read_unaligned()));
                    pairs(sums, codes, |sums, codes| $dot(sums, vreinterpretq_s8_u8(codes), x))
                }
            }
            #[inline(always)]
            unsafe fn dot_wide(sums: Ints, codes: Bytes, x: *const i8) -> Ints {
                unsafe { Self::dot(sums, four(codes, |part| veorq_u8(part, vdupq_n_u8(0x80))), x) }
            }

            #[inline(always)]
            unsafe fn dot_signed(sums: Ints, a: Bytes, b: Bytes) -> Ints {
                let signed = |line: Bytes| four(line, |part| unsafe { vreinterpretq_s8_u8(part) });
                let (a, b) = (signed(a), signed(b));
                let product = |i: usize| unsafe { $dot(sums[i], a[i], b[i]) };
                [product(0), product(1), product(2), product(3)]
            }
            #[inline(always)]
            unsafe fn total(v: Ints) -> i32 {
                unsafe { vaddvq_s32(vaddq_s32(vaddq_s32(v[0], v[1]), vaddq_s32(v[2], v[3]))) }
            }
            #[inline(always)]
            unsafe fn within(from: *const u32, least: u32, span: u32) -> u64 {
                unsafe {
                    let bits = vld1q_u32([1, 2, 4, 8].as_ptr());
                    let quarter = |i: usize| {
                        let above = vsubq_u32(vld1q_u32(from.add(4 * i)), vdupq_n_u32(least));
                        let within = vcleq_u32(above, vdupq_n_u32(span));
                        u64::from(vaddvq_u32(vandq_u32(within, bits))) << (4 * i)
                    };
                    quarter(0) | quarter(1) | quarter(2) | quarter(3)
                }
            }
            #[inline(always)]
            unsafe fn load_words(from: *const i8) -> Words {
                unsafe { four([0, 8, 16, 24], |at| vmovl_s8(vld1_s8(from.add(at)))) }
            }
            #[inline(always)]
            unsafe fn nibble_words(line: Bytes, index: usize) -> Words {
                unsafe {
                    let shift = vdupq_n_s16(-4 * index as i16);
                    four(line, |part| {
                        let words = vshlq_u16(vreinterpretq_u16_u8(part), shift);
                        vreinterpretq_s16_u16(vandq_u16(words, vdupq_n_u16(15)))
                    })
                }
            }
            #[inline(always)]
            unsafe fn dot_words(sums: Ints, words: Words, x: *const i16) -> Ints {
                unsafe {
                    let x = vreinterpret_s16_s32(vdup_n_s32(x.cast::<i32>().read_unaligned()));
                    pairs(sums, words, |sums, words| {
                        let (low, high) = (vmull_s16(vget_low_s16(words), x), vmull_s16(vget_high_s16(words), x));
                        vaddq_s32(sums, vpaddq_s32(low, high))
                    })
                }
            }
            #[inline(always)]
            unsafe fn store_words(to: *mut i16, v: Floats) {
                unsafe {
                    pairs([0, 4, 8, 12], v, |at, part| vst1_s16(to.add(at), vqmovn_s32(vcvtnq_s32_f32(part))));
                }
            }

            #[inline(always)]
            unsafe fn mingle(sums: [Ints; 2]) -> [Ints; 2] {
                unsafe { mingle(sums) }
            }
            #[inline(always)]
            unsafe fn part(sums: [Ints; 2]) -> [Ints; 2] {
                unsafe { part(sums) }
            }
            #[inline(always)]
            unsafe fn dot_pair(sums: [Ints; 2], codes: [Bytes; 2], x: [*const i8; 2]) -> [Ints; 2] {
                unsafe { dot_pair(sums, codes, x) }
            }
            #[inline(always)]
            unsafe fn dot_pair_wide(sums: [Ints; 2], codes: [Bytes; 2], x: [*const i8; 2]) -> [Ints; 2] {
                unsafe { dot_pair(sums, codes.map(|line| four(line, |part| veorq_u8(part, vdupq_n_u8(0x80)))), x) }
            }
        }
    };
}

neon_lanes!(Neon, dot_plain, 2 tokens, pairs false);
neon_lanes!(NeonDot, dot_extension, 2 tokens, pairs false);
neon_lanes!(NeonI8mm, dot_extension, 4 tokens, pairs true);
