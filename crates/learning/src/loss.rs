//! How badly tokens were predicted.

use std::iter::Sum;
use std::ops::Add;

use serde::{Deserialize, Serialize};

/// The loss of an item, or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Loss {
    /// Of all targets, in nats.
    pub sum: f64,
    pub targets: usize,
}

impl Loss {
    /// Sums up the losses of targets.
    pub fn of(losses: &[f64]) -> Self {
        Self { sum: losses.iter().sum(), targets: losses.len() }
    }

    /// Returns the loss per target; 0 without targets.
    pub fn mean(self) -> f64 {
        if self.targets == 0 { 0.0 } else { self.sum / self.targets as f64 }
    }
}

impl Add for Loss {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { sum: self.sum + other.sum, targets: self.targets + other.targets }
    }
}

impl Sum for Loss {
    fn sum<I: Iterator<Item = Self>>(losses: I) -> Self {
        losses.fold(Self::default(), Add::add)
    }
}
