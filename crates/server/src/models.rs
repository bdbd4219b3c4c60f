//! The models of a server. They are loaded at the start or on their first request, as far as memory allows.
//!
//! HTTP clients know models by their names in the store: they cannot name a file. Only those that may change the store can
//! cause a download (`changes.rs`).

mod adapter_table;
mod adapters;
mod auto;
mod changes;
mod embedding_queue;
mod error;
mod in_use;
mod keep_alive;
mod kernel_packs;
mod known;
mod known_adapters;
mod learned;
mod room;
mod runner;
mod status;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ruvllm_runtime::{Embedder, Engine, KernelChoice, LearnedFiles, LoadedPack, ModelMemory, Reranker, StepMetrics};
use ruvllm_store::{Listed, ModelFile, ModelSettings, Store};
use tokio::sync::{OnceCell, Semaphore};

use crate::memory_budget::{MemoryBudget, Share};
use crate::metrics::{Metrics, ModelMetrics};
use adapter_table::AdapterTable;
use in_use::{User, Users};
use known::Descriptions;
use learned::LearnedAdapters;

pub use adapter_table::ServedAdapter;
pub use adapters::{AdapterOrder, AskedAdapters};
pub(crate) use embedding_queue::EmbeddingQueue;
pub use error::{LoadFailure, ModelError};
pub use in_use::ModelInUse;
pub use keep_alive::KeepAlive;
pub use known::{KnownModel, ModelDescription};
pub use known_adapters::KnownAdapter;
pub use learned::Asker;
pub use runner::{Runner, RunnerKind};
pub use status::{LoadedAdapters, LoadedModel};

/// Loads models with the settings of this server.
pub trait Loader: Send + Sync {
    /// Returns how much memory the model will need.
    fn memory(&self, file: &Path) -> Result<ModelMemory, LoadFailure>;

    /// Loads the model. An engine reports its steps to `steps`.
    fn load(&self, file: &Path, steps: StepMetrics) -> Result<Runner, LoadFailure>;

    /// Checks and compiles an installed kernel pack.
    fn kernel_pack(&self, name: &str) -> Result<Arc<LoadedPack>, LoadFailure>;

    /// Returns what decides between kernels of packs and native ones, where nobody says.
    fn kernel_choice(&self) -> KernelChoice;

    /// Reads what a file says of its model, without loading it.
    fn describe(&self, file: &Path) -> Result<ModelDescription, LoadFailure>;
}

/// A model that answers requests.
#[derive(Debug)]
pub struct ServedModel {
    pub name: Arc<str>,
    pub runner: Runner,
    pub metrics: ModelMetrics,
    pub loaded_at: SystemTime,
    /// What it was loaded from.
    pub file: PathBuf,
    /// Defaults of its own, where requests leave them open.
    pub settings: Arc<ModelSettings>,
    /// Requests that embed or rerank with this model.
    pub(crate) embedding: EmbeddingQueue,
    /// When it was last used, as a count of the uses of all models.
    used: AtomicU64,
    used_at: Mutex<Instant>,
    /// As the last request that said something about it wants; otherwise the server's.
    keep_alive: Mutex<Option<KeepAlive>>,
    /// Released after the runner is gone: fields are dropped in order.
    share: Share,
}

impl ServedModel {
    /// Returns the engine of a model that generates text.
    pub fn generator(&self) -> Result<&Engine, ModelError> {
        let kind = self.runner.kind();
        self.runner.generator().ok_or_else(|| ModelError::NoGenerator { name: self.name.to_string(), kind })
    }

