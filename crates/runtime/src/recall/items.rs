//! What is remembered of a trajectory, in tokens.

use ruvllm_engine::TokenId;
use ruvllm_memory::Example;
use ruvllm_text::SpecialTokens;

use crate::engine::LoadedModel;

/// Tokens of an item, and of the answer in it. Of a longer prompt, the end is kept.
const TOKENS_MAX: usize = 2048;
const ANSWER_TOKENS_MAX: usize = 1024;

/// Names an item by what is in it: the request, and a digest of what should have been answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ItemId {
    request: String,
    answer: blake3::Hash,
}

/// An item that is to be observed.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct WantedItem {
    pub id: ItemId,
    pub tokens: Vec<TokenId>,
    pub first_target: usize,
}

impl WantedItem {
    /// Returns what a model is to remember of an example; `None` if there is nothing, or nothing that this model could
    /// have said.
    pub fn of(model: &LoadedModel, example: &Example) -> Option<Self> {
        let trajectory = &example.trajectory;
        let answer = example.preferred()?.get("content")?.as_str()?.to_owned();
        let tokenizer = model.encoder.tokenizer();
        let is_of_model = trajectory.model_digest == blake3::Hash::from_bytes(model.fingerprint).to_hex().as_str();
        if !is_of_model || answer.is_empty() {
            return None;
        }
        let mut answer_tokens = match &example.feedback.correction {
            // What a reasoning model would have thought before it is not known.
            Some(_) if model.encoder.reasoning_format().is_some() => return None,
            Some(correction) if tokenizer.first_unencodable(correction).is_some() => return None,
            Some(correction) => {
                let mut tokens = tokenizer.encode(correction, SpecialTokens::AsText);
                let ended = trajectory.answer_tokens.last().filter(|last| tokenizer.is_end_of_generation(**last));
                tokens.extend(ended.copied().or_else(|| tokenizer.eos()));
                tokens
            }
            None => trajectory.answer_tokens.clone(),
        };
        answer_tokens.truncate(ANSWER_TOKENS_MAX);
        let tokens_max = TOKENS_MAX.min(model.encoder.context());
        let prompt_max = tokens_max.checked_sub(answer_tokens.len()).filter(|tokens| *tokens > 0)?;
        let prompt = &trajectory.prompt_tokens[trajectory.prompt_tokens.len().saturating_sub(prompt_max)..];
        if prompt.is_empty() || answer_tokens.is_empty() {
            return None;
        }
        let id = ItemId { request: trajectory.request.clone(), answer: blake3::hash(answer.as_bytes()) };
        Some(Self { id, first_target: prompt.len(), tokens: [prompt, &answer_tokens].concat() })
    }

    pub fn targets(&self) -> usize {
        self.tokens.len() - self.first_target
    }
}
