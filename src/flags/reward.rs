//! What an answer is worth to whoever chooses between models.

use anyhow::{Context, Result};
use clap::Args;
use ruvllm_learning::routing::RewardRule;

#[derive(Clone, Debug, Args)]
pub struct RewardFlags {
    /// What a second of waiting for an answer costs, where an answer found right is worth 1 and one found wrong -1: what
    /// is chosen with the model "auto" trades quality for time by it
    #[arg(long, value_name = "PRICE", default_value_t = RewardRule::default().price_per_second)]
    second_price: f64,
}

impl RewardFlags {
    pub fn rule(&self) -> Result<RewardRule> {
        RewardRule::new(self.second_price).context("--second-price")
    }
}
