//! One tile of weights (16 rows) times up to `TOKENS_MAX` token columns.

use crate::lanes::{LANES, Lanes};
use crate::weights::{Format, GROUP, Planes, Scales, WeightType};

/// Token columns per call at most.
pub(crate) const TOKENS_MAX: usize = 8;

/// Results of a call: for each token, the 16 rows.
pub(crate) type TileSums = [[f32; LANES]; TOKENS_MAX];

/// Quantized token columns, one after the other, from the first of the call.
#[derive(Clone, Copy)]
pub(crate) struct QuantColumns {
    /// `[tokens, cols]`
    pub codes: *const i8,
    /// `[tokens, cols / 32]`
    pub scales: *const f32,
    /// `[tokens, cols / 16]`
    pub sums: *const i32,
}

/// One tile of an integer matrix.
#[derive(Clone, Copy)]
pub(crate) struct IntegerTile {
    pub codes: *const u8,
    pub scales: *const u8,
    pub cols: usize,
}

/// Scales and offsets of a group: one each, or two for its halves.
struct GroupScales<L: Lanes> {
    scale: [L::F; 2],
    offset: [L::F; 2],
}

/// Codes times quantized tokens. Sums are exact integers within a group; only scaling is in floats.
///
/// # Safety
/// `tile` and `x` are valid for `tile.cols` columns in format `F` and `N` tokens; the instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn integer_tile<L: Lanes, F: Format, const N: usize>(
    tile: IntegerTile,
    x: QuantColumns,
    out: &mut TileSums,
) {
    // SAFETY: every offset below stays within `cols` columns of the tile and of `N` tokens.
    unsafe {
        let groups = tile.cols / GROUP;
        let halves = F::SCALES.sub_len() == 16;
        let zero = if is_wide::<F>() && L::WIDE_IS_CENTERED { 0 } else { i32::from(F::ZERO) };
        let mut totals = [L::splat(0.0); N];
        for g in 0..groups {
            let scales = group_scales::<L, F>(tile.scales, g);
            let lines = tile.codes.add(g * F::PLANES.lines() * 64);
            let mut dots = [[L::splat_int(0); 2]; N];
            for t in 0..N {
                let sums = x.sums.add((t * groups + g) * 2);
                if halves {
                    dots[t] = [L::splat_int(-zero * *sums), L::splat_int(-zero * *sums.add(1))];
                } else if zero != 0 {
                    dots[t][0] = L::splat_int(-zero * (*sums + *sums.add(1)));
                }
            }
            let columns = x.codes.add(g * GROUP);
            macro_rules! quad {
                ($q:literal) => {
                    let codes = quad_codes::<L, F>(lines, $q);
                    let half = if halves { $q / 4 } else { 0 };
                    for t in 0..N {
                        let four = columns.add(t * tile.cols + $q * 4);
                        dots[t][half] = if is_wide::<F>() {
                            L::dot_wide(dots[t][half], codes, four)
                        } else {
                            L::dot(dots[t][half], codes, four)
                        };
                    }
                };
            }
            quad!(0);
            quad!(4);
            quad!(1);
            quad!(5);
            quad!(2);
            quad!(6);
            quad!(3);
            quad!(7);
            for t in 0..N {
                let scale = *x.scales.add(t * groups + g);
                let sums = x.sums.add((t * groups + g) * 2);
                let factor = L::mul(scales.scale[0], L::splat(scale));
                totals[t] = L::fma(L::to_float(dots[t][0]), factor, totals[t]);
                if halves {
                    let factor = L::mul(scales.scale[1], L::splat(scale));
                    totals[t] = L::fma(L::to_float(dots[t][1]), factor, totals[t]);
                }
                if F::SCALES.has_offset() && halves {
                    totals[t] = L::fma(scales.offset[0], L::splat(scale * *sums as f32), totals[t]);
                    totals[t] = L::fma(scales.offset[1], L::splat(scale * *sums.add(1) as f32), totals[t]);
                } else if F::SCALES.has_offset() {
                    totals[t] = L::fma(scales.offset[0], L::splat(scale * (*sums + *sums.add(1)) as f32), totals[t]);
                }
            }
        }
        for t in 0..N {
            L::store(out[t].as_mut_ptr(), totals[t]);
        }
    }
}

/// Whether codes go beyond 127.
const fn is_wide<F: Format>() -> bool {
    matches!(F::PLANES, Planes::Byte) || F::TABLE.is_some()
}

