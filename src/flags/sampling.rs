//! Sampling parameters.

use anyhow::{Context, Result, bail};
use clap::Args;
use ruvllm_runtime::{Sampling, UnsetParams};

#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingFlags {
    /// Randomness of the choice; 0 always takes the most likely token [default: the model's, or 0.8]
    #[arg(long, allow_negative_numbers = true, value_name = "T")]
    temperature: Option<f32>,
    /// Sample from the K most likely tokens; 0 turns it off [default: the model's, or 40]
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Sample from the most likely tokens that together have this probability; 1 turns it off [default: the model's, or 0.95]
    #[arg(long, allow_negative_numbers = true, value_name = "P")]
    top_p: Option<f32>,
    /// Sample from tokens with at least this fraction of the most likely token's probability; 0 turns it off [default: the
    /// model's, or 0.05]
    #[arg(long, allow_negative_numbers = true, value_name = "P")]
    min_p: Option<f32>,
    /// Sample from the most typical tokens that together have this probability; 1 turns it off
    #[arg(long, allow_negative_numbers = true, default_value_t = Sampling::default().typical_p, value_name = "P")]
    typical_p: f32,
    /// Divide the logits of tokens that already occurred; 1 turns it off [default: the model's, or 1]
    #[arg(long, allow_negative_numbers = true, value_name = "X")]
    repetition_penalty: Option<f32>,
    /// Number of last tokens that the repetition penalty covers; 0 is all [default: the model's, or 64]
    #[arg(long, value_name = "N")]
    repetition_window: Option<usize>,
    /// Lower the logits of tokens that were already generated, once (-2 to 2)
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true, value_name = "X")]
    presence_penalty: f32,
    /// Lower the logits of tokens for each time they were generated (-2 to 2)
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true, value_name = "X")]
    frequency_penalty: f32,
    /// Add X to the logit of token ID (-100 to 100); can be repeated
    #[arg(long, value_name = "ID=X")]
    logit_bias: Vec<String>,
    /// Seed of the random choices; the same seed gives the same text [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// With --json: report this many of the most likely tokens at each position (0 to 20)
    #[arg(long, value_name = "N")]
    logprobs: Option<usize>,
}

/// The values that the flags have when none is given.
impl Default for SamplingFlags {
    fn default() -> Self {
        Self {
            temperature: None,
            top_k: None,
            top_p: None,
            min_p: None,
            typical_p: Sampling::default().typical_p,
            repetition_penalty: None,
            repetition_window: None,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
            logprobs: None,
        }
    }
}

impl SamplingFlags {
    /// Returns the parameters that no flag sets.
    pub fn unset(&self) -> UnsetParams {
        UnsetParams {
            temperature: self.temperature.is_none(),
            top_k: self.top_k.is_none(),
            top_p: self.top_p.is_none(),
            min_p: self.min_p.is_none(),
            repetition_penalty: self.repetition_penalty.is_none(),
            repetition_window: self.repetition_window.is_none(),
            max_tokens: false,
            seed: self.seed.is_none(),
        }
    }

    /// Returns validated sampling parameters; `random_seed` is used unless `--seed` is given.
    pub fn sampling(&self, random_seed: u64) -> Result<Sampling> {
        let default = Sampling::default();
        let sampling = Sampling {
            temperature: self.temperature.unwrap_or(default.temperature),
            top_k: self.top_k.unwrap_or(default.top_k),
            top_p: self.top_p.unwrap_or(default.top_p),
            min_p: self.min_p.unwrap_or(default.min_p),
            typical_p: self.typical_p,
            repetition_penalty: self.repetition_penalty.unwrap_or(default.repetition_penalty),
            repetition_window: self.repetition_window.unwrap_or(default.repetition_window),
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.iter().map(|text| parse_bias(text)).collect::<Result<_>>()?,
            seed: self.seed.unwrap_or(random_seed),
            top_logprobs: self.logprobs,
        };
        // Reports wrong values before a model is fetched; token ids are checked again against the vocabulary.
        sampling.check(usize::MAX)?;
        Ok(sampling)
    }
}

fn parse_bias(text: &str) -> Result<(u32, f32)> {
    let Some((token, bias)) = text.split_once('=') else {
        bail!("--logit-bias '{text}' is not of the form ID=X, such as 42=-100");
    };
    let token = token.trim().parse().with_context(|| format!("--logit-bias '{text}': the token id is not a number"))?;
    let bias = bias.trim().parse().with_context(|| format!("--logit-bias '{text}': the bias is not a number"))?;
    Ok((token, bias))
}
