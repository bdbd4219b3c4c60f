//! What a model takes of the memory.

use ruvllm_model::Config;

/// Bytes of a token of the vocabulary in the tokenizer and in what grammars are matched with.
const VOCABULARY_TOKEN_BYTES: usize = 320;
/// Compiled grammars, templates, the threads' own memory.
const SMALL_THINGS_BYTES: usize = 16 << 20;
/// Tokens of all prompts that wait, at least.
const QUEUE_TOKENS_MIN: usize = 2 << 20;

/// The memory of a loaded model, or of one that is to be loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelMemory {
    pub weights_bytes: usize,
    /// Buffers of a step, tokenizer, grammars, requests that wait: at most.
    pub working_bytes: usize,
    /// Keys and values, of running and of cached texts: less cannot serve the longest text, and more is of no use.
    pub kv_min_bytes: usize,
    pub kv_max_bytes: usize,
}

impl ModelMemory {
    /// All but keys and values.
    pub fn fixed_bytes(&self) -> usize {
        self.weights_bytes.saturating_add(self.working_bytes)
    }

    pub fn min_bytes(&self) -> usize {
        self.fixed_bytes().saturating_add(self.kv_min_bytes)
    }
}

/// Tokens of all prompts that wait for an engine, at most.
pub(crate) fn queue_tokens_max(context: usize) -> usize {
    QUEUE_TOKENS_MIN.max(context.saturating_mul(32))
}

/// What is needed beside weights, keys and values for steps of so many rows.
pub(crate) fn working_bytes(config: &Config, context: usize, rows: usize) -> usize {
    let attention = (2 * config.heads + 2 * config.kv_heads) * config.head_dim;
    let row = size_of::<f32>() * (config.vocabulary + 3 * config.hidden + attention + config.feed_forward);
    let vocabulary = config.vocabulary.saturating_mul(VOCABULARY_TOKEN_BYTES);
    let positions = context.saturating_mul(config.rope_dims).saturating_mul(size_of::<f32>());
    let queue = queue_tokens_max(context).saturating_mul(size_of::<u32>());
    let parts = [rows.saturating_mul(row), vocabulary, positions, queue, SMALL_THINGS_BYTES];
    parts.into_iter().fold(0, usize::saturating_add)
}
