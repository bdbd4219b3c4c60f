//! Options of an engine, and how one is built from a model file.

mod build;
mod draft;
mod error;
mod expert_place;
mod fingerprint;
mod fit;
mod kv_choice;
mod kv_size;
mod model_file;
mod model_memory;
mod options_in_use;
mod prefill;
mod tokenizer_files;
mod vocabulary;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ruvllm_engine::{DiskStore, Quota, Tenant, Tiers};
use ruvllm_kernels::{Cores, KernelSet};
use ruvllm_memory::Memory;
use ruvllm_model::quantize::Recipe;
use ruvllm_packs::LoadedPack;
use ruvllm_runner::PageFormat;

pub use draft::can_draft_for;
pub use error::BuildError;
pub use expert_place::ExpertPlace;
pub(crate) use fingerprint::fingerprint;
pub use fit::{Fit, Quantization, largest_file, memory_of_file};
pub use kv_choice::KvChoice;
pub(crate) use model_file::open_prompt_encoder;
pub use model_file::open_tokenizer;
pub use model_memory::ModelMemory;
pub use prefill::Prefill;
pub use tokenizer_files::provide_tokenizer_files;

use crate::backend::{BackendChoice, OtherBackends};
use crate::{KernelChoice, PrefixListener, StepMetrics};

/// Default number of rows of a forward pass: enough to use the weights well, few enough to stay in cache.
const BATCH_ROWS: usize = 128;
/// The same where prompts may be fast: unpacking the weights costs as much for few rows as for many.
const FAST_BATCH_ROWS: usize = 512;

/// Options of an engine. Every option has a default that suits the machine.
#[derive(Clone, Debug)]
pub struct EngineBuilder {
    path: PathBuf,
    backend: BackendChoice,
    others: OtherBackends,
    threads: Option<usize>,
    cores: Option<Arc<Cores>>,
    kernels: Option<KernelSet>,
    context: Option<usize>,
    sequences: usize,
    batch_rows: Option<usize>,
    kv: KvChoice,
    calibration_folder: Option<PathBuf>,
    kv_budget_bytes: Option<usize>,
    memory_bytes: Option<u64>,
    disk: Option<DiskStore>,
    quotas: Vec<(Tenant, Quota)>,
    shares_prefixes: bool,
    keeps_hidden_states: bool,
    chat_template: Option<String>,
    experts: ExpertPlace,
    draft_model: Option<PathBuf>,
    quantize: Option<Recipe>,
    prefill: Prefill,
    kernel_packs: Vec<Arc<LoadedPack>>,
    kernel_choice: KernelChoice,
    kernel_memory: Option<Arc<Memory>>,
    step_metrics: StepMetrics,
    prefix_listener: Option<PrefixListener>,
}

