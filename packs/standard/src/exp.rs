//! The exponential function.

/// `e^x` of numbers between -87 and 88, of others that of the bound.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    /// The logarithm of 2 in two parts: the first has few digits, so its multiples are exact.
    const LN2: (f32, f32) = (0.693_359_4, -2.121_944_4e-4);
    /// Added to a number, leaves it rounded in the last digits.
    const ROUND: f32 = 12_582_912.0;
    let x = if x < -87.0 { -87.0 } else { x };
    let x = if x > 88.0 { 88.0 } else { x };
    let shifted = x * core::f32::consts::LOG2_E + ROUND;
    let twos = shifted - ROUND;
    let r = x - twos * LN2.0 - twos * LN2.1;
    let series = 1.0 + r * (1.0 + r * (0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0 + r / 720.0)))));
    let exponent = shifted.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    series * f32::from_bits(exponent)
}
