//! Bayesian linear regression, one observation at a time.

use super::features::{FEATURES, Features};

/// Features and a constant.
const SIZE: usize = FEATURES + 1;
/// Precision of the prior of each weight, in units of the noise's: a feature is worth nothing until it was seen to be.
const PRIOR: f64 = 4.0;
/// That of the constant, which is almost free.
const PRIOR_OF_CONSTANT: f64 = 0.1;

/// A regression of rewards on features, with how sure it is.
#[derive(Clone)]
pub(crate) struct Ridge {
    /// Inverse of the precision matrix, by rows.
    covariance: Vec<f64>,
    /// Sum of features times rewards.
    moments: Vec<f64>,
    /// `covariance * moments`, once it was asked for after the last observation.
    weights: Vec<f64>,
    pub observations: usize,
}

impl std::fmt::Debug for Ridge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ridge").field("observations", &self.observations).finish_non_exhaustive()
    }
}

impl Ridge {
    /// What one takes in memory.
    pub const BYTES: usize = (SIZE * SIZE + 2 * SIZE) * size_of::<f64>();

    pub fn new() -> Self {
        let mut covariance = vec![0.0; SIZE * SIZE];
        for index in 0..SIZE {
            let prior = if index == FEATURES { PRIOR_OF_CONSTANT } else { PRIOR };
            covariance[index * SIZE + index] = 1.0 / prior;
        }
        Self { covariance, moments: vec![0.0; SIZE], weights: vec![0.0; SIZE], observations: 0 }
    }

    /// Adds an observation (Sherman and Morrison).
    pub fn observe(&mut self, features: &Features, reward: f64) {
        let x = with_constant(features);
        let projected = self.times(&x);
        let scale = 1.0 / (1.0 + dot(&projected, &x));
        for (row, of_row) in self.covariance.chunks_exact_mut(SIZE).zip(&projected) {
            let factor = scale * of_row;
            row.iter_mut().zip(&projected).for_each(|(entry, of_column)| *entry -= factor * of_column);
        }
        self.moments.iter_mut().zip(&x).for_each(|(moment, x)| *moment += reward * x);
        let moments = std::mem::take(&mut self.moments);
        self.weights = self.times(&moments);
        self.moments = moments;
        self.observations += 1;
    }

    /// Returns the expected reward, and its variance in units of the noise's.
    pub fn predict(&self, features: &Features) -> (f64, f64) {
        let x = with_constant(features);
        (dot(&self.weights, &x), dot(&self.times(&x), &x).max(0.0))
    }

    fn times(&self, x: &[f64]) -> Vec<f64> {
        // Most places of a short text's words are empty.
        let filled: Vec<(usize, f64)> = x.iter().copied().enumerate().filter(|(_, value)| *value != 0.0).collect();
        let row = |row: &[f64]| filled.iter().map(|(index, value)| row[*index] * value).sum();
        self.covariance.chunks_exact(SIZE).map(row).collect()
    }
}

fn with_constant(features: &Features) -> Vec<f64> {
    features.values().into_iter().chain([1.0]).collect()
}

fn dot(one: &[f64], other: &[f64]) -> f64 {
    one.iter().zip(other).map(|(one, other)| one * other).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn weights_are_found_and_what_was_not_seen_stays_uncertain() {
        let mut random = Random::new(1);
        let mut ridge = Ridge::new();
        let mut seen = [0.0; FEATURES];
        for _ in 0..400 {
            let mut values = [0.0; FEATURES];
            values[..8].fill_with(|| 2.0 * random.unit() - 1.0);
            let reward = 0.3 + 0.5 * values[0] - 0.25 * values[3] + 0.1 * random.normal();
            ridge.observe(&Features::new(&values), reward);
            seen = values;
        }
        let (mean, variance) = ridge.predict(&Features::new(&seen));
        assert!((mean - (0.3 + 0.5 * seen[0] - 0.25 * seen[3])).abs() < 0.08, "{mean}");
        assert!(variance < 0.05, "{variance}");
        let mut other = seen;
        other[100] = 1.0;
        assert!(ridge.predict(&Features::new(&other)).1 > 0.9 / PRIOR);
    }
}
