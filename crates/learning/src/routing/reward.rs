//! What an answer was worth.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// How much an answer that was cut by the limit of tokens is worth less, and one after which the same was asked again.
const CUT: f64 = 0.25;
const ASKED_AGAIN: f64 = 0.5;
/// How much an answer is worth less that broke its schema, or that never came.
const BROKEN: f64 = 1.0;
/// Higher prices would make any answer of more than a few milliseconds worth nothing.
const PRICE_MAX: f64 = 100.0;

/// What became of a request. What people say and what is measured are kept apart.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// From -1, wrong, to 1, right; `None` if nobody said anything.
    pub feedback: Option<f64>,
    /// Whether the model gave no answer at all.
    pub has_failed: bool,
    /// Whether the answer broke the schema that it had to follow.
    pub is_invalid: bool,
    /// Whether the answer ended at the limit of tokens.
    pub is_cut: bool,
    /// Whether the same was asked again for another answer.
    pub is_asked_again: bool,
    pub seconds: f64,
}

/// What counts how much: quality against time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RewardRule {
    /// How much a second of waiting takes from a reward, where an answer found right is worth 1 and one found wrong -1.
    pub price_per_second: f64,
}

impl Default for RewardRule {
    fn default() -> Self {
        Self { price_per_second: 0.02 }
    }
}

#[derive(Clone, Debug, PartialEq, Error)]
#[error("{price} is no price of a second; give a number from 0 to {PRICE_MAX}")]
pub struct RewardRuleError {
    price: f64,
}

impl RewardRule {
    pub fn new(price_per_second: f64) -> Result<Self, RewardRuleError> {
        match (0.0..=PRICE_MAX).contains(&price_per_second) {
            true => Ok(Self { price_per_second }),
            false => Err(RewardRuleError { price: price_per_second }),
        }
    }

    /// Returns the reward, from -1 to 1. An answer that nobody said anything of is neither right nor wrong.
    pub fn reward(self, outcome: &Outcome) -> f64 {
        let lost = [
            (outcome.has_failed || outcome.is_invalid, BROKEN),
            (outcome.is_cut, CUT),
            (outcome.is_asked_again, ASKED_AGAIN),
        ];
        let measured: f64 = lost.into_iter().filter(|(is, _)| *is).map(|(_, lost)| lost).sum();
        // What people say of an answer outranks what its measurements suggest.
        let quality = outcome.feedback.unwrap_or(-measured);
        (quality - self.price_per_second * outcome.seconds).clamp(-1.0, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feedback_outranks_what_is_measured_and_time_has_its_price() {
        let rule = RewardRule::new(0.1).unwrap();
        let reward = |outcome| rule.reward(&outcome);
        let plain = Outcome { seconds: 1.0, ..Outcome::default() };
        assert_eq!(reward(plain), -0.1);
        assert_eq!(reward(Outcome { feedback: Some(1.0), is_cut: true, ..plain }), 0.9);
        assert_eq!(reward(Outcome { is_cut: true, ..plain }), -0.35);
        assert_eq!(reward(Outcome { is_invalid: true, is_asked_again: true, ..plain }), -1.0);
        assert_eq!(reward(Outcome { feedback: Some(1.0), seconds: 1e9, ..plain }), -1.0);
        assert_eq!(RewardRule::new(0.0).unwrap().reward(&plain), 0.0);
        for price in [-0.1, f64::NAN, f64::INFINITY, 101.0] {
            assert!(RewardRule::new(price).is_err(), "{price}");
        }
    }
}
