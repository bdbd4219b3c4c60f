//! A smaller model that drafts tokens for speculation.

use std::path::{Path, PathBuf};

use ruvllm_engine::{Core, DraftOptions, KvOptions, Tiers};
use ruvllm_kv::KvCache;
use ruvllm_model::{CpuRunner, RowLimits};
use ruvllm_runner::PageFormat;
use ruvllm_text::Tokenizer;

use super::model_file::{ModelFile, Plan};
use super::model_memory::working_bytes;
use super::{BuildError, fingerprint};
use crate::backend::{BackendChoice, NATIVE, OtherBackends};

/// Tokens of texts that it keeps: longer texts are not drafted for.
const TEXT_TOKENS: usize = 8192;
/// Maximum rows of its batches.
const BATCH_ROWS: usize = 128;

/// A draft model that is opened, but not loaded.
pub(super) struct DraftFile {
    path: PathBuf,
    file: ModelFile,
    context: usize,
}

impl DraftFile {
    /// Opens a model that is to draft texts of up to `context` tokens.
    pub(super) fn open(path: &Path, context: usize) -> Result<Self, BuildError> {
        let refuse = |reason: String| BuildError::DraftModel { path: path.to_owned(), reason };
        let native = BackendChoice::Named(NATIVE);
        let file = ModelFile::open(path, None, native, &OtherBackends::default())
            .map_err(|error| refuse(error.to_string()))?;
        if matches!(&file.plan, Plan::Native(config) if !config.state_shape().layers.is_empty()) {
            return Err(refuse("it has recurrent layers; take one whose layers are all attention".to_owned()));
        }
        let context = context.min(file.context());
        Ok(Self { path: path.to_owned(), file, context })
    }

    /// Refuses a model with other tokens than the large one.
    pub(super) fn check_tokens(&self, tokenizer: &Tokenizer) -> Result<(), BuildError> {
        let refuse = |reason: String| BuildError::DraftModel { path: self.path.clone(), reason };
        let own = self.file.read_text_parts(None).map_err(|error| refuse(error.to_string()))?.tokenizer;
        match first_difference(&own, tokenizer) {
            None => Ok(()),
            Some(id) => Err(refuse(format!("token {id} is another than the model's; the two must share a vocabulary"))),
        }
    }

    /// Returns the memory that it takes: weights, buffers, and keys and values.
    pub(super) fn memory_bytes(&self) -> usize {
        let working = working_bytes(&self.file, self.context, RowLimits::exact(BATCH_ROWS));
        self.file.loaded_bytes().saturating_add(working).saturating_add(self.kv().budget_bytes)
    }

    fn kv(&self) -> KvOptions {
        let kv = KvOptions::new(Tiers::uniform(PageFormat::F16));
        let pages = KvCache::pages_for(self.context.min(TEXT_TOKENS)) + 2;
        KvOptions { budget_bytes: kv.budget_for(self.file.kv_shape(), pages), ..kv }
    }

    /// Loads it beside a model that takes `large_bytes` of weights, on the same threads.
    pub(super) fn load(self, beside: &CpuRunner, large_bytes: usize) -> Result<LoadedDraft, BuildError> {
        let fingerprint = fingerprint(&self.file.gguf);
        let model = self.file.load_weights(self.context, None, &mut |_| {})?;
        // Where reading the weights takes the time.
        let cost = model.weight_bytes() as f32 / large_bytes.max(1) as f32;
        let options = DraftOptions { kv: self.kv(), fingerprint, cost };
        Ok(LoadedDraft { runner: beside.beside(model.into(), BATCH_ROWS), options })
    }
}

/// A draft model that is loaded.
pub(super) struct LoadedDraft {
    runner: CpuRunner,
    options: DraftOptions,
}

impl LoadedDraft {
    pub(super) fn add_to(self, core: &mut Core) {
        core.set_draft_model(Box::new(self.runner), &self.options);
    }
}

/// Returns whether a file can draft for another: whether they have the same tokens.
pub fn can_draft_for(draft: &Path, large: &Tokenizer) -> bool {
    DraftFile::open(draft, usize::MAX).and_then(|draft| draft.check_tokens(large)).is_ok()
}

/// Returns the first token that two vocabularies have and that is not the same. At the end of one there may be more: models
/// of a family pad their vocabularies differently.
fn first_difference(one: &Tokenizer, other: &Tokenizer) -> Option<u32> {
    let both = one.vocab_size().min(other.vocab_size()) as u32;
    let differ =
        |id: &u32| one.token_text(*id) != other.token_text(*id) || one.is_control(*id) != other.is_control(*id);
    (0..both).find(differ)
}
