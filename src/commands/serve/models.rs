//! The models of a server: which ones, how they run, and their endpoints.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use ruvllm_backends::{CrossEncoder, Encoder, EncoderFacts, Purpose, is_encoder};
use ruvllm_memory::Memory;
use ruvllm_runtime::hardware::Hardware;
use ruvllm_runtime::{
    Cores, Engine, EngineBuilder, KernelChoice, LearnedFiles, LoadedPack, ModelMemory, Quota, RequestRecorder,
    StepMetrics, Tenant, provide_tokenizer_files,
};
use ruvllm_server::kv_events::AdapterNames;
use ruvllm_server::metrics::{Metrics, Snapshots};
use ruvllm_server::models::{LoadFailure, Loader, ModelDescription, Models, ModelsOptions, Runner, RunnerKind};
use ruvllm_server::{Api, BodyBudget, Fleet, GrpcServices, Lifecycle, OpenApiRouter, Preparing};

use super::adapters::AdapterFlags;
use super::budget::FixedParts;
use super::describe::describe;
use super::kv_events::ListenedTo;
use super::ollama::OllamaEnvironment;
use super::router::RouterFlags;
use crate::flags::backend::{BackendFlag, parse_backend_of};
use crate::flags::duration::parse_duration;
use crate::flags::model::EngineFlags;
use crate::flags::size::parse_size;
use crate::loading::{build, model_file, store};

/// Minimum memory that is left to the rest of the machine, unless it has very little.
const RESERVE_MIN: u64 = 256 << 20;
/// Activations of the longest batch of an embedding model.
const ENCODER_WORKING_BYTES: usize = 64 << 20;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Models")]
pub struct ModelsFlags {
    /// Maximum concurrent sequences per model; further requests wait
    #[arg(long, value_name = "N", default_value_t = 16)]
    sequences: usize,
    /// Maximum number of loaded models, including those named here; an idle one is unloaded when another is needed
    #[arg(long, value_name = "N", default_value_t = 4)]
    models_max: usize,
    /// Maximum memory of the server, for everything, such as 2G. Idle models are unloaded when others need their memory
    /// [default: the free memory of the machine or its container, less an eighth]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    memory: Option<u64>,
    /// Unload models that were not used for this long, such as 5m, except those named here [default: only when their
    /// memory is needed]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    keep_alive: Option<Duration>,
    /// Alias of a model, for programs that request a fixed name; can be repeated
    #[arg(long, value_name = "NAME=MODEL", value_parser = parse_alias)]
    alias: Vec<(String, String)>,
    /// What runs one of the models, whatever --backend says, such as smollm2=candle; can be repeated
    #[arg(long, value_name = "MODEL=BACKEND", value_parser = parse_backend_of)]
    backend_of: Vec<(String, BackendFlag)>,
    /// Maximum duration of an answer in seconds; it then ends with an error
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..))]
    answer_timeout: u64,
    /// KV memory that is guaranteed to a tenant, and its limit, such as acme=512M or acme=512M:2G; can be repeated
    #[arg(long, value_name = "TENANT=SIZE[:LIMIT]", value_parser = parse_quota)]
    kv_share: Vec<(String, Quota)>,
    /// Share cached prefixes between tenants. They can then infer from the time to the first token what others have
    /// sent
    #[arg(long)]
    share_prefixes: bool,
    #[command(flatten)]
    router: RouterFlags,
    #[command(flatten)]
    adapters: AdapterFlags,
    #[command(flatten)]
    engine: EngineFlags,
    /// Whether the memory needs hidden states.
    #[arg(skip)]
    keeps_hidden_states: bool,
    /// Keeps what kernels of packs took.
    #[arg(skip)]
    memory_of_kernels: Option<Arc<Memory>>,
    /// Shared by all models, which take turns on them.
    #[arg(skip = Arc::new(Cores::new(Hardware::detect().cores)))]
    cores: Arc<Cores>,
    /// Memory for all models together.
    #[arg(skip)]
    for_models: Option<u64>,
    /// Set if somebody is told of cached prefixes.
    #[arg(skip)]
    listened_to: Option<ListenedTo>,
    /// Where other machines reach this server.
    #[arg(skip)]
    address: String,
    /// Folder where routers find the tokenizer.
    #[arg(skip)]
    tokenizer: Option<PathBuf>,
}

