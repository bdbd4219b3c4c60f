//! Opening a model file and getting everything ready to answer.

mod fingerprint;
mod model_memory;
mod vocabulary;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ruvllm_engine::{Core, CoreOptions, DiskStore, KvOptions, Quota, SubmitError, Tenant, Tiers, TiersError};
use ruvllm_kernels::ops::PageFormat;
use ruvllm_kernels::{Cores, KernelSet, Pool};
use ruvllm_kv::KvCache;
use ruvllm_model::formats::gguf::facts::ModelFacts;
use ruvllm_model::formats::gguf::{Gguf, GgufError, MetadataError};
use ruvllm_model::{Config, LoadError, Model};
use ruvllm_text::{
    ChatTemplate, ChatTemplateError, GrammarCompiler, GrammarError, Tokenizer, TokenizerError, ToolFormat,
};

pub(crate) use fingerprint::fingerprint;
pub use model_memory::ModelMemory;
use model_memory::{queue_tokens_max, working_bytes};
use vocabulary::ReadError;

use crate::constrain::OutputCompiler;
use crate::encode::PromptEncoder;
use crate::engine::LoadedModel;
use crate::hardware::{self, Hardware, KernelsError};
use crate::kv_calibration::ColdFormat;
use crate::submit::EngineThread;
use crate::{Engine, StepMetrics};

/// Rows of a forward pass when nothing else is said: long enough to use the weights well, short enough to stay in cache.
const BATCH_ROWS: usize = 128;
/// Requests that wait at most when nothing else is said. One tenant alone fills half of it.
const QUEUE_MAX: usize = 2048;
/// The share of free memory that the KV cache of one sequence may take when nothing else is said.
const KV_MEMORY_SHARE: u64 = 4;

/// The share that all sequences together may take when nothing else is said.
const KV_BUDGET_SHARE: usize = 2;

/// By default there is room for the longest texts of all sequences and this many times as much, a fraction: cached prefixes
/// begin to go when 85 % are in use.
const KV_SLACK: (usize, usize) = (5, 4);

/// The least and the most memory for keys and values that makes sense.
struct KvBounds {
    least: usize,
    most: usize,
}

/// Longer contexts must be asked for: tables for every position are made at load.
const CONTEXT_DEFAULT_MAX: u64 = 131_072;

