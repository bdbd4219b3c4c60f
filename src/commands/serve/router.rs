//! How a server chooses between models for requests with the model `auto`.

use std::sync::Arc;

use anyhow::{Result, bail};
use clap::Args;
use ruvllm_learning::routing::EXPLORATION_MAX;
use ruvllm_runtime::{ModelRouter, RequestRecorder, RouterOptions};

use crate::flags::reward::RewardFlags;

#[derive(Clone, Debug, Args)]
pub struct RouterFlags {
    /// Share of the requests with the model "auto" that are answered by chance, 0 to 0.5, so that the log says what
    /// other models would have given: `ruvllm learn router` and `ruvllm learn evaluate` need that. Only for those that
    /// take part in learning (--learn, `ruvllm keys`)
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = parse_share)]
    explore: f64,
    #[command(flatten)]
    reward: RewardFlags,
}

impl RouterFlags {
    /// Starts choosing between models, if there is a memory to learn from.
    pub fn start(&self, memory: Option<&RequestRecorder>) -> Result<Option<Arc<ModelRouter>>> {
        let Some(memory) = memory else {
            if self.explore > 0.0 {
                bail!(
                    "--explore: without a memory nothing is learned from what is left to chance; leave out --no-memory"
                );
            }
            return Ok(None);
        };
        let options = RouterOptions { exploration: self.explore, rule: self.reward.rule()? };
        Ok(Some(Arc::new(ModelRouter::start(Arc::clone(memory.memory()), options)?)))
    }
}

fn parse_share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=EXPLORATION_MAX).contains(&share) => Ok(share),
        _ => Err(format!("expected a share from 0 to {EXPLORATION_MAX}, such as 0.05")),
    }
}
