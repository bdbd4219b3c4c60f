//! The models that are served: loaded at the start, or when they are first asked for.
//!
//! Over HTTP a model is known by its name in the store only: a client can neither name a file nor have one fetched.

mod embedding_queue;
mod runner;
mod status;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use ruvllm_runtime::{Backend, Engine, StepMetrics};
use ruvllm_store::{Listed, ModelFile, Store, StoreError};
use tokio::sync::OnceCell;

use crate::metrics::{Metrics, ModelMetrics};
pub(crate) use embedding_queue::EmbeddingQueue;
pub use runner::Runner;
pub use status::LoadedModel;

/// Loads the model of a file, with the settings of this server. An engine tells the metrics of its steps.
pub type Loader = Arc<dyn Fn(&Path, StepMetrics) -> Result<Runner, LoadFailure> + Send + Sync>;

/// Why a model could not be loaded; each kind has reasons of its own.
pub type LoadFailure = Box<dyn std::error::Error + Send + Sync>;

#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("there is no model {name:?} here; available are {}", .known.join(", "))]
    Unknown { name: String, known: Vec<String> },
    #[error("{loaded} models are loaded, which is the limit, and all are in use; try again later")]
    Full { loaded: usize },
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
}

impl ServedModel {
    /// What generates text, if that is what the model is for.
    pub fn generator(&self) -> Result<&Engine, ModelError> {
        self.runner.generator().ok_or_else(|| ModelError::NoGenerator { name: self.name.to_string() })
    }

    /// What embeds texts, if that is what the model is for.
    pub fn encoder(&self) -> Result<&Arc<dyn Backend>, ModelError> {
        self.runner.encoder().ok_or_else(|| ModelError::NoEncoder { name: self.name.to_string() })
    }
}

/// A place for a model, empty while it is being loaded. Whoever asks meanwhile waits for the same load.
#[derive(Debug, Default)]
struct Slot {
    /// What it is loaded from: a name of the store, or the path of a file that was named at the start.
    source: String,
    /// It was named at the start, so it is never unloaded for others.
    is_kept: bool,
    model: OnceCell<Arc<ServedModel>>,
}

pub struct Models {
    store: Arc<Store>,
    loader: Loader,
    metrics: Arc<Metrics>,
    /// Further names, as `--alias` gives them.
    aliases: BTreeMap<String, String>,
    loaded_max: usize,
    slots: Mutex<HashMap<String, Arc<Slot>>>,
    uses: AtomicU64,
}

impl Models {
    pub fn new(
        store: Store,
        loader: Loader,
        metrics: Arc<Metrics>,
        aliases: BTreeMap<String, String>,
        loaded_max: usize,
    ) -> Self {
        let (slots, uses) = (Mutex::default(), AtomicU64::new(0));
        Self { store: Arc::new(store), loader, metrics, aliases, loaded_max, slots, uses }
    }

    /// Who is told of the steps of a model that is about to be loaded.
    pub fn step_metrics(&self, name: &str) -> StepMetrics {
        self.metrics.model(name).steps()
    }

    /// Serves a model that was loaded at the start, from a name or the path of a file, for as long as the server runs.
    pub fn keep(&self, name: &str, source: &str, runner: Runner) {
        let slot = Slot { source: source.to_owned(), is_kept: true, model: self.served(name, runner) };
        self.slots().insert(name.to_owned(), Arc::new(slot));
    }

    /// The model of this name, loaded if need be.
    pub async fn get(&self, name: &str) -> Result<Arc<ServedModel>, ModelError> {
        let name = self.aliases.get(name).map_or(name, String::as_str);
        let known = self.slots().get(name).cloned();
        let slot = match known {
            Some(slot) => slot,
            None => self.new_slot(name)?,
        };
        let load = || async { Ok(self.serve(name, self.load(name, &slot.source).await?)) };
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
        Ok(model)
    }

    /// Loads a model again and then takes it instead of the old one, which finishes what it has begun.
    pub async fn reload(&self, name: &str) -> Result<(), ModelError> {
        let slot = self.loaded(name)?;
        let runner = self.load(name, &slot.source).await?;
        let slot = Slot { source: slot.source.clone(), is_kept: slot.is_kept, model: self.served(name, runner) };
        self.slots().insert(name.to_owned(), Arc::new(slot));
        Ok(())
    }