#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    #[error(transparent)]
    File(#[from] GgufError),
    #[error("the file's metadata cannot be used: {0}")]
    Metadata(#[from] MetadataError),
    #[error("the model cannot be loaded: {0}")]
    Model(#[from] LoadError),
    #[error("the model's vocabulary cannot be used: {0}")]
    Vocabulary(String),
    #[error("the model's tokenizer cannot be built: {0}")]
    Tokenizer(#[from] TokenizerError),
    #[error("the model's chat template cannot be used: {0}")]
    Template(#[from] ChatTemplateError),
    #[error("the tokenizer has {tokenizer} tokens and the model {model}: the file is damaged")]
    VocabularySize { tokenizer: usize, model: usize },
    #[error(transparent)]
    Kernels(#[from] KernelsError),
    #[error("the model's KV formats cannot be measured: {0}")]
    Guard(#[source] SubmitError),
    #[error("{budget} bytes are too few for KV pages of {page} bytes")]
    DiskTooSmall { budget: u64, page: usize },
    #[error(
        "the quotas guarantee {guaranteed} bytes to tenants, more than half of the KV budget of {budget}: nobody else could \
         run long texts; lower them or raise the budget"
    )]
    Guarantees { guaranteed: usize, budget: usize },
    #[error("the model's vocabulary cannot be used for grammars: {0}")]
    Grammars(#[source] GrammarError),
    #[error("the engine's thread cannot be started: {0}")]
    Thread(#[source] std::io::Error),
    #[error("{field} is {got}; it must be {wanted}")]
    Option { field: &'static str, got: usize, wanted: &'static str },
}

impl From<ReadError> for BuildError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Metadata(error) => Self::Metadata(error),
            ReadError::Vocabulary(error) => Self::Vocabulary(error.to_string()),
        }
    }
}

/// The tokenizer of a model file, without its weights, or of a `tokenizer.json`.
pub fn open_tokenizer(path: &Path) -> Result<Tokenizer, BuildError> {
    if path.extension().is_some_and(|extension| extension == "json") {
        let bytes = std::fs::read(path).map_err(|source| GgufError::Open { path: path.to_owned(), source })?;
        return Ok(Tokenizer::from_tokenizer_json(&bytes)?);
    }
    let gguf = Gguf::open(path)?;
    Ok(Tokenizer::from_vocabulary(vocabulary::read(gguf.metadata())?)?)
}

/// Decides how a model is run. Everything has a default that suits the machine.
#[derive(Debug)]
pub struct EngineBuilder {
    path: PathBuf,
    threads: Option<usize>,
    cores: Option<Arc<Cores>>,
    kernels: Option<KernelSet>,
    context: Option<usize>,
    sequences: usize,
    batch_rows: usize,
    tiers: KvChoice,
    guard_folder: Option<PathBuf>,
    kv_budget_bytes: Option<usize>,
    memory_bytes: Option<u64>,
    disk: Option<DiskStore>,
    quotas: Vec<(Tenant, Quota)>,
    shares_prefixes: bool,
    keeps_hidden_states: bool,
    step_metrics: StepMetrics,
}

impl EngineBuilder {
    pub(crate) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            threads: None,
            cores: None,
            kernels: None,
            context: None,
            sequences: 1,
            batch_rows: BATCH_ROWS,
            tiers: KvChoice::Tiers(Tiers::uniform(PageFormat::F16)),
            guard_folder: None,
            kv_budget_bytes: None,
            memory_bytes: None,
            disk: None,
            quotas: Vec::new(),
            shares_prefixes: false,
            keeps_hidden_states: false,
            step_metrics: StepMetrics::default(),
        }
    }

    /// Threads that compute; the cores that this process may use by default.
    pub fn threads(mut self, threads: Option<usize>) -> Self {
        self.threads = threads;
        self
    }

    /// The cores that it shares with other engines, which take turns on them; by default it has its own.
    pub fn cores(mut self, cores: Arc<Cores>) -> Self {
        self.cores = Some(cores);
        self
    }

    /// The instruction set; by default what `RUVLLM_KERNELS` names, or the fastest.
    pub fn kernels(mut self, kernels: KernelSet) -> Self {
        self.kernels = Some(kernels);
        self
    }

    /// Tokens per sequence at most; by default what the model was made for, as far as memory goes and up to 131,072.
    pub fn context(mut self, context: Option<usize>) -> Self {
        self.context = context;
        self
    }

    /// Sequences that run at the same time at most; 1 by default.
    pub fn sequences(mut self, sequences: usize) -> Self {
        self.sequences = sequences;
        self
    }

    /// Prompt tokens per forward pass at most.
    pub fn batch_rows(mut self, batch_rows: usize) -> Self {
        self.batch_rows = batch_rows;
        self
    }

    /// The formats of keys and values; half floats by default.
    pub fn kv(mut self, choice: KvChoice) -> Self {
        self.tiers = choice;
        self
    }

    /// Where it is kept what formats a model bears, so that it is measured once.
    pub fn guard_folder(mut self, folder: PathBuf) -> Self {
        self.guard_folder = Some(folder);
        self
    }

    /// Memory for keys and values at most, of running and of cached texts; by default what all sequences can fill, or half of what
    /// is free if that is less.
    pub fn kv_budget_bytes(mut self, bytes: Option<usize>) -> Self {
        self.kv_budget_bytes = bytes;
        self
    }

    /// The memory of which a share is taken for a context and a KV budget that are not given; what is free by default.
    pub fn memory_bytes(mut self, bytes: Option<u64>) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// Where keys and values go that leave memory, to be found again after a restart; nowhere by default. Engines that are given
    /// clones of one store share its budget.
    pub fn disk(mut self, disk: Option<DiskStore>) -> Self {
        self.disk = disk;
        self
    }

    /// What a tenant may count on of the KV budget, with all whose names begin with its name and a `/`.
    pub fn quota(mut self, tenant: Tenant, quota: Quota) -> Self {
        self.quotas.push((tenant, quota));
        self
    }

    /// Lets tenants use each other's cached prefixes, and so tell by the time to the first token what others have asked. Quotas
    /// have no effect then.
    pub fn share_prefixes(mut self, share: bool) -> Self {
        self.shares_prefixes = share;
        self
    }

    /// Keeps hidden states beside keys and values, for [`Request::embeddings`](crate::Request::embeddings) and [`Engine::embed`].
    /// They take a few hundredths of the KV budget.
    pub fn keep_hidden_states(mut self, keep: bool) -> Self {
        self.keeps_hidden_states = keep;
        self
    }

    /// Who is told of every step.
    pub fn step_metrics(mut self, metrics: StepMetrics) -> Self {
        self.step_metrics = metrics;
        self
    }

    pub fn build(self) -> Result<Engine, BuildError> {
        self.build_with_progress(&mut |_| {})
    }

    pub fn build_with_progress(self, progress: &mut dyn FnMut(BuildProgress)) -> Result<Engine, BuildError> {
        self.check()?;
        let gguf = Gguf::open(&self.path)?;
        let facts = ModelFacts::of(&gguf)?;
        let tokenizer = Tokenizer::from_vocabulary(vocabulary::read(gguf.metadata())?)?;
        let template =
            facts.chat_template.as_deref().map(|source| ChatTemplate::new(source, &tokenizer)).transpose()?;
        let kernels = self.kernels.map_or_else(hardware::chosen_kernels, Ok)?;
        let hardware = Hardware::detect();
        let memory_bytes = self.memory_bytes.or(hardware.memory_available_bytes);
        let context = self.context.unwrap_or_else(|| default_context(&facts, memory_bytes));
        // Before loading, which lets go of the file's pages as it is done with them.
        let fingerprint = fingerprint(&gguf);
        let total: u64 = facts.weights.iter().map(|share| share.bytes).sum();
        let model = Model::load(&gguf, context, &mut |done| progress(BuildProgress::Weights { done, total }))?;
        if tokenizer.vocab_size() != model.config().vocabulary {
            let (tokenizer, model) = (tokenizer.vocab_size(), model.config().vocabulary);
            return Err(BuildError::VocabularySize { tokenizer, model });
        }
        let tiers = self.tiers.tiers();
        let mut kv = self.kv_options(model.config());
        let KvBounds { least, most } = self.kv_bounds(&kv, model.config(), context);
        let affordable =
            memory_bytes.and_then(|bytes| usize::try_from(bytes).ok()).map(|bytes| bytes / KV_BUDGET_SHARE);
        kv.budget_bytes = self.kv_budget_bytes.unwrap_or_else(|| most.min(affordable.unwrap_or(most)).max(least));
        let guaranteed = self.guaranteed_bytes();
        if guaranteed > kv.budget_bytes / 2 {
            return Err(BuildError::Guarantees { guaranteed, budget: kv.budget_bytes });
        }
        let options = CoreOptions {
            batch_rows: self.batch_rows,
            sequences_max: self.sequences,
            queue_max: QUEUE_MAX,
            queue_tokens_max: queue_tokens_max(context),
            kv,
            fingerprint,
            quotas: self.quotas,
            shares_prefixes: self.shares_prefixes,
            keeps_states: self.keeps_hidden_states,
            ..CoreOptions::new(0)
        };
        let page = model.config().kv_shape().page_bytes(tiers.hot);
        if let Some(disk) = options.kv.disk.as_ref().filter(|disk| disk.budget_bytes() <= page as u64) {
            return Err(BuildError::DiskTooSmall { budget: disk.budget_bytes(), page });
        }
        let disk_folder = options.kv.disk.as_ref().map(|disk| disk.folder().to_owned());
        let hidden = model.config().hidden;
        let memory = ModelMemory {
            weights_bytes: model.weight_bytes(),
            working_bytes: working_bytes(model.config(), context, self.batch_rows.max(self.sequences)),
            kv_min_bytes: least.min(options.kv.budget_bytes),
            kv_max_bytes: options.kv.budget_bytes,
        };
        let threads = self.threads.unwrap_or(hardware.cores);
        let cores = self.cores.unwrap_or_else(|| Arc::new(Cores::new(hardware.cores)));
        let pool = Pool::sharing(cores, threads, kernels);
        let mut core = Core::new(model, pool, options);
        // Where no text grows so long, there are no cold pages to be chosen.
        let cold_format = if self.tiers == KvChoice::Auto && context > tiers.warm_tokens {
            Some(choose_cold(&mut core, &tokenizer, &fingerprint, self.guard_folder.as_deref(), progress)?)
        } else {
            None
        };
        let threads = core.threads();
        let thread = EngineThread::start(core, self.step_metrics).map_err(BuildError::Thread)?;
        let tokenizer = Arc::new(tokenizer);
        let grammars = GrammarCompiler::new(&tokenizer).map_err(BuildError::Grammars)?;
        let tool_format = ToolFormat::of_template(facts.chat_template.as_deref().unwrap_or_default());
        Ok(Engine::new(LoadedModel {
            outputs: OutputCompiler::new(grammars, tool_format),
            encoder: PromptEncoder::new(tokenizer, template, tool_format, context),
            thread,
            kernels,
            threads,
            hidden,
            disk_folder,
            cold_format,
            memory,
        }))
    }

    /// What the model will need, without loading it.
    pub fn memory(&self) -> Result<ModelMemory, BuildError> {
        let gguf = Gguf::open(&self.path)?;
        let (facts, config) = (ModelFacts::of(&gguf)?, Model::read_config(&gguf)?);
        let memory_bytes = self.memory_bytes.or_else(|| Hardware::detect().memory_available_bytes);
        let context = self.context.unwrap_or_else(|| default_context(&facts, memory_bytes));
        let weights_bytes = facts.weights.iter().map(|share| share.bytes).sum::<u64>();
        let KvBounds { least, most } = self.kv_bounds(&self.kv_options(&config), &config, context);
        let kv_max_bytes = self.kv_budget_bytes.unwrap_or(most);
        Ok(ModelMemory {
            // Tiles are padded to whole ones.
            weights_bytes: usize::try_from(weights_bytes / 32 * 33).unwrap_or(usize::MAX),
            working_bytes: working_bytes(&config, context, self.batch_rows.max(self.sequences)),
            kv_min_bytes: least.min(kv_max_bytes),
            kv_max_bytes,
        })
    }

    fn kv_options(&self, config: &Config) -> KvOptions {
        let note_bytes = if self.keeps_hidden_states { Core::state_bytes(config) } else { 0 };
        KvOptions { disk: self.disk.clone(), note_bytes, ..KvOptions::new(self.tiers.tiers()) }
    }

    /// At least what one text of all of the context fills, and what is guaranteed; at most what all sequences can.
    fn kv_bounds(&self, kv: &KvOptions, config: &Config, context: usize) -> KvBounds {
        let pages = KvCache::pages_for(context);
        let all = pages.saturating_mul(self.sequences).saturating_mul(KV_SLACK.0) / KV_SLACK.1;
        let least = kv.budget_for(config.kv_shape(), pages + 2).max(self.guaranteed_bytes().saturating_mul(2));
        KvBounds { least, most: kv.budget_for(config.kv_shape(), all + 1).max(least) }
    }

    fn guaranteed_bytes(&self) -> usize {
        self.quotas.iter().map(|(_, quota)| quota.guaranteed_bytes).sum()
    }

    fn check(&self) -> Result<(), BuildError> {
        let within = |field, got: usize, max: usize, wanted| {
            if (1..=max).contains(&got) { Ok(()) } else { Err(BuildError::Option { field, got, wanted }) }
        };
        within("threads", self.threads.unwrap_or(1), 1024, "between 1 and 1024")?;
        within("context", self.context.unwrap_or(1), usize::MAX, "at least 1")?;
        within("sequences", self.sequences, 4096, "between 1 and 4096")?;
        within("batch_rows", self.batch_rows, 8192, "between 1 and 8192")
    }
}

/// What is being done to get a model ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BuildProgress {
    /// Bytes of weights are loaded, of so many.
    Weights { done: u64, total: u64 },
    /// It is found out how small keys and values may become, once for each model.
    MeasuringKv,
}

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvChoice {
    Tiers(Tiers),
    /// The last tokens in half floats, then 8 bits, and beyond 2,048 tokens as small as the model bears. That is measured when a model
    /// is first loaded.
    Auto,
}

