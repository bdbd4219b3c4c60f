//! The models that are served: loaded at the start, or when they are first asked for, as far as memory goes.
//!
//! Over HTTP a model is known by its name in the store only: a client can neither name a file nor have one fetched.

mod embedding_queue;
mod room;
mod runner;
mod status;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ruvllm_runtime::{Embedder, Engine, ModelMemory, StepMetrics};
use ruvllm_store::{Listed, ModelFile, Store, StoreError};
use tokio::sync::OnceCell;

use crate::memory_budget::{MemoryBudget, Share};
use crate::metrics::{Metrics, ModelMetrics};
pub(crate) use embedding_queue::EmbeddingQueue;
pub use runner::Runner;
pub use status::LoadedModel;

/// Loads models, with the settings of this server.
pub trait Loader: Send + Sync {
    /// What the model of a file will take of the memory.
    fn memory(&self, file: &Path) -> Result<ModelMemory, LoadFailure>;

    /// Loads it. An engine tells the metrics of its steps.
    fn load(&self, file: &Path, steps: StepMetrics) -> Result<Runner, LoadFailure>;
}

/// Why a model could not be loaded; each kind has reasons of its own.
pub type LoadFailure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("there is no model {name:?} here; available are {}", .known.join(", "))]
    Unknown { name: String, known: Vec<String> },
    #[error("{loaded} models are loaded, which is the limit, and all are in use; try again later")]
    Full { loaded: usize },
    #[error(
        "model {name:?} needs {} and {} are free within --memory; {}", megabytes(*.needed_bytes), megabytes(*.free_bytes),
        what_would_go(.loaded)
    )]
    NoRoom {
        name: String,
        needed_bytes: usize,
        free_bytes: usize,
        /// The models that are loaded, and what would become free without them.
        loaded: Vec<(String, usize)>,
    },
    #[error("model {name:?} was named when the server was started and stays loaded")]
    Kept { name: String },
    #[error("model {name:?} is not loaded")]
    NotLoaded { name: String },
    #[error("model {name:?} cannot be loaded: {error}")]
    Load { name: String, error: LoadFailure },
    #[error("model {name:?} turns texts into vectors and generates nothing; it answers at /v1/embeddings")]
    NoGenerator { name: String },
    #[error("model {name:?} generates text; /v1/embeddings needs a model for embeddings, such as minilm")]
    NoEncoder { name: String },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("loading model {name:?} was broken off")]
    Lost { name: String },
}

/// A model that answers requests.
#[derive(Debug)]
pub struct ServedModel {
    pub name: Arc<str>,
    pub runner: Runner,
    pub metrics: ModelMetrics,
    pub loaded_at: SystemTime,
    /// Whoever embeds with it.
    pub(crate) embedding: EmbeddingQueue,
    /// Counts up with each use of any model.
    used: AtomicU64,
    used_at: Mutex<Instant>,
    /// Given back after the runner is gone: fields are dropped in their order.
    share: Share,
}

impl ServedModel {
    /// What generates text, if that is what the model is for.
    pub fn generator(&self) -> Result<&Engine, ModelError> {
        self.runner.generator().ok_or_else(|| ModelError::NoGenerator { name: self.name.to_string() })
    }

    /// What embeds texts, if that is what the model is for.
    pub fn encoder(&self) -> Result<&Arc<dyn Embedder>, ModelError> {
        self.runner.encoder().ok_or_else(|| ModelError::NoEncoder { name: self.name.to_string() })
    }
}

/// A place for a model, empty while it is being loaded. Whoever asks meanwhile waits for the same load.
#[derive(Debug, Default)]
struct Slot {
    /// What it is loaded from: a name of the store, or the path of a file that was named at the start.
    source: String,
    /// It was named at the start: it is the last to be unloaded for others, and its place stays.
    is_kept: bool,
    model: OnceCell<Arc<ServedModel>>,
}

/// What the operator decides.
#[derive(Debug)]
pub struct ModelsOptions {
    /// Further names, as `--alias` gives them.
    pub aliases: BTreeMap<String, String>,
    /// Models that are loaded at the same time at most.
    pub loaded_max: usize,
    /// Models that nobody has used for so long are unloaded, but for those named at the start.
    pub keep_alive: Option<Duration>,
    pub memory: Arc<MemoryBudget>,
}