/// The line of codes of columns `4q..4q+4` of a group, put together from its planes.
#[inline(always)]
unsafe fn quad_codes<L: Lanes, F: Format>(lines: *const u8, q: usize) -> L::B {
    // SAFETY: line numbers stay below `PLANES.lines()`.
    unsafe {
        let line = |i: usize| L::load_line(lines.add(i * 64));
        let nibble = || L::bits(line(q % 4), (q / 4 * 4) as i32, 15);
        let pair = |first: usize, to: i32| L::bits(line(first + q % 2), (q / 2 * 2) as i32 - to, 3 << to);
        let bit = |at: usize, to: i32| L::bits(line(at), q as i32 - to, 1 << to);
        let codes = match F::PLANES {
            Planes::Byte => line(q),
            Planes::Nibble => nibble(),
            Planes::NibbleBit => L::or(nibble(), bit(4, 4)),
            Planes::NibblePair => L::or(nibble(), pair(4, 4)),
            Planes::Pair => pair(0, 0),
            Planes::PairBit => L::or(pair(0, 0), bit(2, 2)),
        };
        match &F::TABLE {
            Some(table) => L::lookup(codes, table),
            None => codes,
        }
    }
}

#[inline(always)]
unsafe fn group_scales<L: Lanes, F: Format>(scales: *const u8, g: usize) -> GroupScales<L> {
    // SAFETY: a record covers `record_groups` groups, and the stream has one for each.
    unsafe {
        let kind: Scales = F::SCALES;
        let record = scales.add(g / kind.record_groups() * kind.record_bytes());
        let scale = L::load_half(record.cast());
        let offset = if kind.has_offset() { L::load_half(record.add(32).cast()) } else { L::splat(0.0) };
        if !kind.is_super() {
            return GroupScales { scale: [scale; 2], offset: [offset; 2] };
        }
        let factors = record.add(kind.header_bytes() + g % kind.record_groups() * kind.group_bytes());
        let subs = GROUP / kind.sub_len();
        let scale_of = |sub: usize| L::mul(scale, L::load_i8(factors.add(sub * 16).cast()));
        let offset_of = |sub: usize| L::mul(offset, L::load_u8(factors.add((subs + sub) * 16)));
        let scale = if subs == 2 { [scale_of(0), scale_of(1)] } else { [scale_of(0); 2] };
        let offset = match (kind.has_offset(), subs) {
            (false, _) => [offset; 2],
            (true, 2) => [offset_of(0), offset_of(1)],
            (true, _) => [offset_of(0); 2],
        };
        GroupScales { scale, offset }
    }
}

/// Float weights times float tokens.
///
/// # Safety
/// `codes` holds `cols` runs of 16 numbers of `kind`, a float type; `x` is `[N, cols]`; the instruction set is there.
#[inline(always)]
pub(crate) unsafe fn float_tile<L: Lanes, const N: usize>(
    kind: WeightType,
    codes: *const u8,
    cols: usize,
    x: *const f32,
    out: &mut TileSums,
) {
    // SAFETY: `k` stays below `cols`.
    unsafe {
        macro_rules! sum_columns {
            ($load:expr) => {{
                // Two sums for each token, to overlap the latency of the additions.
                let mut totals = [[L::splat(0.0); 2]; N];
                macro_rules! column {
                    ($k:expr, $slot:literal) => {
                        let weights = $load($k);
                        for t in 0..N {
                            let value = L::splat(*x.add(t * cols + $k));
                            totals[t][$slot] = L::fma(weights, value, totals[t][$slot]);
                        }
                    };
                }
                for pair in 0..cols / 2 {
                    column!(pair * 2, 0);
                    column!(pair * 2 + 1, 1);
                }
                if cols % 2 == 1 {
                    column!(cols - 1, 0);
                }
                for t in 0..N {
                    L::store(out[t].as_mut_ptr(), L::add(totals[t][0], totals[t][1]));
                }
            }};
        }
        match kind {
            WeightType::F32 => sum_columns!(|k: usize| L::load(codes.cast::<f32>().add(k * LANES))),
            WeightType::F16 => sum_columns!(|k: usize| L::load_half(codes.cast::<u16>().add(k * LANES))),
            _ => sum_columns!(|k: usize| L::load_bf16(codes.cast::<u16>().add(k * LANES))),
        }
    }
}