    /// Returns when it was last used, as a count of the uses of all models.
    fn uses(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the encoder of an embedding model.
    pub fn encoder(&self) -> Result<&Arc<dyn Embedder>, ModelError> {
        let kind = self.runner.kind();
        self.runner.encoder().ok_or_else(|| ModelError::NoEncoder { name: self.name.to_string(), kind })
    }

    /// Returns the reranker of a reranking model.
    pub fn reranker(&self) -> Result<&Arc<dyn Reranker>, ModelError> {
        let kind = self.runner.kind();
        self.runner.reranker().ok_or_else(|| ModelError::NoReranker { name: self.name.to_string(), kind })
    }
}

/// Holds a model, or nothing while it is being loaded. Requests that arrive meanwhile wait for the same load.
#[derive(Debug, Default)]
struct Slot {
    /// What to load: a name in the store, or the path of a file that was named at the start.
    source: String,
    /// Named at the start: the last to be unloaded for others, and its slot stays.
    is_pinned: bool,
    model: OnceCell<Arc<ServedModel>>,
    users: Users,
}

/// Settings of the operator.
#[derive(Debug)]
pub struct ModelsOptions {
    /// Further names of models, from `--alias`.
    pub aliases: BTreeMap<String, String>,
    /// Maximum number of loaded models.
    pub loaded_max: usize,
    /// Models that were not used for this long are unloaded, except those named at the start.
    pub keep_alive: Option<Duration>,
    pub memory: Arc<MemoryBudget>,
    /// Memory for adapters that are in use, of all models together.
    pub adapter_bytes: usize,
    /// Folders below which clients with the scope admin may have adapters loaded.
    pub adapter_folders: Vec<PathBuf>,
    /// Adapters that were learned; `None` for a server without a memory.
    pub learned: Option<LearnedFiles>,
}

/// What a name in a request stands for.
struct Target {
    slot: String,
    /// Of a model that is made from the one in the slot.
    settings: Option<Arc<ModelSettings>>,
}

impl Slot {
    /// Returns the same slot without the model.
    fn emptied(&self) -> Arc<Self> {
        Arc::new(Self { source: self.source.clone(), is_pinned: self.is_pinned, ..Self::default() })
    }
}

pub struct Models {
    store: Arc<Store>,
    loader: Arc<dyn Loader>,
    metrics: Arc<Metrics>,
    options: ModelsOptions,
    slots: Mutex<HashMap<String, Arc<Slot>>>,
    adapters: Mutex<AdapterTable>,
    learned: Mutex<LearnedAdapters>,
    /// Models that were named at the start, in their order.
    named: Mutex<Vec<String>>,
    uses: AtomicU64,
    /// Held while memory is distributed.
    sharing: Mutex<()>,
    /// What files say of their models.
    descriptions: Descriptions,
    /// Limits how many models are fetched concurrently.
    pulls: Arc<Semaphore>,
}

impl Models {
    pub fn new(store: Store, loader: Arc<dyn Loader>, metrics: Arc<Metrics>, options: ModelsOptions) -> Self {
        Self {
            store: Arc::new(store),
            loader,
            metrics,
            options,
            slots: Mutex::default(),
            adapters: Mutex::default(),
            learned: Mutex::default(),
            named: Mutex::default(),
            uses: AtomicU64::new(0),
            sharing: Mutex::default(),
            descriptions: Descriptions::default(),
            pulls: Arc::new(Semaphore::new(changes::PULLS_MAX)),
        }
    }

    /// Returns where a model reports its steps.
    pub fn step_metrics(&self, name: &str) -> StepMetrics {
        self.metrics.model(name).steps()
    }

    /// Serves a model for as long as the server runs; `open` loads it from the file. Returns `None` if it does not fit beside
    /// the others: it is then loaded by a request while they are idle.
    pub fn pin<E: From<ModelError>>(
        &self,
        file: &ModelFile,
        source: &str,
        open: impl FnOnce(StepMetrics) -> Result<Runner, E>,
    ) -> Result<Option<ModelInUse>, E> {
        // A model that is made from another is loaded as that one, which requests for both then share.
        let (name, source, settings) = match &file.base {
            Some(base) => {
                let settings = self.store.named(base).map_err(ModelError::from)?.settings;
                (base.as_str(), base.as_str(), settings)
            }
            None => (file.name.as_str(), source, file.settings.clone()),
        };
        let slot = Arc::new(Slot { source: source.to_owned(), is_pinned: true, ..Slot::default() });
        let load_error = |error| ModelError::Load { name: name.to_owned(), error };
        let memory = self.loader.memory(&file.path).map_err(load_error)?;
        let model = match self.reserve(name, memory) {
            Ok(share) => {
                let runner = open(self.step_metrics(name))?;
                Some(self.serve(name, &file.path, *settings, runner, share))
            }
            // It would not fit alone either.
            Err(error) if memory.min_bytes() > self.options.memory.for_models() => return Err(error.into()),
            Err(error) => {
                tracing::warn!(
                    model = name,
                    "not loaded yet: {error}; a request will load it when another model is idle"
                );
                None
            }
        };
        let in_use = model.map(|model| {
            // A new slot is empty.
            let _ = slot.model.set(Arc::clone(&model));
            ModelInUse::new(model, slot.users.enter())
        });
        self.slots().insert(name.to_owned(), slot);
        self.named.lock().unwrap_or_else(PoisonError::into_inner).push(name.to_owned());
        self.share_out();
        Ok(in_use)
    }

