//! One tile of weights (16 rows) times a few token columns.

use super::prefetch;
use crate::lanes::{LANES, Lanes};
use crate::weights::{Format, GROUP, Planes, Scales, WeightType};

/// How far ahead of its use a line of codes is fetched. The processor does so by itself, but stops at every 4 KiB.
const AHEAD_BYTES: usize = 3 << 10;

/// Where a call leaves its results: for each token, the 16 rows.
#[derive(Clone, Copy)]
pub(crate) struct TileSums {
    pub start: *mut f32,
    /// Elements from one token to the next.
    pub stride: usize,
}

/// Quantized token columns, one after the other, from the first of the call.
#[derive(Clone, Copy)]
pub(crate) struct QuantColumns {
    /// `[tokens, cols]`
    pub codes: *const i8,
    /// `[tokens, cols / 32]`
    pub scales: *const f32,
    /// Sums of codes. `[tokens, cols / 16]`
    pub sums: *const i32,
    /// Scale times sum of codes. `[tokens, cols / 32]`
    pub scaled_sums: *const f32,
    /// What each token's results are multiplied by. `[tokens]`
    pub factors: *const f32,
}

impl QuantColumns {
    /// # Safety
    /// The columns have that many groups, all tokens counted.
    #[inline(always)]
    unsafe fn group(&self, at: usize) -> GroupColumn {
        // SAFETY: the caller's promise.
        unsafe {
            let sums = [*self.sums.add(at * 2), *self.sums.add(at * 2 + 1)];
            GroupColumn { scale: *self.scales.add(at), scaled_sum: *self.scaled_sums.add(at), sums }
        }
    }
}

/// Float token columns, one after the other.
#[derive(Clone, Copy)]
pub(crate) struct FloatColumns {
    /// `[tokens, cols]`
    pub values: *const f32,
    /// As in `QuantColumns`.
    pub factors: *const f32,
}

/// Neighbouring tiles of an integer matrix.
#[derive(Clone, Copy)]
pub(crate) struct IntegerTiles {
    /// Of the first tile.
    pub codes: *const u8,
    pub scales: *const u8,
    /// From one tile to the next.
    pub code_bytes: usize,
    pub scale_bytes: usize,
    pub count: usize,
    pub cols: usize,
}

impl IntegerTiles {
    /// Those from number `first` on.
    #[inline(always)]
    pub(super) fn from(self, first: usize) -> Self {
        let codes = self.codes.wrapping_add(first * self.code_bytes);
        let scales = self.scales.wrapping_add(first * self.scale_bytes);
        Self { codes, scales, count: self.count - first, ..self }
    }
}

/// Scales and offsets of a group: one each, or two for its halves.
pub(super) struct GroupScales<L: Lanes> {
    pub scale: [L::F; 2],
    pub offset: [L::F; 2],
}

impl<L: Lanes> GroupScales<L> {
    /// Adds the products of a group, given as integer sums (of both halves, if these have scales of their own), to a
    /// token's total. One place for all kernels: they give the same bits because they round in the same order.
    ///
    /// # Safety
    /// The instruction set of `L` is there.
    #[inline(always)]
    pub(super) unsafe fn add<F: Format>(&self, total: L::F, dots: [L::I; 2], x: GroupColumn) -> L::F {
        // SAFETY: the caller's promise.
        unsafe {
            let scale = L::splat(x.scale);
            let mut total = L::fma(L::to_float(dots[0]), L::mul(self.scale[0], scale), total);
            if has_halves::<F>() {
                total = L::fma(L::to_float(dots[1]), L::mul(self.scale[1], scale), total);
            }
            if F::SCALES.has_offset() && has_halves::<F>() {
                for half in 0..2 {
                    total = L::fma(self.offset[half], L::splat(x.scale * x.sums[half] as f32), total);
                }
            } else if F::SCALES.has_offset() {
                total = L::fma(self.offset[0], L::splat(x.scaled_sum), total);
            }
            total
        }
    }
}

/// What is known of a group of a token column besides its codes.
#[derive(Clone, Copy)]
pub(super) struct GroupColumn {
    pub scale: f32,
    pub scaled_sum: f32,
    pub sums: [i32; 2],
}

/// Whether the halves of a group have scales of their own.
pub(super) const fn has_halves<F: Format>() -> bool {
    F::SCALES.sub_len() == 16
}

