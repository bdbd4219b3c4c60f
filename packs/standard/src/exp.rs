//! The exponential function.

use crate::lanes::Lanes;

/// `e^x` of numbers between -87 and 88, of others that of the bound.
#[inline(always)]
pub fn exp(x: Lanes) -> Lanes {
    /// The logarithm of 2 in two parts: the first has few digits, so its multiples are exact.
    const LN2: (f32, f32) = (0.693_359_4, -2.121_944_4e-4);
    /// Added to a number, leaves it rounded in the last digits.
    const ROUND: f32 = 12_582_912.0;
    const TERMS: [f32; 6] = [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let x = x.clamp(-87.0, 88.0);
    let shifted = x.mul(Lanes::splat(core::f32::consts::LOG2_E)).add(Lanes::splat(ROUND));
    let twos = shifted.sub(Lanes::splat(ROUND));
    let r = x.sub(twos.mul(Lanes::splat(LN2.0))).sub(twos.mul(Lanes::splat(LN2.1)));
    let mut series = Lanes::splat(1.0 / 720.0);
    for term in TERMS {
        series = series.mul(r).add(Lanes::splat(term));
    }
    series.mul(shifted.power_of_two(ROUND))
}
