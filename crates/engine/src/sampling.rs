//! How the next token is chosen: the parameters of a request, checked before anything runs.

use std::collections::BTreeMap;

use ruvllm_runner::{TokenChoice, TokenId};

/// Parameters of sampling. The order of application is: a request's memory, bias, penalties, temperature, top-k,
/// typical, top-p, min-p.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Only the `k` likeliest tokens; 0 is all.
    pub top_k: usize,
    /// The likeliest tokens that make up this share of probability; 1 is all.
    pub top_p: f32,
    /// Tokens with at least this share of the likeliest one's probability; 0 is all.
    pub min_p: f32,
    /// The tokens closest to the expected surprise that make up this share of probability; 1 is all.
    pub typical_p: f32,
    /// Logits of tokens seen before (prompt included) are divided by this if positive, multiplied if negative; 1 is off.
    pub repetition_penalty: f32,
    /// How many of the last tokens count as seen; 0 is all.
    pub repetition_window: usize,
    /// Subtracted once from the logit of every token that was generated before.
    pub presence_penalty: f32,
    /// Subtracted from a token's logit for each time it was generated before.
    pub frequency_penalty: f32,
    /// Added to the logits of these tokens.
    pub logit_bias: BTreeMap<TokenId, f32>,
    /// The same seed gives the same text, whatever else runs.
    pub seed: u64,
    /// How many of the likeliest tokens to report with each token; `None` reports nothing.
    pub top_logprobs: Option<usize>,
}

impl Sampling {
    /// Returns what a runner that chooses tokens by itself is told of these.
    pub(crate) fn choice(&self) -> TokenChoice {
        TokenChoice {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
        }
    }

    /// Returns the first field that such a runner cannot be told.
    pub(crate) fn beyond_choice(&self) -> Option<&'static str> {
        let all = [
            ("logprobs", self.top_logprobs.is_some()),
            ("logit_bias", !self.logit_bias.is_empty()),
            ("typical_p", self.typical_p != 1.0),
        ];
        all.into_iter().find_map(|(field, is_set)| is_set.then_some(field))
    }

    /// Whether any logit is changed before a token is chosen.
    pub(crate) fn adjusts_logits(&self) -> bool {
        let penalties = self.presence_penalty != 0.0 || self.frequency_penalty != 0.0;
        !self.logit_bias.is_empty() || self.repetition_penalty != 1.0 || penalties
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.8,
            top_k: 40,
            top_p: 0.95,
            min_p: 0.05,
            typical_p: 1.0,
            repetition_penalty: 1.0,
            repetition_window: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            seed: 0,
            top_logprobs: None,
        }
    }
}

#[derive(Debug, thiserror::Error, PartialEq)]
pub enum SamplingError {
    #[error("{field} is {got}; it must be {wanted}")]
    OutOfRange { field: &'static str, got: f64, wanted: &'static str },
    #[error("logit_bias names token {token}, the vocabulary has {vocabulary}")]
    BiasToken { token: TokenId, vocabulary: usize },
}

/// Maximum number of alternatives reported with a token.
const TOP_LOGPROBS_MAX: usize = 20;

impl Sampling {
    /// The likeliest token, always.
    pub fn greedy() -> Self {
        Self { temperature: 0.0, ..Self::default() }
    }

    /// Refuses values that have no meaning, naming the field.
    pub fn check(&self, vocabulary: usize) -> Result<(), SamplingError> {
        let within = |field, got: f32, low: f32, high: f32, wanted| {
            // Written so that a NaN is refused too.
            if got >= low && got <= high {
                Ok(())
            } else {
                Err(SamplingError::OutOfRange { field, got: f64::from(got), wanted })
            }
        };
        within("temperature", self.temperature, 0.0, 100.0, "between 0 (greedy) and 100")?;
        within("top_p", self.top_p, f32::MIN_POSITIVE, 1.0, "above 0 and at most 1 (off)")?;
        within("min_p", self.min_p, 0.0, 1.0, "between 0 (off) and 1")?;
        within("typical_p", self.typical_p, f32::MIN_POSITIVE, 1.0, "above 0 and at most 1 (off)")?;
        within("repetition_penalty", self.repetition_penalty, 0.01, 100.0, "between 0.01 and 100 (1 is off)")?;
        within("presence_penalty", self.presence_penalty, -2.0, 2.0, "between -2 and 2")?;
        within("frequency_penalty", self.frequency_penalty, -2.0, 2.0, "between -2 and 2")?;
        let alternatives = self.top_logprobs.unwrap_or(0) as f32;
        within("top_logprobs", alternatives, 0.0, TOP_LOGPROBS_MAX as f32, "between 0 and 20")?;
        for (token, bias) in &self.logit_bias {
            if *token as usize >= vocabulary {
                return Err(SamplingError::BiasToken { token: *token, vocabulary });
            }
            within("logit_bias", *bias, -100.0, 100.0, "between -100 and 100")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_without_meaning_are_refused_by_name() {
        let check = |change: fn(&mut Sampling), field: &str| {
            let mut sampling = Sampling::default();
            change(&mut sampling);
            let message = sampling.check(100).unwrap_err().to_string();
            assert!(message.contains(field), "{message}");
        };
        check(|s| s.temperature = -0.1, "temperature");
        check(|s| s.temperature = f32::NAN, "temperature");
        check(|s| s.temperature = f32::INFINITY, "temperature");
        check(|s| s.top_p = 0.0, "top_p");
        check(|s| s.top_p = 1.1, "top_p");
        check(|s| s.min_p = -1.0, "min_p");
        check(|s| s.typical_p = f32::NAN, "typical_p");
        check(|s| s.repetition_penalty = 0.0, "repetition_penalty");
        check(|s| s.presence_penalty = 2.5, "presence_penalty");
        check(|s| s.frequency_penalty = f32::NEG_INFINITY, "frequency_penalty");
        check(|s| s.top_logprobs = Some(21), "top_logprobs");
        check(|s| s.logit_bias = [(100, 0.0)].into(), "logit_bias");
        check(|s| s.logit_bias = [(1, f32::NAN)].into(), "logit_bias");
        assert_eq!(Sampling::default().check(100), Ok(()));
        assert_eq!(Sampling::greedy().check(100), Ok(()));
    }
}