/// Codes of the first `T` tiles times `N` quantized tokens. Sums are exact integers within a group; only scaling is in floats.
/// Several tiles at once share the loads of a token's numbers.
///
/// # Safety
/// `tiles` (at least `T`) and `x` are valid in format `F` and for `N` tokens; `out` has room for the results of
/// the tiles side by side; the instruction set of `L` is there.
#[inline(always)]
pub(crate) unsafe fn integer_tiles<L: Lanes, F: Format, const T: usize, const N: usize>(
    tiles: IntegerTiles,
    x: QuantColumns,
    out: TileSums,
) {
    // SAFETY: every offset below stays within `cols` columns of the tiles and of `N` tokens.
    unsafe {
        let cols = tiles.cols;
        let groups = cols / GROUP;
        let codes_of = |i: usize| tiles.codes.add(i * tiles.code_bytes);
        let halves = has_halves::<F>();
        let zero = if is_wide::<F>() && L::WIDE_IS_CENTERED { 0 } else { i32::from(F::ZERO) };
        let mut totals = [[L::splat(0.0); T]; N];
        for g in 0..groups {
            let mut dots = [[[L::splat_int(0); 2]; T]; N];
            for t in 0..N {
                let sums = x.sums.add((t * groups + g) * 2);
                if halves {
                    dots[t] = [[L::splat_int(-zero * *sums), L::splat_int(-zero * *sums.add(1))]; T];
                } else if zero != 0 {
                    dots[t] = [[L::splat_int(-zero * (*sums + *sums.add(1))); 2]; T];
                }
            }
            let columns = x.codes.add(g * GROUP);
            for i in 0..T {
                // After its last line, a tile's place is taken by the one `T` further on.
                let at = g * F::PLANES.lines() * 64 + AHEAD_BYTES;
                let jump = if at < tiles.code_bytes { 0 } else { (T - 1) * tiles.code_bytes };
                for line in 0..F::PLANES.lines() {
                    prefetch(codes_of(i).wrapping_add(at + jump + line * 64));
                }
            }
            mingle::<L, T, N>(&mut dots);
            // Two quads of one half; pairs of them share the lines of nibbles.
            macro_rules! quads {
                ($q:literal) => {
                    let half = if halves { $q / 4 } else { 0 };
                    for i in 0..T {
                        let lines = codes_of(i).add(g * F::PLANES.lines() * 64);
                        let codes = [quad_codes::<L, F>(lines, $q), quad_codes::<L, F>(lines, $q + 1)];
                        let at = columns.add($q * 4);
                        for t in (0..N).step_by(2) {
                            if L::PAIRS && t + 1 < N {
                                let sums = [dots[t][i][half], dots[t + 1][i][half]];
                                let x = [at.add(t * cols), at.add((t + 1) * cols)];
                                let sums = if is_wide::<F>() {
                                    L::dot_pair_wide(sums, codes, x)
                                } else {
                                    L::dot_pair(sums, codes, x)
                                };
                                (dots[t][i][half], dots[t + 1][i][half]) = (sums[0], sums[1]);
                                continue;
                            }
                            for t in t..N.min(t + 2) {
                                let dot = &mut dots[t][i][half];
                                for quad in 0..2 {
                                    let four = at.add(t * cols + quad * 4);
                                    *dot = if is_wide::<F>() {
                                        L::dot_wide(*dot, codes[quad], four)
                                    } else {
                                        L::dot(*dot, codes[quad], four)
                                    };
                                }
                            }
                        }
                    }
                };
            }
            quads!(0);
            quads!(4);
            quads!(2);
            quads!(6);
            part::<L, T, N>(&mut dots);
            for i in 0..T {
                let scales = group_scales::<L, F>(tiles.scales.add(i * tiles.scale_bytes), g);
                for t in 0..N {
                    totals[t][i] = scales.add::<F>(totals[t][i], dots[t][i], x.group(t * groups + g));
                }
            }
        }
        for t in 0..N {
            for i in 0..T {
                let total = L::mul(totals[t][i], L::splat(*x.factors.add(t)));
                L::store(out.start.add(t * out.stride + i * LANES), total);
            }
        }
    }
}