impl Slot {
    /// The same place without the model.
    fn emptied(&self) -> Arc<Self> {
        Arc::new(Self { source: self.source.clone(), is_kept: self.is_kept, model: OnceCell::new() })
    }
}

pub struct Models {
    store: Arc<Store>,
    loader: Arc<dyn Loader>,
    metrics: Arc<Metrics>,
    options: ModelsOptions,
    slots: Mutex<HashMap<String, Arc<Slot>>>,
    uses: AtomicU64,
    /// Held while memory is shared out.
    sharing: Mutex<()>,
}

impl Models {
    pub fn new(store: Store, loader: Arc<dyn Loader>, metrics: Arc<Metrics>, options: ModelsOptions) -> Self {
        let (slots, uses, sharing) = (Mutex::default(), AtomicU64::new(0), Mutex::default());
        Self { store: Arc::new(store), loader, metrics, options, slots, uses, sharing }
    }

    /// Who is told of the steps of a model that is about to be loaded.
    pub fn step_metrics(&self, name: &str) -> StepMetrics {
        self.metrics.model(name).steps()
    }

    /// Serves a model for as long as the server runs, from a name or the path of a file, as `open` loads it. One that does not
    /// fit beside the others is loaded when it is asked for and they are idle; that is told by `None`.
    pub fn keep<E: From<ModelError>>(
        &self,
        name: &str,
        source: &str,
        file: &Path,
        open: impl FnOnce(StepMetrics) -> Result<Runner, E>,
    ) -> Result<Option<Arc<ServedModel>>, E> {
        let slot = Arc::new(Slot { source: source.to_owned(), is_kept: true, model: OnceCell::new() });
        let load_error = |error| ModelError::Load { name: name.to_owned(), error };
        let memory = self.loader.memory(file).map_err(load_error)?;
        let model = match self.reserve(name, memory) {
            Ok(share) => Some(self.serve(name, open(self.step_metrics(name))?, share)),
            // It would not fit alone either.
            Err(error) if memory.min_bytes() > self.options.memory.for_models() => return Err(error.into()),
            Err(error) => {
                tracing::warn!(
                    model = name,
                    "not loaded yet: {error}; it will be when it is asked for and another is idle"
                );
                None
            }
        };
        if let Some(model) = &model {
            // A new slot is empty.
            let _ = slot.model.set(Arc::clone(model));
        }
        self.slots().insert(name.to_owned(), slot);
        self.share_out();
        Ok(model)
    }

