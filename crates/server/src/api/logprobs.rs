//! Log probabilities of tokens in chat completions.

use ruvllm_runtime::Response;
use ruvllm_runtime::Tokenizer;
use serde::Serialize;
use utoipa::ToSchema;

/// A token with its log probability and the most likely alternatives.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct TokenLogprobs {
    #[serde(flatten)]
    pub token: TokenLogprob,
    pub top_logprobs: Vec<TokenLogprob>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct TokenLogprob {
    pub token: String,
    pub logprob: f32,
    /// Bytes of the token: it may be only part of a character.
    pub bytes: Vec<u8>,
}

impl TokenLogprobs {
    /// Returns those of all tokens of an answer from `first` on.
    pub(crate) fn of(response: &Response, first: usize, tokenizer: &Tokenizer) -> Vec<Self> {
        let tokens = response.tokens.iter().zip(&response.logprobs).skip(first);
        let all = tokens.map(|(token, (logprob, top))| Self {
            token: TokenLogprob::new(*token, *logprob, tokenizer),
            top_logprobs: top.iter().map(|other| TokenLogprob::new(other.token, other.logprob, tokenizer)).collect(),
        });
        all.collect()
    }
}

impl TokenLogprob {
    fn new(id: u32, logprob: f32, tokenizer: &Tokenizer) -> Self {
        let text = token_text(id, tokenizer);
        Self { bytes: text.1.to_vec(), token: text.0, logprob }
    }
}

/// Returns what a token adds to the text, and its bytes. Control tokens add nothing, so they are shown by name.
pub(crate) fn token_text(id: u32, tokenizer: &Tokenizer) -> (String, &[u8]) {
    let bytes = if tokenizer.is_control(id) { tokenizer.token_text(id).as_bytes() } else { tokenizer.token_bytes(id) };
    (String::from_utf8_lossy(bytes).into_owned(), bytes)
}
