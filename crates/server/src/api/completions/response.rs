//! `POST /v1/completions`: the response, whole or in chunks.

use std::collections::BTreeMap;

use ruvllm_runtime::{Response, Tokenizer};
use serde::Serialize;
use utoipa::ToSchema;

use crate::api::logprobs::token_text;
use crate::api::usage::UsageField;

/// An answer, or a chunk of one.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Completion {
    pub id: String,
    pub object: &'static str,
    /// Unix time.
    pub created: u64,
    pub model: String,
    pub system_fingerprint: &'static str,
    pub choices: Vec<CompletionChoice>,
    /// In a stream with `stream_options.include_usage`: null except in the last chunk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<UsageField>>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CompletionChoice {
    pub text: String,
    pub index: usize,
    pub logprobs: Option<CompletionLogprobs>,
    /// `stop` or `length`; null while the answer is unfinished
    pub finish_reason: Option<&'static str>,
}

/// Log probabilities of tokens: lists of equal length.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct CompletionLogprobs {
    pub tokens: Vec<String>,
    pub token_logprobs: Vec<f32>,
    pub top_logprobs: Vec<BTreeMap<String, f32>>,
    /// Where each token starts in the text, in characters.
    pub text_offset: Vec<usize>,
}

impl CompletionLogprobs {
    /// Returns those of all tokens of an answer from `first` on.
    pub(crate) fn of(response: &Response, first: usize, tokenizer: &Tokenizer) -> Self {
        let mut all = Self::default();
        let mut offset = 0;
        for (index, (token, (logprob, top))) in response.tokens.iter().zip(&response.logprobs).enumerate() {
            let (text, _) = token_text(*token, tokenizer);
            let begins_at = offset;
            offset += text.chars().count();
            if index >= first {
                all.tokens.push(text);
                all.token_logprobs.push(*logprob);
                all.text_offset.push(begins_at);
                let top = top.iter().map(|other| (token_text(other.token, tokenizer).0, other.logprob));
                all.top_logprobs.push(top.collect());
            }
        }
        all
    }
}
