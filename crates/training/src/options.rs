//! How an adapter is trained.

use serde::{Deserialize, Serialize};

use crate::TrainError;
use crate::lora::RANK_MAX;

/// Everything that a run follows from, beside the model and the items.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainOptions {
    pub rank: usize,
    pub alpha: f32,
    /// Matrices that get factors, by their GGUF names without the layer; `None` is all of them.
    pub targets: Option<Vec<String>>,
    pub epochs: usize,
    /// The largest, between warm-up and decay.
    pub learning_rate: f32,
    /// Share of all steps in which the learning rate grows.
    pub warmup: f32,
    pub weight_decay: f32,
    /// The largest norm of a gradient.
    pub gradient_norm_max: f32,
    /// The most tokens of a step.
    pub step_tokens: usize,
    pub seed: u64,
    /// Share of the items that are replayed, where there are any to replay.
    pub replay_share: f32,
    /// Epochs without a lower validation loss after which a run ends.
    pub patience: usize,
    /// How much the loss of preferences counts beside that of what is chosen.
    pub preference_weight: f32,
    /// How soon a chosen answer leads by enough: at a lead of `1 / beta` more than the base model gives it, in nats per
    /// token, most of the pull is gone.
    pub beta: f32,
}

impl Default for TrainOptions {
    fn default() -> Self {
        Self {
            rank: 8,
            alpha: 16.0,
            targets: None,
            epochs: 3,
            learning_rate: 1e-3,
            warmup: 0.1,
            weight_decay: 0.01,
            gradient_norm_max: 1.0,
            step_tokens: 512,
            seed: 0,
            replay_share: 0.2,
            patience: 1,
            preference_weight: 1.0,
            beta: 2.0,
        }
    }
}

impl TrainOptions {
    /// Refuses what makes no sense.
    pub fn check(&self) -> Result<(), TrainError> {
        let refuse =
            |option, got: String, remedy: &str| Err(TrainError::Option { option, got, remedy: remedy.to_owned() });
        if !(1..=RANK_MAX).contains(&self.rank) {
            return refuse("rank", self.rank.to_string(), "it must be 1 to 64");
        }
        for (option, value, max) in [
            ("alpha", self.alpha, 1e4),
            ("learning_rate", self.learning_rate, 1.0),
            ("gradient_norm_max", self.gradient_norm_max, f32::MAX),
            ("beta", self.beta, 100.0),
        ] {
            if !(value > 0.0 && value <= max) {
                return refuse(option, value.to_string(), &format!("it must be above 0 and at most {max}"));
            }
        }
        for (option, value, max) in [
            ("warmup", self.warmup, 1.0),
            ("weight_decay", self.weight_decay, 1.0),
            ("replay_share", self.replay_share, 0.9),
            ("preference_weight", self.preference_weight, 100.0),
        ] {
            if !(0.0..=max).contains(&value) {
                return refuse(option, value.to_string(), &format!("it must be 0 to {max}"));
            }
        }
        for (option, value, max) in [
            ("epochs", self.epochs, 1000),
            ("step_tokens", self.step_tokens, 1 << 20),
            ("patience", self.patience, 1000),
        ] {
            if !(1..=max).contains(&value) {
                return refuse(option, value.to_string(), &format!("it must be 1 to {max}"));
            }
        }
        Ok(())
    }
}
