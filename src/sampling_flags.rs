//! Flags for every sampling parameter.

use anyhow::{Context, Result, bail};
use clap::Args;
use ruvllm_runtime::Sampling;

#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingFlags {
    /// How freely to choose; 0 always takes the likeliest token
    #[arg(long, allow_negative_numbers = true, default_value_t = Sampling::default().temperature, value_name = "T")]
    temperature: f32,
    /// Choose among the K likeliest tokens only; 0 is all
    #[arg(long, default_value_t = Sampling::default().top_k, value_name = "K")]
    top_k: usize,
    /// Choose among the likeliest tokens that make up this share of probability; 1 is all
    #[arg(long, allow_negative_numbers = true, default_value_t = Sampling::default().top_p, value_name = "P")]
    top_p: f32,
    /// Choose among tokens with at least this share of the likeliest one's probability; 0 is all
    #[arg(long, allow_negative_numbers = true, default_value_t = Sampling::default().min_p, value_name = "P")]
    min_p: f32,
    /// Choose among the most typical tokens that make up this share of probability; 1 is all
    #[arg(long, allow_negative_numbers = true, default_value_t = Sampling::default().typical_p, value_name = "P")]
    typical_p: f32,
    /// Divide the scores of tokens that occurred already; 1 is off
    #[arg(long, allow_negative_numbers = true, default_value_t = Sampling::default().repetition_penalty, value_name = "X")]
    repetition_penalty: f32,
    /// How many of the last tokens the repetition penalty looks at; 0 is all
    #[arg(long, default_value_t = Sampling::default().repetition_window, value_name = "N")]
    repetition_window: usize,
    /// Lower the scores of tokens that were generated already, once (-2 to 2)
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true, value_name = "X")]
    presence_penalty: f32,
    /// Lower the scores of tokens for each time they were generated (-2 to 2)
    #[arg(long, default_value_t = 0.0, allow_negative_numbers = true, value_name = "X")]
    frequency_penalty: f32,
    /// Add X to the score of token ID (-100 to 100); may be given several times
    #[arg(long, value_name = "ID=X")]
    logit_bias: Vec<String>,
    /// The same seed gives the same text [default: a new one each time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// With --json: report this many likeliest alternatives for each token (0 to 20)
    #[arg(long, value_name = "N")]
    logprobs: Option<usize>,
}

impl SamplingFlags {
    pub fn sampling(&self, random_seed: u64) -> Result<Sampling> {
        let sampling = Sampling {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            repetition_penalty: self.repetition_penalty,
            repetition_window: self.repetition_window,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.iter().map(|text| parse_bias(text)).collect::<Result<_>>()?,
            seed: self.seed.unwrap_or(random_seed),
            top_logprobs: self.logprobs,
        };
        // Wrong values are told before a model is fetched; which tokens exist is checked again with the model.
        sampling.check(usize::MAX)?;
        Ok(sampling)
    }
}

fn parse_bias(text: &str) -> Result<(u32, f32)> {
    let Some((token, bias)) = text.split_once('=') else {
        bail!("--logit-bias '{text}' is not of the form ID=X, such as 42=-100");
    };
    let token = token.trim().parse().with_context(|| format!("--logit-bias '{text}': the token id is no number"))?;
    let bias = bias.trim().parse().with_context(|| format!("--logit-bias '{text}': the bias is no number"))?;
    Ok((token, bias))
}
