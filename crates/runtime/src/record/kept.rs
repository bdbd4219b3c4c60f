//! What is kept of a request to learn from, if its tenant opted in.

use std::sync::Arc;

use ruvllm_engine::{Sampling, TokenId};
use ruvllm_memory::{TRAJECTORY_BYTES_MAX, Trajectory, TrajectoryPrompt, WitnessEntry};
use ruvllm_text::Tokenizer;
use serde_json::{Value, json};

use super::request_record::whole;
use crate::engine::LoadedModel;
use crate::{Message, Prompt, Request, Response};

/// Digits and comma of a token id as it is stored.
const TOKEN_BYTES: usize = 7;

/// What was asked, in texts and tokens.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    prompt: TrajectoryPrompt,
    sampling: Value,
    tokens: Arc<[TokenId]>,
}

impl Kept {
    pub fn new(tokenizer: &Tokenizer, request: &Request) -> Self {
        let prompt = match &request.prompt {
            Prompt::Messages(messages) => TrajectoryPrompt::Messages(messages.iter().map(Message::to_json).collect()),
            other => TrajectoryPrompt::Text(whole(tokenizer, other)),
        };
        Self { prompt, sampling: sampling_json(&request.sampling), tokens: Arc::default() }
    }

    /// Notes the prompt as the model reads it.
    pub fn encoded(&mut self, tokens: Arc<[TokenId]>) {
        self.tokens = tokens;
    }

    /// Returns the trajectory of a request with its answer; `None` if it is too large to be kept.
    pub fn trajectory(
        self,
        model: &LoadedModel,
        entry: &WitnessEntry,
        answer: &Message,
        response: &Response,
    ) -> Option<Trajectory> {
        let bytes = self.bytes() + response.text.len() + response.reasoning.len() + TOKEN_BYTES * response.tokens.len();
        if bytes > TRAJECTORY_BYTES_MAX {
            tracing::warn!(request = entry.request, bytes, "a request is too long to be kept for learning");
            return None;
        }
        Some(Trajectory {
            request: entry.request.clone(),
            response: entry.response.clone(),
            at_ms: entry.at_ms,
            tenant: entry.tenant.clone(),
            user: entry.user.clone(),
            session: entry.session.clone(),
            model: entry.model.clone(),
            model_digest: blake3::Hash::from_bytes(model.fingerprint).to_hex().to_string(),
            adapter: entry.adapter.clone(),
            sampling: self.sampling,
            prompt: self.prompt,
            answer: answer.to_json(),
            prompt_tokens: self.tokens.to_vec(),
            answer_tokens: response.tokens.clone(),
            finish: entry.finish.clone(),
            quality: entry.quality.clone(),
        })
    }

    /// Estimates its size as it is stored.
    fn bytes(&self) -> usize {
        let prompt = match &self.prompt {
            TrajectoryPrompt::Messages(messages) => messages.iter().map(|message| message.to_string().len()).sum(),
            TrajectoryPrompt::Text(text) => text.len(),
        };
        prompt + TOKEN_BYTES * self.tokens.len()
    }
}

fn sampling_json(sampling: &Sampling) -> Value {
    json!({
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "typical_p": sampling.typical_p,
        "repetition_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "seed": sampling.seed,
    })
}