/// The endpoints and what drives them.
pub struct Endpoints {
    /// For keys of the scope `inference`.
    pub inference: OpenApiRouter,
    /// For administrators.
    pub admin: OpenApiRouter,
    pub grpc: GrpcServices,
    /// Returns the state of all loaded models, for `/metrics`.
    pub snapshots: Snapshots,
    pub body_budget: Arc<BodyBudget>,
    /// Returns the names of adapters.
    pub adapter_names: AdapterNames,
    /// Returns whether requests are answered now.
    pub is_busy: Arc<dyn Fn() -> bool + Send + Sync>,
    /// The servers that share the memory.
    pub fleet: Arc<Fleet>,
    /// Called periodically, on a thread that may block.
    pub maintain: Arc<dyn Fn() + Send + Sync>,
    /// Called several times a second: withdraws kernel packs that fail or are slow.
    pub watch_kernel_packs: Box<dyn Fn() + Send + Sync>,
    /// Loads the models, on a thread of its own while the server already listens. When it returns, `/ready` says so; if
    /// it fails, the server ends.
    pub load: Box<dyn FnOnce() -> Result<Vec<Ready>> + Send>,
}

/// A model that was loaded at the start.
pub struct Ready {
    /// Name in requests.
    pub name: String,
    pub endpoint: Endpoint,
}

/// The endpoint to try a model with.
#[derive(Clone, Copy)]
pub enum Endpoint {
    Chat,
    Embeddings,
    Rerank,
}

impl ModelsFlags {
    /// Prepares the models of a command line. Does not wait for them to load.
    pub fn endpoints(
        mut self,
        names: Vec<String>,
        metrics: &Arc<Metrics>,
        lifecycle: &Lifecycle,
        (memory, learned): (Option<RequestRecorder>, Option<LearnedFiles>),
        body_bytes_max: usize,
        ollama: Option<&OllamaEnvironment>,
    ) -> Result<Endpoints> {
        if let Some(ollama) = ollama {
            self.apply_defaults(ollama);
        }
        let shared = memory.as_ref().map(|memory| Arc::clone(memory.memory()));
        self.memory_of_kernels.clone_from(&shared);
        self.keeps_hidden_states = memory.as_ref().is_some_and(RequestRecorder::uses_hidden_states);
        if names.len() > self.models_max {
            bail!("{} models are named and --models-max is {}; raise it", names.len(), self.models_max);
        }
        self.adapters.check()?;
        let aliases: BTreeMap<String, String> = self.alias.iter().cloned().collect();
        let answer_time_max = Duration::from_secs(self.answer_timeout);
        // Read once: the free memory changes all the time.
        let memory_bytes = self.memory_bytes();
        let witness_queue = memory.as_ref().map(|memory| memory.recorder().queued_bytes_max());
        let has_disk = self.engine.kv.kv_disk.is_some();
        let adapters = self.adapters.memory_bytes();
        let recall = memory.as_ref().and_then(RequestRecorder::recall_stats).map_or(0, |stats| stats.bytes_max);
        let parts = FixedParts::new(memory_bytes, body_bytes_max, witness_queue, has_disk, adapters, recall);
        let budget = parts.budget(memory_bytes)?;
        self.for_models = memory_bytes.map(|_| budget.for_models() as u64);
        let body_budget = Arc::new(BodyBudget::new(parts.bodies));
        let (loaded_max, keep_alive) = (self.models_max, self.keep_alive);
        let options = ModelsOptions {
            aliases,
            loaded_max,
            keep_alive,
            memory: Arc::new(budget),
            adapter_bytes: parts.adapters,
            adapter_folders: self.adapters.folders()?,
            learned,
        };
        let models = Arc::new(Models::new(store()?, Arc::new(self.clone()), Arc::clone(metrics), options));
        let (lifecycle, answer_time_max) = (lifecycle.clone(), Some(answer_time_max));
        let preparing = Preparing::default();
        let router = self.router.start(memory.as_ref())?;
        let fleet = Arc::new(Fleet::new(Arc::clone(&models), shared, self.address.clone()));
        let api = Api {
            models: Arc::clone(&models),
            lifecycle,
            answer_time_max,
            memory: memory.clone(),
            router,
            fleet: Arc::clone(&fleet),
            preparing,
            allows_local_changes: ollama.is_some(),
        };
        let remembering = memory.clone();
        Ok(Endpoints {
            inference: api.clone().router(),
            grpc: api.grpc(self.tokenizer.as_deref()),
            admin: api.admin_router(),
            snapshots: {
                let (models, metrics, bodies) = (Arc::clone(&models), Arc::clone(metrics), Arc::clone(&body_budget));
                Arc::new(move || {
                    metrics.memory(&models.memory(), bodies.used_bytes());
                    if let Some(memory) = &memory {
                        metrics.witness(memory.recorder().stats());
                        memory.recall_stats().iter().for_each(|stats| metrics.recall(stats));
                    }
                    models.snapshots()
                })
            },
            body_budget,
            adapter_names: {
                let models = Arc::clone(&models);
                Arc::new(move |id| models.adapter_name(id).map(|name| name.to_string()))
            },
            is_busy: {
                let models = Arc::clone(&models);
                Arc::new(move || models.is_busy())
            },
            maintain: {
                let (models, memory, fleet) = (Arc::clone(&models), remembering.clone(), Arc::clone(&fleet));
                let is_told = AtomicBool::new(false);
                Arc::new(move || {
                    if let Some(memory) = &memory {
                        let refreshed = models.refresh_learned(memory.memory());
                        if let (Err(error), false) = (&refreshed, is_told.load(Ordering::Relaxed)) {
                            tracing::warn!("what was learned cannot be read; what is served stays: {error}");
                        }
                        is_told.store(refreshed.is_err(), Ordering::Relaxed);
                    }
                    models.maintain();
                    models.learn_of_kernel_packs();
                    fleet.announce();
                })
            },
            watch_kernel_packs: {
                let models = Arc::clone(&models);
                Box::new(move || models.watch_kernel_packs())
            },
            fleet: Arc::clone(&fleet),
            load: Box::new(move || {
                let ready = names.iter().map(|name| self.load(name, &models, remembering.as_ref()));
                let ready = ready.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect();
                self.adapters.load(&models)?;
                self.provide_tokenizer(&models)?;
                fleet.join()?;
                Ok(ready)
            }),
        })
    }