    /// Lets go of a model. What it has begun is finished.
    pub fn unload(&self, name: &str) -> Result<(), ModelError> {
        if self.loaded(name)?.is_kept {
            return Err(ModelError::Kept { name: name.to_owned() });
        }
        self.slots().remove(name);
        Ok(())
    }

    /// An engine has failed: the next request loads it again.
    pub fn forget(&self, model: &Arc<ServedModel>) {
        let mut slots = self.slots();
        if let Some(slot) = slots.get_mut(&*model.name)
            && slot.model.get().is_some_and(|other| Arc::ptr_eq(other, model))
        {
            let Slot { source, is_kept, .. } = &**slot;
            *slot = Arc::new(Slot { source: source.clone(), is_kept: *is_kept, model: OnceCell::new() });
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
        &self.aliases
    }

    fn loaded(&self, name: &str) -> Result<Arc<Slot>, ModelError> {
        let loaded = self.slots().get(name).filter(|slot| slot.model.initialized()).cloned();
        loaded.ok_or_else(|| ModelError::NotLoaded { name: name.to_owned() })
    }

    /// A place for a model of the store. Another that nobody uses may have to go for it.
    fn new_slot(&self, name: &str) -> Result<Arc<Slot>, ModelError> {
        if !self.stored().iter().any(|file| file.name == name) {
            return Err(self.unknown(name));
        }
        let mut slots = self.slots();
        if slots.len() >= self.loaded_max && !slots.contains_key(name) {
            // Whoever generates holds the model too.
            let is_idle = |model: &&Arc<ServedModel>| Arc::strong_count(model) == 1;
            let idle = slots.values().filter(|slot| !slot.is_kept).filter_map(|slot| slot.model.get()).filter(is_idle);
            let oldest =
                idle.min_by_key(|model| model.used.load(Ordering::Relaxed)).map(|model| model.name.to_string());
            let oldest = oldest.ok_or(ModelError::Full { loaded: slots.len() })?;
            slots.remove(&oldest);
        }
        let slot = || Arc::new(Slot { source: name.to_owned(), ..Slot::default() });
        Ok(Arc::clone(slots.entry(name.to_owned()).or_insert_with(slot)))
    }

    fn remove_slot(&self, name: &str, slot: &Arc<Slot>) {
        let mut slots = self.slots();
        if slots.get(name).is_some_and(|other| Arc::ptr_eq(other, slot)) {
            slots.remove(name);
        }
    }

    /// Loads from a name of the store or from a file; what was changed since it was pulled is refused.
    async fn load(&self, name: &str, source: &str) -> Result<Runner, ModelError> {
        tracing::info!(model = name, "loading");
        let (store, loader, steps) = (Arc::clone(&self.store), Arc::clone(&self.loader), self.step_metrics(name));
        let (source, named) = (source.to_owned(), name.to_owned());
        let loaded = tokio::task::spawn_blocking(move || {
            let file = store.resolve(&source)?;
            loader(&file.path, steps).map_err(|error| ModelError::Load { name: named, error })
        });
        loaded.await.map_err(|_| ModelError::Lost { name: name.to_owned() })?
    }

    fn serve(&self, name: &str, runner: Runner) -> Arc<ServedModel> {
        let (metrics, loaded_at) = (self.metrics.model(name), SystemTime::now());
        let (used, embedding) = (AtomicU64::new(0), EmbeddingQueue::default());
        Arc::new(ServedModel { name: name.into(), runner, metrics, loaded_at, used, embedding })
    }

    fn served(&self, name: &str, runner: Runner) -> OnceCell<Arc<ServedModel>> {
        OnceCell::new_with(Some(self.serve(name, runner)))
    }

    fn unknown(&self, name: &str) -> ModelError {
        let stored = self.stored().into_iter().map(|file| file.name);
        let loaded = self.all_loaded().into_iter().map(|model| model.name.to_string());
        let mut known: Vec<String> = stored.chain(loaded).chain(self.aliases.keys().cloned()).collect();
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
        f.debug_struct("Models").field("aliases", &self.aliases).field("loaded_max", &self.loaded_max).finish()
    }
}

/// Seconds since 1970.
pub(crate) fn unix_s(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
