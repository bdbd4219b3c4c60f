//! Rotary positions: by how much each pair of a head's elements turns per token, and how contexts longer than those of the
//! training are reached.

use std::f64::consts::TAU;

use ruvllm_kernels::ops::{RopeStyle, RopeTable};

use crate::error::LoadError;
use crate::formats::gguf::Gguf;
use crate::load::Tensors;

/// Rotary positions of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    pub base: f64,
    /// Elements of a head that are rotated.
    pub dims: usize,
    pub style: RopeStyle,
    pub scaling: RopeScaling,
    /// Whether frequencies are divided by those of the file, if it has any.
    pub has_divisors: bool,
}

/// How positions beyond the training's context are reached.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not, or by a divisor for each frequency that the file has.
    None,
    /// All frequencies are divided by this.
    Linear {
        factor: f64,
    },
    Yarn(Yarn),
    LongRope(LongRope),
}

/// Low frequencies are divided, high ones stay, and there is a ramp between the two.
#[derive(Clone, Debug, PartialEq)]
pub struct Yarn {
    pub factor: f64,
    /// Context of the training.
    pub original_context: usize,
    /// Turns within the original context from which on a frequency stays as it is.
    pub fast_turns: f64,
    /// Turns up to which it is divided.
    pub slow_turns: f64,
    /// Whether the ramp begins and ends at whole pairs.
    pub whole_pairs: bool,
    /// What queries and keys are multiplied by.
    pub amplitude: f64,
}

/// Each frequency has two divisors: for contexts within that of the training, and for longer ones.
#[derive(Clone, Debug, PartialEq)]
pub struct LongRope {
    pub original_context: usize,
    /// What queries and keys are multiplied by.
    pub amplitude: f64,
}

impl RopeConfig {
    /// Computes the rotations of the first `positions` positions of a model that is loaded for `context`.
    pub fn table_of(&self, gguf: &Gguf, context: usize, positions: usize) -> Result<RopeTable, LoadError> {
        self.rotations(&mut Tensors::new(gguf, 0..0, None, &mut |_| {}), context, positions)
    }

    /// Computes the rotation of every position of a context.
    pub(crate) fn table(&self, tensors: &mut Tensors<'_>, context: usize) -> Result<RopeTable, LoadError> {
        self.rotations(tensors, context, context)
    }

    fn rotations(&self, tensors: &mut Tensors<'_>, context: usize, positions: usize) -> Result<RopeTable, LoadError> {
        let pairs = self.dims / 2;
        let divisors = match &self.scaling {
            RopeScaling::LongRope(rope) => {
                let (short, long) = (tensors.floats(SHORT, pairs)?, tensors.floats(LONG, pairs)?);
                if rope.is_long(context) { long } else { short }
            }
            _ if self.has_divisors && tensors.has(DIVISORS) => tensors.floats(DIVISORS, pairs)?,
            _ => vec![1.0; pairs],
        };
        let frequencies: Vec<f64> =
            self.frequencies().zip(&divisors).map(|(frequency, divisor)| frequency / f64::from(*divisor)).collect();
        Ok(RopeTable::new(positions, &frequencies, self.style, self.amplitude()))
    }

    /// Returns by how much each pair turns per token, before the divisors of the file.
    pub(crate) fn frequencies(&self) -> impl Iterator<Item = f64> {
        (0..self.dims / 2).map(|pair| {
            let frequency = self.base.powf(-2.0 * pair as f64 / self.dims as f64);
            match &self.scaling {
                RopeScaling::None | RopeScaling::LongRope(_) => frequency,
                RopeScaling::Linear { factor } => frequency / factor,
                RopeScaling::Yarn(yarn) => {
                    let divided = yarn.divided(pair as f64, self);
                    frequency / yarn.factor * divided + frequency * (1.0 - divided)
                }
            }
        })
    }

    fn amplitude(&self) -> f64 {
        match &self.scaling {
            RopeScaling::None | RopeScaling::Linear { .. } => 1.0,
            RopeScaling::Yarn(yarn) => yarn.amplitude,
            RopeScaling::LongRope(rope) => rope.amplitude,
        }
    }

    /// Returns what keys depend on beside the file, for the names of cached pages.
    pub(crate) fn variant(&self, context: usize) -> Option<&'static str> {
        match &self.scaling {
            RopeScaling::LongRope(rope) => Some(if rope.is_long(context) { "long rope" } else { "short rope" }),
            _ => None,
        }
    }
}

/// A divisor for each frequency, as Llama 3 has them.
const DIVISORS: &str = "rope_freqs.weight";
/// Divisors of long-RoPE.
pub(crate) const LONG: &str = "rope_factors_long.weight";
pub(crate) const SHORT: &str = "rope_factors_short.weight";

impl LongRope {
    /// Decided by the context that a model is loaded for, not by a sequence's length: keys that were rotated one way cannot
    /// be used the other way.
    fn is_long(&self, context: usize) -> bool {
        context > self.original_context
    }
}

impl Yarn {
    /// The usual amplitude for a factor.
    pub fn usual_amplitude(factor: f64) -> f64 {
        if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 }
    }

    /// Returns how much of a pair's frequency is divided, from 0 to 1.
    fn divided(&self, pair: f64, rope: &RopeConfig) -> f64 {
        let last = rope.dims as f64 - 1.0;
        let pair_of = |turns: f64| {
            rope.dims as f64 * (self.original_context as f64 / (turns * TAU)).ln() / (2.0 * rope.base.ln())
        };
        let (mut low, mut high) = (pair_of(self.fast_turns), pair_of(self.slow_turns));
        if self.whole_pairs {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, high) = (low.max(0.0), high.min(last));
        ((pair - low) / (high - low).max(0.001)).clamp(0.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: RopeScaling) -> RopeConfig {
        RopeConfig { base: 10_000.0, dims: 64, style: RopeStyle::Halves, scaling, has_divisors: true }
    }

    #[test]
    fn yarn_divides_slow_turns_and_leaves_fast_ones() {
        let yarn = Yarn {
            factor: 4.0,
            original_context: 4096,
            fast_turns: 32.0,
            slow_turns: 1.0,
            whole_pairs: true,
            amplitude: Yarn::usual_amplitude(4.0),
        };
        let plain: Vec<f64> = rope(RopeScaling::None).frequencies().collect();
        let scaled: Vec<f64> = rope(RopeScaling::Yarn(yarn)).frequencies().collect();
        assert_eq!(scaled[0], plain[0]);
        assert!((scaled[31] - plain[31] / 4.0).abs() < 1e-12);
        let between = plain.iter().zip(&scaled).filter(|(plain, scaled)| {
            let ratio = **scaled / **plain;
            ratio > 0.26 && ratio < 0.99
        });
        assert!(between.count() > 5);
    }
}