    /// Uses what Ollama's users have set, where no flag says otherwise.
    fn apply_defaults(&mut self, ollama: &OllamaEnvironment) {
        if let (None, Some(keep_alive)) = (self.keep_alive, ollama.keep_alive) {
            self.keep_alive = keep_alive;
            tracing::info!(?keep_alive, "OLLAMA_KEEP_ALIVE is used for --keep-alive");
        }
        if let (None, Some(context)) = (self.engine.context, ollama.context) {
            self.engine.context = Some(context);
            tracing::info!(context, "OLLAMA_CONTEXT_LENGTH is used for --context");
        }
    }

    /// Tells the servers that share the memory where this one is reached.
    pub fn reached_at(self, address: &str) -> Self {
        Self { address: address.to_owned(), ..self }
    }

    /// Has somebody told of cached prefixes.
    pub fn listened_to(self, by: Option<ListenedTo>) -> Self {
        Self { listened_to: by, ..self }
    }

    /// Puts the tokenizer of the first generating model into this folder.
    pub fn tokenizer_for_routers(self, folder: Option<PathBuf>) -> Self {
        Self { tokenizer: folder, ..self }
    }

    fn provide_tokenizer(&self, models: &Models) -> Result<()> {
        let Some(folder) = &self.tokenizer else { return Ok(()) };
        let file = models.default_file().context("--grpc-tokenizer needs a generating model; name one")?;
        provide_tokenizer_files(&file, folder).context("--grpc-tokenizer: routers would have no tokenizer")
    }

    fn builder(&self, file: &Path) -> Result<EngineBuilder> {
        let builder = self.engine.builder(file)?.sequences(self.sequences).share_prefixes(self.share_prefixes);
        let builder = builder.keep_hidden_states(self.keeps_hidden_states).cores(Arc::clone(&self.cores));
        let builder = builder.kernel_memory(self.memory_of_kernels.clone());
        let builder = builder.memory_bytes(self.for_models).draft_model(self.engine.draft_model.find_if_fitting(file)?);
        let builder = match self.backend_of(file)? {
            Some(backend) => self.engine.backend.apply_to_one(backend, builder)?,
            None => builder,
        };
        let with_quota =
            |builder: EngineBuilder, (tenant, quota): &(String, Quota)| builder.quota(Tenant::new(tenant), *quota);
        Ok(self.kv_share.iter().fold(builder, with_quota))
    }

    /// Returns what `--backend-of` says of the model in a file.
    fn backend_of(&self, file: &Path) -> Result<Option<BackendFlag>> {
        let store = store()?;
        let is_meant = |name: &str| store.resolve(name).is_ok_and(|named| named.path == file);
        Ok(self.backend_of.iter().rfind(|(name, _)| is_meant(name)).map(|(_, backend)| *backend))
    }

