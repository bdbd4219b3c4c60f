//! GELU: x times the cumulative normal distribution at x.
//!
//! Candle's own calls an exact error function number by number, which takes longer than the matrix products around it. This one
//! is simple enough to be compiled to vector instructions.

use candle_core::{CpuStorage, CustomOp1, Error, Layout, Result, Shape};

#[derive(Debug)]
pub(crate) struct Gelu;

impl CustomOp1 for Gelu {
    fn name(&self) -> &'static str {
        "gelu"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let CpuStorage::F32(all) = storage else {
            return Err(Error::Msg("gelu is for floats".to_owned()));
        };
        let Some((start, end)) = layout.contiguous_offsets() else {
            return Err(Error::Msg("gelu is for contiguous tensors".to_owned()));
        };
        let out = all[start..end].iter().map(|&x| gelu(x)).collect();
        Ok((CpuStorage::F32(out), layout.shape().clone()))
    }
}

fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// Abramowitz and Stegun 7.1.26; the error is at most 1.5e-7, about the precision of a float near 1.
fn erf(x: f32) -> f32 {
    let magnitude = x.abs();
    let t = 1.0 / (1.0 + 0.327_591_1 * magnitude);
    let polynomial = ((((1.061_405_4 * t - 1.453_152) * t + 1.421_413_7) * t - 0.284_496_74) * t + 0.254_829_6) * t;
    let value = 1.0 - polynomial * exp_of_negative(-magnitude * magnitude);
    value.copysign(x)
}

/// e to the power of a number that is not positive, without the calls and branches of the general one: 2 to a whole number
/// is put together from bits, 2 to the rest (-0.5 to 0.5) is its Taylor polynomial.
fn exp_of_negative(x: f32) -> f32 {
    // Adding it leaves no bits for fractions, and the whole number in the lowest ones.
    const ROUNDING: f32 = 12_582_912.0;
    let power = (x * std::f32::consts::LOG2_E).max(-126.0);
    let rounded = power + ROUNDING;
    let rest = (power - (rounded - ROUNDING)) * std::f32::consts::LN_2;
    let higher = 1.0 / 120.0 + rest * (1.0 / 720.0);
    let polynomial = 1.0 + rest * (1.0 + rest * (0.5 + rest * (1.0 / 6.0 + rest * (1.0 / 24.0 + rest * higher))));
    f32::from_bits((rounded.to_bits() << 23).wrapping_add(1.0_f32.to_bits())) * polynomial
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The series of the error function, summed in doubles.
    fn exact_gelu(x: f64) -> f64 {
        let z = x / std::f64::consts::SQRT_2;
        let (mut term, mut sum) = (z, z);
        for n in 1..200 {
            term *= -z * z / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        0.5 * x * (1.0 + sum * 2.0 / std::f64::consts::PI.sqrt())
    }

    #[test]
    fn it_is_as_exact_as_floats_allow() {
        for step in -500..=500 {
            let x = step as f32 / 100.0;
            let (got, expected) = (f64::from(gelu(x)), exact_gelu(f64::from(x)));
            assert!((got - expected).abs() < 1e-6, "gelu({x}) is {got}, not {expected}");
        }
        assert_eq!(gelu(0.0), 0.0);
        for x in [20.0, 1e4, 1e30] {
            assert_eq!(gelu(x), x);
            assert_eq!(gelu(-x), 0.0);
        }
    }
}
