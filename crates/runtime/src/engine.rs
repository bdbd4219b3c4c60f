//! A loaded model: what each step of a request's way needs of it, and what callers may ask about it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};

use ruvllm_engine::{Core, LookupStats, Tenant, TokenId};
use ruvllm_text::Tokenizer;

use crate::constrain::OutputCompiler;
use crate::encode::PromptEncoder;
use crate::submit::{EngineStopped, EngineThread};
use crate::{
    Adapters, CancellationToken, ColdFormat, EngineBuilder, EngineStatus, FastPrefill, GenerateError, KernelPacks,
    ModelMemory, Prompt, Request, SamplingDefaults, Tools,
};

/// A loaded model, ready to answer. Clones share one engine; dropping the last of them unloads the model.
#[derive(Clone, Debug)]
pub struct Engine(Arc<LoadedModel>);

/// What the steps of a request share. Each step uses its own part.
#[derive(Debug)]
pub(crate) struct LoadedModel {
    pub outputs: OutputCompiler,
    pub encoder: PromptEncoder,
    pub thread: EngineThread,
    pub adapters: Adapters,
    pub kernel_packs: KernelPacks,
    /// Identifies the model's file.
    pub fingerprint: [u8; 32],
    /// Name of what runs the model.
    pub backend: &'static str,
    pub kernels: &'static str,
    pub threads: Option<usize>,
    /// Length of a hidden state; 0 where the backend gives none.
    pub hidden: usize,
    /// Whether prefixes stay in the KV cache when their sequence ends.
    pub caches_prefixes: bool,
    /// Folder of the disk tier, if there is one.
    pub disk_folder: Option<PathBuf>,
    pub cold_format: Option<ColdFormat>,
    pub fast_prefill: Option<FastPrefill>,
    /// From how many tokens on prompts are computed in bf16; `None` is never.
    pub fast_rows_min: Option<usize>,
    pub memory: ModelMemory,
    /// For requests that leave them open.
    pub sampling: SamplingDefaults,
}

impl Engine {
    /// Starts building an engine for the GGUF file at `path`.
    pub fn builder(path: impl AsRef<Path>) -> EngineBuilder {
        EngineBuilder::new(path.as_ref())
    }

    pub(crate) fn new(model: LoadedModel) -> Self {
        Self(Arc::new(model))
    }

    pub(crate) fn model(&self) -> &Arc<LoadedModel> {
        &self.0
    }

    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        self.0.encoder.tokenizer()
    }

    /// Returns the token ids of a prompt as the model reads them.
    pub fn encode(&self, prompt: &Prompt) -> Result<Vec<TokenId>, GenerateError> {
        self.encode_with_tools(prompt, &Tools::default())
    }

    /// Returns the token ids of a prompt that offers tools to the model.
    pub fn encode_with_tools(&self, prompt: &Prompt, tools: &Tools) -> Result<Vec<TokenId>, GenerateError> {
        Ok(self.0.encoder.encode(prompt, tools)?.tokens)
    }

    /// Returns the token ids that a request asks the model to continue, truncated as it allows. A session's turns and what is
    /// remembered come later.
    pub fn encode_request(
        &self,
        request: &Request,
        cancellation: &CancellationToken,
    ) -> Result<Vec<TokenId>, GenerateError> {
        Ok(self.0.encoder.encode_request(request, cancellation)?.tokens)
    }

    /// Returns what identifies the model's file, in hexadecimal digits.
    pub fn fingerprint(&self) -> String {
        self.0.fingerprint.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Returns the format chosen for this model's cold KV pages, where it was measured.
    pub fn cold_format(&self) -> Option<&ColdFormat> {
        self.0.cold_format.as_ref()
    }

    /// Returns what was measured of prompts in bf16, where that was asked for.
    pub fn fast_prefill(&self) -> Option<&FastPrefill> {
        self.0.fast_prefill.as_ref()
    }

    /// Returns the adapters that requests may use.
    pub fn adapters(&self) -> &Adapters {
        &self.0.adapters
    }

    /// Returns the kernel pack that is used, which can be replaced.
    pub fn kernel_packs(&self) -> &KernelPacks {
        &self.0.kernel_packs
    }

    /// Returns from how many tokens on, cached ones aside, prompts are computed in bf16; `None` is never.
    pub fn fast_rows_min(&self) -> Option<usize> {
        self.0.fast_rows_min
    }

    /// Returns the name of the backend that runs the model.
    pub fn backend(&self) -> &'static str {
        self.0.backend
    }

    /// Whether the backend chooses tokens by itself: seeds, grammars, budgets of reasoning, log probabilities and what else needs
    /// logits are not to be had.
    pub fn chooses_tokens(&self) -> bool {
        self.0.outputs.chooses_tokens()
    }

    /// Returns the name of what computes: a set of kernels, or another backend.
    pub fn kernels(&self) -> &'static str {
        self.0.kernels
    }

    /// Returns the number of threads that compute; `None` if the backend decides.
    pub fn threads(&self) -> Option<usize> {
        self.0.threads
    }

    /// Returns the maximum length of a sequence in tokens.
    pub fn context(&self) -> usize {
        self.0.encoder.context()
    }

    /// Returns the folder of the disk tier, if there is one.
    pub fn disk_folder(&self) -> Option<&Path> {
        self.0.disk_folder.as_deref()
    }

    /// Returns the memory that the model takes.
    pub fn memory(&self) -> &ModelMemory {
        &self.0.memory
    }

    /// Returns the sampling parameters that the model's own file states.
    pub fn sampling_defaults(&self) -> &SamplingDefaults {
        &self.0.sampling
    }

    /// Changes the KV budget, up to what the engine was built with: cached prefixes are evicted and sequences preempted until
    /// the budget holds. Waits for the step in progress. Returns whether the budget holds now.
    pub fn set_kv_budget(&self, bytes: usize) -> Result<bool, GenerateError> {
        Ok(self.0.thread.set_kv_budget(bytes)?)
    }

    /// Returns whether the model reasons before it answers.
    pub fn reasons(&self) -> bool {
        self.0.encoder.reasoning_format().is_some()
    }

    pub fn has_chat_template(&self) -> bool {
        self.0.encoder.has_chat_template()
    }

    /// Locks the engine underneath, for measurements in token ids. Nothing else is answered while the lock is held.
    pub fn core(&mut self) -> MutexGuard<'_, Core> {
        self.0.thread.core()
    }

    /// Returns what the engine is doing.
    pub fn status(&self) -> EngineStatus {
        self.0.thread.status()
    }

    /// Returns every tenant that has sent a request, with its prefix cache statistics.
    pub async fn tenants(&self) -> Result<Vec<(Tenant, LookupStats)>, GenerateError> {
        Ok(self.0.thread.tenants().await?)
    }
}

impl From<EngineStopped> for GenerateError {
    fn from(EngineStopped: EngineStopped) -> Self {
        Self::EngineFailed
    }
}