impl KvChoice {
    /// What is not measured yet has the format that every model bears.
    fn tiers(self) -> Tiers {
        match self {
            Self::Tiers(tiers) => tiers,
            Self::Auto => Tiers::with_cold(PageFormat::Q8),
        }
    }
}

impl std::str::FromStr for KvChoice {
    type Err = TiersError;

    fn from_str(text: &str) -> Result<Self, TiersError> {
        if text == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::Tiers) }
    }
}

/// Takes the smallest cold format that the model bears, as measured now or before.
fn choose_cold(
    core: &mut Core,
    tokenizer: &Tokenizer,
    fingerprint: &[u8; 32],
    folder: Option<&Path>,
    progress: &mut dyn FnMut(BuildProgress),
) -> Result<ColdFormat, BuildError> {
    let known = folder.and_then(|folder| ColdFormat::read(folder, fingerprint));
    let found = match known {
        Some(found) => found,
        None => {
            progress(BuildProgress::MeasuringKv);
            let found = ColdFormat::measure(core, tokenizer).map_err(BuildError::Guard)?;
            // If it cannot be kept it is measured again next time.
            if let Some(Err(error)) = folder.map(|folder| found.write(folder, fingerprint)) {
                tracing::warn!("the measured KV formats cannot be kept: {error}");
            }
            found
        }
    };
    core.set_cold(found.format, found.rotation);
    Ok(found)
}

/// What the model was made for, unless that is very long or the keys and values of so many tokens would fill the memory.
fn default_context(facts: &ModelFacts, memory_bytes: Option<u64>) -> usize {
    let model = facts.context_length.unwrap_or(0).min(CONTEXT_DEFAULT_MAX);
    let token_bytes = facts.kv_bytes_per_token().unwrap_or(1).max(1);
    let affordable = memory_bytes.map_or(model, |bytes| bytes / KV_MEMORY_SHARE / token_bytes);
    usize::try_from(model.min(affordable).max(1)).unwrap_or(usize::MAX)
}