/// Brings the sums of each two tokens into the order of `Lanes::dot_pair`, where there is one.
#[inline(always)]
unsafe fn mingle<L: Lanes, const T: usize, const N: usize>(dots: &mut [[[L::I; 2]; T]; N]) {
    // SAFETY: the caller's promise that the instruction set is there.
    for_pairs::<L, T, N>(dots, |sums| unsafe { L::mingle(sums) });
}

/// The reverse of `mingle`.
#[inline(always)]
unsafe fn part<L: Lanes, const T: usize, const N: usize>(dots: &mut [[[L::I; 2]; T]; N]) {
    // SAFETY: as above.
    for_pairs::<L, T, N>(dots, |sums| unsafe { L::part(sums) });
}

#[inline(always)]
fn for_pairs<L: Lanes, const T: usize, const N: usize>(
    dots: &mut [[[L::I; 2]; T]; N],
    change: impl Fn([L::I; 2]) -> [L::I; 2],
) {
    for t in (1..N).step_by(2).filter(|_| L::PAIRS) {
        for i in 0..T {
            for half in 0..2 {
                let [a, b] = change([dots[t - 1][i][half], dots[t][i][half]]);
                (dots[t - 1][i][half], dots[t][i][half]) = (a, b);
            }
        }
    }
}

/// Whether codes go beyond 127.
const fn is_wide<F: Format>() -> bool {
    matches!(F::PLANES, Planes::Byte) || F::TABLE.is_some()
}

/// The line of codes of columns `4q..4q+4` of a group, put together from its planes.
#[inline(always)]
pub(super) unsafe fn quad_codes<L: Lanes, F: Format>(lines: *const u8, q: usize) -> L::B {
    // SAFETY: line numbers stay below `PLANES.lines()`.
    unsafe {
        let codes = match F::PLANES {
            Planes::Byte => L::load_line(lines.add(q * 64)),
            Planes::Nibble => nibble::<L>(lines, q),
            Planes::NibbleBit => L::or(nibble::<L>(lines, q), bit::<L>(lines, q, 4, 4)),
            Planes::NibblePair => L::or(nibble::<L>(lines, q), pair::<L>(lines, q, 4, 4)),
            Planes::Pair => pair::<L>(lines, q, 0, 0),
            Planes::PairBit => L::or(pair::<L>(lines, q, 0, 0), bit::<L>(lines, q, 2, 2)),
        };
        match &F::TABLE {
            Some(table) => L::lookup(codes, table),
            None => codes,
        }
    }
}

// Functions, not closures of `quad_codes`: only these are inlined at every level of optimization, and what is not compiled for
// the instruction set of its caller makes a call of each instruction.

/// The four low bits of the codes of a quad, from the first lines on.
#[inline(always)]
unsafe fn nibble<L: Lanes>(lines: *const u8, q: usize) -> L::B {
    // SAFETY: the caller's promise.
    unsafe { L::bits(L::load_line(lines.add(q % 4 * 64)), (q / 4 * 4) as i32, 15) }
}

/// Two bits, from line `first` on, moved up by `to`.
#[inline(always)]
unsafe fn pair<L: Lanes>(lines: *const u8, q: usize, first: usize, to: i32) -> L::B {
    // SAFETY: the caller's promise.
    unsafe { L::bits(L::load_line(lines.add((first + q % 2) * 64)), (q / 2 * 2) as i32 - to, 3 << to) }
}

/// One bit, from line `at`, moved up by `to`.
#[inline(always)]
unsafe fn bit<L: Lanes>(lines: *const u8, q: usize, at: usize, to: i32) -> L::B {
    // SAFETY: the caller's promise.
    unsafe { L::bits(L::load_line(lines.add(at * 64)), q as i32 - to, 1 << to) }
}

#[inline(always)]
pub(super) unsafe fn group_scales<L: Lanes, F: Format>(scales: *const u8, g: usize) -> GroupScales<L> {
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
/// `codes` holds `cols` runs of 16 numbers of `kind`, a float type; `x` holds `N` tokens; the instruction set is there.
#[inline(always)]
pub(crate) unsafe fn float_tile<L: Lanes, const N: usize>(
    kind: WeightType,
    codes: *const u8,
    cols: usize,
    x: FloatColumns,
    out: TileSums,
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
                            let value = L::splat(*x.values.add(t * cols + $k));
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
                    let total = L::add(totals[t][0], totals[t][1]);
                    L::store(out.start.add(t * out.stride), L::mul(total, L::splat(*x.factors.add(t))));
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