    /// Loads a model for as long as the server runs, fetched if necessary. Returns `None` if it has to wait until
    /// others are idle.
    fn load(&self, name: &str, models: &Models, memory: Option<&RequestRecorder>) -> Result<Option<Ready>> {
        let file = model_file(name, Arc::new(AtomicBool::new(false)))?;
        let open = |steps| self.open(&file.path, steps, |builder| build(builder, &file.path));
        let Some(model) = models.pin(&file, name, open)? else { return Ok(None) };
        let endpoint = match model.runner.kind() {
            RunnerKind::Generator => Endpoint::Chat,
            RunnerKind::Encoder => Endpoint::Embeddings,
            RunnerKind::Reranker => Endpoint::Rerank,
        };
        if let (Some(memory), Some(engine)) = (memory, model.runner.generator()) {
            memory.prepare(engine, file.base.as_deref().unwrap_or(&file.name));
        }
        Ok(Some(Ready { name: file.name, endpoint }))
    }

    /// Returns the memory of the process, if known.
    fn memory_bytes(&self) -> Option<usize> {
        let free =
            || Hardware::detect().memory_available_bytes.map(|free| free - (free / 8).max(RESERVE_MIN).min(free / 2));
        self.memory.or_else(free).map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX))
    }

    /// Loads a model of any kind; `build` builds the engine.
    fn open<E>(
        &self,
        file: &Path,
        steps: StepMetrics,
        build: impl FnOnce(EngineBuilder) -> Result<Engine, E>,
    ) -> Result<Runner>
    where
        anyhow::Error: From<E>,
    {
        if is_encoder(file) {
            return Ok(match EncoderFacts::of(file)?.purpose {
                Purpose::Embedding => Runner::Encoder(Arc::new(Encoder::open(file)?)),
                Purpose::Reranking => Runner::Reranker(Arc::new(CrossEncoder::open(file)?)),
            });
        }
        let listener = self.listened_to.as_ref().and_then(|listened_to| listened_to.listener_of(file));
        Ok(Runner::Generator(build(self.builder(file)?.step_metrics(steps).prefix_listener(listener))?))
    }
}

impl Loader for ModelsFlags {
    fn memory(&self, file: &Path) -> Result<ModelMemory, LoadFailure> {
        if is_encoder(file) {
            // Weights are stored as floats, whatever the type in the file.
            let bytes = usize::try_from(std::fs::metadata(file)?.len()).unwrap_or(usize::MAX);
            return Ok(ModelMemory {
                weights_bytes: bytes.saturating_mul(2),
                working_bytes: ENCODER_WORKING_BYTES,
                ..ModelMemory::default()
            });
        }
        Ok(self.builder(file)?.memory()?)
    }

    fn load(&self, file: &Path, steps: StepMetrics) -> Result<Runner, LoadFailure> {
        Ok(self.open(file, steps, EngineBuilder::build)?)
    }

    fn kernel_pack(&self, name: &str) -> Result<Arc<LoadedPack>, LoadFailure> {
        Ok(self.engine.pack.load_installed(name)?)
    }

    fn kernel_choice(&self) -> KernelChoice {
        self.engine.pack.choice()
    }

    fn describe(&self, file: &Path) -> Result<ModelDescription, LoadFailure> {
        Ok(describe(file)?)
    }
}

fn parse_alias(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((alias, model)) if !alias.is_empty() && !model.is_empty() => Ok((alias.to_owned(), model.to_owned())),
        _ => Err("expected a name and a model, such as gpt-4o-mini=smollm2".to_owned()),
    }
}

fn parse_quota(text: &str) -> Result<(String, Quota)> {
    let (tenant, sizes) = text.split_once('=').context("expected a tenant and a size, such as acme=512M")?;
    let (guaranteed, limit) = match sizes.split_once(':') {
        Some((guaranteed, limit)) => (guaranteed, Some(limit)),
        None => (sizes, None),
    };
    let size = |text: &str| {
        let bytes = parse_size(text).map_err(anyhow::Error::msg)?;
        anyhow::Ok(usize::try_from(bytes).unwrap_or(usize::MAX))
    };
    let quota = Quota { guaranteed_bytes: size(guaranteed)?, limit_bytes: limit.map(size).transpose()? };
    if quota.limit_bytes.is_some_and(|limit| limit < quota.guaranteed_bytes) {
        bail!("the limit is below the guarantee");
    }
    Ok((tenant.to_owned(), quota))
}