    /// Returns the model of this name, loaded if necessary. It stays loaded while the returned value exists.
    pub async fn get(self: &Arc<Self>, name: &str) -> Result<ModelInUse, ModelError> {
        let Target { slot: name, settings } = self.target(name);
        let name = name.as_str();
        let known = self.enter(name);
        let (slot, user) = match known {
            Some(entered) => entered,
            None => self.enter_new(name)?,
        };
        let load = || self.load(name, &slot.source);
        let model = match slot.model.get_or_try_init(load).await {
            Ok(model) => Arc::clone(model),
            Err(error) => {
                if !slot.is_pinned {
                    self.remove_slot(name, &slot);
                }
                return Err(error);
            }
        };
        model.used.store(self.uses.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        *model.used_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        let in_use = ModelInUse::new(model, user);
        Ok(match settings {
            Some(settings) => in_use.with_settings(settings),
            None => in_use,
        })
    }

    /// Loads a model again and then replaces the old one, which finishes its running requests.
    pub async fn reload(self: &Arc<Self>, name: &str) -> Result<(), ModelError> {
        let name = &*self.target(name).slot;
        let (source, is_pinned) = self.loaded(name, |slot| (slot.source.clone(), slot.is_pinned))?;
        let model = OnceCell::new_with(Some(self.load(name, &source).await?));
        let slot = Slot { source, is_pinned, model, users: Users::default() };
        let old = self.slots().insert(name.to_owned(), Arc::new(slot));
        self.unload_slot(old).await;
        Ok(())
    }

    /// Unloads a model, which finishes its running requests.
    pub async fn unload(self: &Arc<Self>, name: &str) -> Result<(), ModelError> {
        let name = &*self.target(name).slot;
        if self.loaded(name, |slot| slot.is_pinned)? {
            return Err(ModelError::Pinned { name: name.to_owned() });
        }
        let old = self.slots().remove(name);
        self.unload_slot(old).await;
        Ok(())
    }

    /// Drops a model whose engine has failed: the next request loads it again.
    pub fn forget(&self, model: &ModelInUse) {
        let mut slots = self.slots();
        if let Some(slot) = slots.get_mut(&*model.name)
            && slot.model.get().is_some_and(|other| Arc::ptr_eq(other, &model.model))
        {
            model.share.leave();
            *slot = slot.emptied();
        }
    }

    /// Returns all loaded models, by name.
    pub fn all_loaded(&self) -> Vec<ModelInUse> {
        let in_use = |slot: &Arc<Slot>| Some(ModelInUse::new(slot.model.get().cloned()?, slot.users.enter()));
        let mut all: Vec<_> = self.slots().values().filter_map(in_use).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Returns the models in the store, loaded or not.
    pub fn stored(&self) -> Vec<ModelFile> {
        let listed = self.store.list().unwrap_or_else(|error| {
            tracing::warn!("cannot list the models in the store: {error}");
            Vec::new()
        });
        let usable = listed.into_iter().filter_map(|listed| match listed {
            Listed::Model(file) => Some(file),
            Listed::Unusable { .. } => None,
        });
        usable.collect()
    }

    /// Returns what a name stands for. The public methods that take a name call this first; all else here takes names of slots.
    ///
    /// `NAME:latest` is Ollama's long form of `NAME`. A model that is made from another is served by that one's slot.
    fn target(&self, name: &str) -> Target {
        let short = name.strip_suffix(":latest").unwrap_or(name);
        let alias = |name| self.options.aliases.get(name).map(String::as_str);
        let name = alias(name).or_else(|| alias(short)).unwrap_or(name);
        let short = name.strip_suffix(":latest").unwrap_or(name);
        let slot = |slot: &str| Target { slot: slot.to_owned(), settings: None };
        {
            let slots = self.slots();
            if let Some(known) = [name, short].into_iter().find(|name| slots.contains_key(*name)) {
                return slot(known);
            }
        }
        match self.store.derived(short) {
            Some((base, settings)) => Target { slot: base, settings: Some(Arc::new(settings)) },
            None if short == auto::AUTO => slot(&self.default_model().unwrap_or_else(|| short.to_owned())),
            None if name != short && self.is_stored(name) => slot(name),
            None => slot(short),
        }
    }

    /// Returns the models that were named at the start, in their order.
    fn named_at_start(&self) -> Vec<String> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_stored(&self, name: &str) -> bool {
        self.stored().iter().any(|file| file.name == name)
    }

    /// Reads from the slot of a loaded model.
    fn loaded<T>(&self, name: &str, read: impl FnOnce(&Slot) -> T) -> Result<T, ModelError> {
        let loaded = self.slots().get(name).filter(|slot| slot.model.initialized()).map(|slot| read(slot));
        loaded.ok_or_else(|| ModelError::NotLoaded { name: name.to_owned() })
    }

    /// Counts a user of a slot, if it exists, before anybody else can find it idle.
    fn enter(&self, name: &str) -> Option<(Arc<Slot>, User)> {
        let slots = self.slots();
        let slot = slots.get(name)?;
        Some((Arc::clone(slot), slot.users.enter()))
    }

    /// Does the same with a new slot for a model in the store.
    fn enter_new(&self, name: &str) -> Result<(Arc<Slot>, User), ModelError> {
        if !self.is_stored(name) {
            return Err(self.unknown(name));
        }
        let slot = || Arc::new(Slot { source: name.to_owned(), ..Slot::default() });
        let mut slots = self.slots();
        let slot = slots.entry(name.to_owned()).or_insert_with(slot);
        Ok((Arc::clone(slot), slot.users.enter()))
    }

    fn remove_slot(&self, name: &str, slot: &Arc<Slot>) {
        let mut slots = self.slots();
        if slots.get(name).is_some_and(|other| Arc::ptr_eq(other, slot)) {
            slots.remove(name);
        }
    }

    /// Loads a model by its name in the store or from a file; a file that changed since it was pulled is refused.
    async fn load(self: &Arc<Self>, name: &str, source: &str) -> Result<Arc<ServedModel>, ModelError> {
        tracing::info!(model = name, "loading");
        let (models, source, named) = (Arc::clone(self), source.to_owned(), name.to_owned());
        let loaded = tokio::task::spawn_blocking(move || {
            let file = models.store.resolve(&source)?;
            if file.settings.template.is_some() {
                tracing::warn!(
                    model = named,
                    "the template of Ollama's manifest is not used, but the one in the model's file"
                );
            }
            let failed = |error| ModelError::Load { name: named.clone(), error };
            let share = models.reserve(&named, models.loader.memory(&file.path).map_err(failed)?)?;
            let runner = models.loader.load(&file.path, models.step_metrics(&named)).map_err(failed)?;
            let model = models.serve(&named, &file.path, *file.settings, runner, share);
            models.share_out_with(&model);
            Ok(model)
        });
        loaded.await.map_err(|_| ModelError::Lost { name: name.to_owned() })?
    }

    fn serve(
        &self,
        name: &str,
        file: &Path,
        settings: ModelSettings,
        runner: Runner,
        share: Share,
    ) -> Arc<ServedModel> {
        tracing::info!(model = name, backend = runner.backend(), "loaded");
        if let Some(engine) = runner.generator() {
            share.settle(*engine.memory());
        }
        Arc::new(ServedModel {
            name: name.into(),
            runner,
            metrics: self.metrics.model(name),
            loaded_at: SystemTime::now(),
            file: file.to_owned(),
            settings: Arc::new(settings),
            embedding: EmbeddingQueue::default(),
            used: AtomicU64::new(0),
            used_at: Mutex::new(Instant::now()),
            keep_alive: Mutex::default(),
            share,
        })
    }

    fn unknown(&self, name: &str) -> ModelError {
        let stored = self.stored().into_iter().map(|file| file.name);
        let loaded = self.all_loaded().into_iter().map(|model| model.name.to_string());
        let mut known: Vec<String> = stored.chain(loaded).chain(self.options.aliases.keys().cloned()).collect();
        known.sort();
        known.dedup();
        ModelError::Unknown { name: name.to_owned(), known }
    }

    fn slots(&self) -> MutexGuard<'_, HashMap<String, Arc<Slot>>> {
        // No operation under the lock can leave it inconsistent.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Models {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Models").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Returns seconds since 1970.
pub(crate) fn unix_s(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
