//! The best evenly spaced values for one group of weights: alternately the nearest codes for a line and the best line
//! for these codes (least squares), from several starts, because each start ends in a minimum of its own.

/// Codes that a format has, as the whole numbers they stand for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Codes {
    pub low: f32,
    pub high: f32,
}

impl Codes {
    pub(super) const fn unsigned(bits: u32) -> Self {
        Self { low: 0.0, high: ((1 << bits) - 1) as f32 }
    }

    /// One more below zero than above.
    pub(super) const fn signed(bits: u32) -> Self {
        let half = (1 << (bits - 1)) as f32;
        Self { low: -half, high: half - 1.0 }
    }
}

/// What a format can add to all weights of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Offset {
    None,
    Free,
    /// Stored as a magnitude to subtract.
    NotPositive,
}

/// Weights are `scale * code + offset`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Line {
    pub scale: f32,
    pub offset: f32,
}

/// What nearest codes on a line leave over: `rest = weight - (scale * code + offset)`, and the sums that least squares
/// needs. Fitting the rests instead of the weights keeps them exact in single precision.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fit {
    pub len: f32,
    /// The sum of squared rests.
    pub error: f32,
    pub codes: f32,
    pub squared_codes: f32,
    pub rests: f32,
    pub rests_times_codes: f32,
}

/// Below this even the smallest half float is too coarse: everything becomes zero.
const SMALLEST: f32 = 1.0 / (1 << 25) as f32;

/// Starts: by how many codes more than there are the weights' range is divided. Finer steps cut the ends off.
const STRETCHES: [f32; 3] = [-0.3, 0.3, 0.9];
/// Improvements from each start. Twice the starts with one improvement more take three times as long and leave 0.1 to
/// 1.3 % less error.
const IMPROVEMENTS: usize = 2;

/// Sums are kept by lanes, which the compiler makes vectors of.
const LANES: usize = 4;

impl Line {
    const ZERO: Self = Self { scale: 0.0, offset: 0.0 };

    /// The line with the least error for `values`.
    pub(super) fn search(values: &[f32], codes: Codes, offset: Offset) -> Self {
        let (least, most) = range(values);
        if least.abs().max(most.abs()) < SMALLEST {
            return Self::ZERO;
        }
        if offset == Offset::None {
            let extreme = if -least > most { least } else { most };
            // The extreme weight gets the lowest code, of which there is one more, or the highest.
            let starts = STRETCHES.iter().flat_map(|stretch| [codes.low - stretch, codes.high + stretch]);
            return Self::best(values, codes, offset, starts.map(|code| Self { scale: extreme / code, offset: 0.0 }));
        }
        let least = if offset == Offset::NotPositive { least.min(0.0) } else { least };
        if most <= least {
            return Self { scale: 0.0, offset: least };
        }
        let starts = STRETCHES.iter().map(|stretch| {
            let scale = (most - least) / (codes.high + stretch);
            Self { scale, offset: least + scale * stretch / 2.0 }.kept_to(offset)
        });
        Self::best(values, codes, offset, starts)
    }

    fn best(values: &[f32], codes: Codes, offset: Offset, starts: impl Iterator<Item = Self>) -> Self {
        let (mut best, mut least_error) = (Self::ZERO, f32::INFINITY);
        for mut line in starts {
            for _ in 0..=IMPROVEMENTS {
                let fit = line.fit(values, codes);
                if fit.error < least_error {
                    (best, least_error) = (line, fit.error);
                }
                line = line.improved(&fit, offset);
            }
        }
        best
    }

    /// Takes the nearest code for every value. `values` is a multiple of `LANES` long.
    pub(super) fn fit(&self, values: &[f32], codes: Codes) -> Fit {
        let inverse = self.inverse();
        let mut sums = [[0f32; LANES]; 5];
        for chunk in values.as_chunks::<LANES>().0 {
            for l in 0..LANES {
                let code = round(((chunk[l] - self.offset) * inverse).clamp(codes.low, codes.high));
                let rest = chunk[l] - (self.scale * code + self.offset);
                sums[0][l] += rest * rest;
                sums[1][l] += code;
                sums[2][l] += code * code;
                sums[3][l] += rest;
                sums[4][l] += rest * code;
            }
        }
        let [error, codes, squared_codes, rests, rests_times_codes] = totals(&sums);
        Fit { len: values.len() as f32, error, codes, squared_codes, rests, rests_times_codes }
    }

    /// The best line for the codes of `fit`.
    fn improved(&self, fit: &Fit, offset: Offset) -> Self {
        if offset != Offset::None {
            let determinant = fit.squared_codes * fit.len - fit.codes * fit.codes;
            if determinant > 0.0 {
                let scale = (fit.rests_times_codes * fit.len - fit.rests * fit.codes) / determinant;
                let shift = (fit.rests * fit.squared_codes - fit.rests_times_codes * fit.codes) / determinant;
                let line = Self { scale: self.scale + scale, offset: self.offset + shift };
                if line == line.kept_to(offset) {
                    return line;
                }
            }
        }
        if fit.squared_codes == 0.0 {
            return *self;
        }
        // No offset, or one that may not be.
        let products = fit.rests_times_codes + self.scale * fit.squared_codes + self.offset * fit.codes;
        Self { scale: products / fit.squared_codes, offset: 0.0 }
    }

    fn kept_to(self, offset: Offset) -> Self {
        match offset {
            Offset::NotPositive if self.offset > 0.0 => Self { offset: 0.0, ..self },
            _ => self,
        }
    }

    /// The nearest codes, counted from the lowest.
    pub(super) fn write_codes(&self, values: &[f32], codes: Codes, out: &mut [u8]) {
        let inverse = self.inverse();
        for (code, value) in out.iter_mut().zip(values) {
            let nearest = round(((value - self.offset) * inverse).clamp(codes.low, codes.high));
            *code = (nearest - codes.low) as u8;
        }
    }

    fn inverse(&self) -> f32 {
        if self.scale == 0.0 { 0.0 } else { self.scale.recip() }
    }
}

/// Not inlined, because the compiler then arranges the vectors of the loop before for these few additions after it.
#[inline(never)]
fn totals(sums: &[[f32; LANES]; 5]) -> [f32; 5] {
    sums.map(|lanes| lanes.iter().sum())
}

/// The nearest whole number of a number below 2^22. Without SSE4.1, `f32::round` would be a call.
fn round(value: f32) -> f32 {
    const ONE_AND_A_HALF_TIMES_2_POW_23: f32 = 12_582_912.0;
    (value + ONE_AND_A_HALF_TIMES_2_POW_23) - ONE_AND_A_HALF_TIMES_2_POW_23
}

fn range(values: &[f32]) -> (f32, f32) {
    values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(least, most), value| {
        (if *value < least { *value } else { least }, if *value > most { *value } else { most })
    })
}