impl EngineBuilder {
    pub(crate) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            backend: BackendChoice::Auto,
            others: Arc::default(),
            threads: None,
            cores: None,
            kernels: None,
            context: None,
            sequences: 1,
            batch_rows: None,
            kv: KvChoice::Tiers(Tiers::uniform(PageFormat::F16)),
            calibration_folder: None,
            kv_budget_bytes: None,
            memory_bytes: None,
            disk: None,
            quotas: Vec::new(),
            shares_prefixes: false,
            keeps_hidden_states: false,
            chat_template: None,
            experts: ExpertPlace::Memory,
            draft_model: None,
            quantize: None,
            prefill: Prefill::default(),
            kernel_packs: Vec::new(),
            kernel_choice: KernelChoice::default(),
            kernel_memory: None,
            step_metrics: StepMetrics::default(),
            prefix_listener: None,
        }
    }

    /// Backend that runs the model, and those that there are beside the native one; by default only that.
    pub fn backend(mut self, choice: BackendChoice, others: OtherBackends) -> Self {
        (self.backend, self.others) = (choice, others);
        self
    }

    /// Number of threads that compute; by default the cores that this process may use.
    pub fn threads(mut self, threads: Option<usize>) -> Self {
        self.threads = threads;
        self
    }

    /// Cores that it shares with other engines, which use them by turns; by default its own.
    pub fn cores(mut self, cores: Arc<Cores>) -> Self {
        self.cores = Some(cores);
        self
    }

    /// Kernel set; by default the one that `RUVLLM_KERNELS` names, or the fastest.
    pub fn kernels(mut self, kernels: KernelSet) -> Self {
        self.kernels = Some(kernels);
        self
    }

    /// Maximum length of a sequence in tokens; by default what the model was made for, as far as memory goes and up to
    /// 131,072.
    pub fn context(mut self, context: Option<usize>) -> Self {
        self.context = context;
        self
    }

    /// Maximum number of sequences that run at the same time; 1 by default.
    pub fn sequences(mut self, sequences: usize) -> Self {
        self.sequences = sequences;
        self
    }

    /// Maximum number of prompt tokens in a forward pass.
    pub fn batch_rows(mut self, batch_rows: usize) -> Self {
        self.batch_rows = Some(batch_rows);
        self
    }

    /// Formats of KV pages; half floats by default.
    pub fn kv(mut self, choice: KvChoice) -> Self {
        self.kv = choice;
        self
    }

    /// Cache folder for measured KV formats, so that a model is measured once.
    pub fn calibration_folder(mut self, folder: PathBuf) -> Self {
        self.calibration_folder = Some(folder);
        self
    }

    /// Maximum memory for KV pages of running and of cached texts; by default what all sequences can fill, or half of the free
    /// memory if that is less.
    pub fn kv_budget_bytes(mut self, bytes: Option<usize>) -> Self {
        self.kv_budget_bytes = bytes;
        self
    }

    /// Memory that a default context and a default KV budget are a share of; by default the free memory.
    pub fn memory_bytes(mut self, bytes: Option<u64>) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// Disk tier for KV pages that leave memory, which survives a restart; none by default. Engines with clones of one store share
    /// its budget.
    pub fn disk(mut self, disk: Option<DiskStore>) -> Self {
        self.disk = disk;
        self
    }

    /// Quota of a tenant in the KV budget, together with all tenants whose names begin with its name and a `/`.
    pub fn quota(mut self, tenant: Tenant, quota: Quota) -> Self {
        self.quotas.push((tenant, quota));
        self
    }

    /// Lets tenants use each other's cached prefixes. The time to the first token then reveals what others have asked, and quotas
    /// have no effect.
    pub fn share_prefixes(mut self, share: bool) -> Self {
        self.shares_prefixes = share;
        self
    }

    /// Keeps hidden states beside KV pages, for [`Request::embeddings`](crate::Request::embeddings) and
    /// [`Engine::embed`](crate::Engine::embed). They take a few percent of the KV budget.
    pub fn keep_hidden_states(mut self, keep: bool) -> Self {
        self.keeps_hidden_states = keep;
        self
    }

    /// A Jinja chat template instead of the one in the model file.
    pub fn chat_template(mut self, source: Option<String>) -> Self {
        self.chat_template = source;
        self
    }

    /// Where the weights of experts are kept; in memory by default.
    pub fn experts(mut self, place: ExpertPlace) -> Self {
        self.experts = place;
        self
    }

    /// A smaller model with the same vocabulary, which drafts tokens where that is faster; none by default.
    pub fn draft_model(mut self, path: Option<PathBuf>) -> Self {
        self.draft_model = path;
        self
    }

    /// How prompts are computed; exactly by default.
    pub fn prefill(mut self, prefill: Prefill) -> Self {
        self.prefill = prefill;
        self
    }

    /// Kernel packs, none by default, and what decides between their kernels and the native ones.
    pub fn kernel_packs(mut self, packs: Vec<Arc<LoadedPack>>, choice: KernelChoice) -> Self {
        (self.kernel_packs, self.kernel_choice) = (packs, choice);
        self
    }

    /// Where what kernels took is kept, which is nowhere by default.
    pub fn kernel_memory(mut self, memory: Option<Arc<Memory>>) -> Self {
        self.kernel_memory = memory;
        self
    }

    /// What weights of 16 or 32 bits are quantized to while they are loaded; nothing by default.
    pub fn quantize(mut self, recipe: Option<Recipe>) -> Self {
        self.quantize = recipe;
        self
    }

    /// Histograms that record every step.
    pub fn step_metrics(mut self, metrics: StepMetrics) -> Self {
        self.step_metrics = metrics;
        self
    }

    /// Is told how the prefixes change that are cached in memory.
    pub fn prefix_listener(mut self, listener: Option<PrefixListener>) -> Self {
        self.prefix_listener = listener;
        self
    }

    /// Refuses options that make no sense.
    fn check(&self) -> Result<(), BuildError> {
        let within = |field, got: usize, max: usize, wanted| {
            if (1..=max).contains(&got) { Ok(()) } else { Err(BuildError::Option { field, got, wanted }) }
        };
        within("threads", self.threads.unwrap_or(1), 1024, "between 1 and 1024")?;
        within("context", self.context.unwrap_or(1), usize::MAX, "at least 1")?;
        within("sequences", self.sequences, 4096, "between 1 and 4096")?;
        within("batch_rows", self.batch_rows.unwrap_or(1), 8192, "between 1 and 8192")
    }
}

/// Progress of building an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildProgress {
    /// Bytes of weights that are loaded, out of `total`.
    Weights { done: u64, total: u64 },
    /// The smallest usable KV format is measured, once for each model.
    MeasuringKv,
    /// Prompts are computed in both ways, once for each model and machine.
    MeasuringPrefill,
}