    /// The model of this name, loaded if need be.
    pub async fn get(self: &Arc<Self>, name: &str) -> Result<Arc<ServedModel>, ModelError> {
        let name = self.real_name(name);
        let known = self.slots().get(name).cloned();
        let slot = match known {
            Some(slot) => slot,
            None => self.new_slot(name)?,
        };
        let load = || self.load(name, &slot.source);
        let model = match slot.model.get_or_try_init(load).await {
            Ok(model) => Arc::clone(model),
            Err(error) => {
                if !slot.is_kept {
                    self.remove_slot(name, &slot);
                }
                return Err(error);
            }
        };
        model.used.store(self.uses.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        *model.used_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        Ok(model)
    }

    /// Loads a model again and then takes it instead of the old one, which finishes what it has begun.
    pub async fn reload(self: &Arc<Self>, name: &str) -> Result<(), ModelError> {
        let name = self.real_name(name);
        let slot = self.loaded(name)?;
        let (source, is_kept) = (slot.source.clone(), slot.is_kept);
        drop(slot);
        let model = OnceCell::new_with(Some(self.load(name, &source).await?));
        let old = self.slots().insert(name.to_owned(), Arc::new(Slot { source, is_kept, model }));
        self.let_go(old).await;
        Ok(())
    }

    /// Lets go of a model. What it has begun is finished.
    pub async fn unload(self: &Arc<Self>, name: &str) -> Result<(), ModelError> {
        let name = self.real_name(name);
        if self.loaded(name)?.is_kept {
            return Err(ModelError::Kept { name: name.to_owned() });
        }
        let old = self.slots().remove(name);
        self.let_go(old).await;
        Ok(())
    }

    /// An engine has failed: the next request loads it again.
    pub fn forget(&self, model: &Arc<ServedModel>) {
        let mut slots = self.slots();
        if let Some(slot) = slots.get_mut(&*model.name)
            && slot.model.get().is_some_and(|other| Arc::ptr_eq(other, model))
        {
            model.share.leave();
            *slot = slot.emptied();
        }
    }

    /// All that are loaded, by name.
    pub fn all_loaded(&self) -> Vec<Arc<ServedModel>> {
        let mut all: Vec<_> = self.slots().values().filter_map(|slot| slot.model.get().cloned()).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Those in the store, loaded or not.
    pub fn stored(&self) -> Vec<ModelFile> {
        let listed = self.store.list().unwrap_or_else(|error| {
            tracing::warn!("the models of the store cannot be listed: {error}");
            Vec::new()
        });
        let usable = listed.into_iter().filter_map(|listed| match listed {
            Listed::Model(file) => Some(file),
            Listed::Unusable { .. } => None,
        });
        usable.collect()
    }

    pub fn aliases(&self) -> &BTreeMap<String, String> {
        &self.options.aliases
    }

    /// What an alias stands for.
    fn real_name<'a>(&'a self, name: &'a str) -> &'a str {
        self.options.aliases.get(name).map_or(name, String::as_str)
    }

    fn loaded(&self, name: &str) -> Result<Arc<Slot>, ModelError> {
        let loaded = self.slots().get(name).filter(|slot| slot.model.initialized()).cloned();
        loaded.ok_or_else(|| ModelError::NotLoaded { name: name.to_owned() })
    }

    /// A place for a model of the store.
    fn new_slot(&self, name: &str) -> Result<Arc<Slot>, ModelError> {
        if !self.stored().iter().any(|file| file.name == name) {
            return Err(self.unknown(name));
        }
        let slot = || Arc::new(Slot { source: name.to_owned(), ..Slot::default() });
        Ok(Arc::clone(self.slots().entry(name.to_owned()).or_insert_with(slot)))
    }

    fn remove_slot(&self, name: &str, slot: &Arc<Slot>) {
        let mut slots = self.slots();
        if slots.get(name).is_some_and(|other| Arc::ptr_eq(other, slot)) {
            slots.remove(name);
        }
    }

    /// Loads from a name of the store or from a file; what was changed since it was pulled is refused.
    async fn load(self: &Arc<Self>, name: &str, source: &str) -> Result<Arc<ServedModel>, ModelError> {
        tracing::info!(model = name, "loading");
        let (models, source, named) = (Arc::clone(self), source.to_owned(), name.to_owned());
        let loaded = tokio::task::spawn_blocking(move || {
            let file = models.store.resolve(&source)?;
            let failed = |error| ModelError::Load { name: named.clone(), error };
            let share = models.reserve(&named, models.loader.memory(&file.path).map_err(failed)?)?;
            let runner = models.loader.load(&file.path, models.step_metrics(&named)).map_err(failed)?;
            let model = models.serve(&named, runner, share);
            models.share_out_with(&model);
            Ok(model)
        });
        loaded.await.map_err(|_| ModelError::Lost { name: name.to_owned() })?
    }

    fn serve(&self, name: &str, runner: Runner, share: Share) -> Arc<ServedModel> {
        if let Some(engine) = runner.generator() {
            share.settle(*engine.memory());
        }
        Arc::new(ServedModel {
            name: name.into(),
            runner,
            metrics: self.metrics.model(name),
            loaded_at: SystemTime::now(),
            embedding: EmbeddingQueue::default(),
            used: AtomicU64::new(0),
            used_at: Mutex::new(Instant::now()),
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
        // Nothing is done under the lock that leaves it half done.
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Models {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Models").field("options", &self.options).finish_non_exhaustive()
    }
}

fn megabytes(bytes: usize) -> String {
    format!("{} MB", bytes.div_ceil(1_000_000))
}

/// What could be done so that a model fits.
fn what_would_go(loaded: &[(String, usize)]) -> String {
    if loaded.is_empty() {
        return "give the server more with --memory, or the model a shorter --context".to_owned();
    }
    let loaded: Vec<String> = loaded.iter().map(|(name, bytes)| format!("{name} ({})", megabytes(*bytes))).collect();
    format!("one of these would have to go and is in use: {}", loaded.join(", "))
}

/// Seconds since 1970.
pub(crate) fn unix_s(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
