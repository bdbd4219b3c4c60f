//! The memory that a model takes.

use ruvllm_model::RowLimits;

use super::model_file::ModelFile;

/// Bytes per token of the vocabulary, in the tokenizer and in the token trie of grammars.
const VOCABULARY_TOKEN_BYTES: usize = 320;
/// Compiled grammars, templates, stacks of threads.
const SMALL_THINGS_BYTES: usize = 16 << 20;
/// Lower bound of the limit on queued prompt tokens.
const QUEUE_TOKENS_MIN: usize = 2 << 20;

/// Memory of a model that is loaded or to be loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelMemory {
    /// Weights in memory; of experts on disk, those of one token.
    pub weights_bytes: usize,
    /// Weights of experts that are kept on disk.
    pub disk_bytes: usize,
    /// Maximum for buffers of a step, tokenizer, grammars and queued requests.
    pub working_bytes: usize,
    /// KV budget below which the longest text cannot be served.
    pub kv_min_bytes: usize,
    /// KV budget that all sequences can fill.
    pub kv_max_bytes: usize,
}

impl ModelMemory {
    /// Returns everything but KV pages.
    pub fn fixed_bytes(&self) -> usize {
        self.weights_bytes.saturating_add(self.working_bytes)
    }

    pub fn min_bytes(&self) -> usize {
        self.fixed_bytes().saturating_add(self.kv_min_bytes)
    }
}

/// Returns the maximum number of prompt tokens in an engine's queue.
pub(crate) fn queue_tokens_max(context: usize) -> usize {
    QUEUE_TOKENS_MIN.max(context.saturating_mul(32))
}

/// Returns the memory needed beside weights and KV pages for steps of such rows.
pub(super) fn working_bytes(file: &ModelFile, context: usize, rows: RowLimits) -> usize {
    let vocabulary = file.vocabulary().saturating_mul(VOCABULARY_TOKEN_BYTES);
    let queue = queue_tokens_max(context).saturating_mul(size_of::<u32>());
    let parts = [file.run_state_bytes(context, rows), vocabulary, queue, SMALL_THINGS_BYTES];
    parts.into_iter().fold(0, usize::saturating_add)
}
