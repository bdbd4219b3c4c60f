//! The embeddings that a memory stores: all of one kind, of an embedding model or hidden states of one generating model.

use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ruvllm_memory::{DimensionStats, Embed, Memory, MemoryError};

use super::dimension_stats::{measure, standardised};
use super::{EmbedError, EmbedInput, EmbedRequest, Embedder, TooLong};
use crate::Engine;

/// Interval between attempts to measure a model whose hidden states are to be stored.
const MEASURE_INTERVAL: Duration = Duration::from_secs(30);

/// Prefix of the name under which hidden states are stored.
const HIDDEN: &str = "hidden:";

/// An embedding model, with the name that the memory stores.
#[derive(Clone, Debug)]
pub struct NamedEmbedder {
    pub name: String,
    pub model: Arc<dyn Embedder>,
}

/// Why a text cannot be compared with stored embeddings.
#[derive(Debug, thiserror::Error)]
pub enum RecallError {
    #[error("there is no text to look for")]
    Empty,
    #[error("nothing was embedded yet that a text could be compared with")]
    Nothing,
    #[error(
        "the model is not the one whose embeddings are stored; forget those with `ruvllm memory forget-embeddings`"
    )]
    OtherModel,
    #[error(transparent)]
    Model(#[from] EmbedError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

/// Makes the embeddings of one memory. Clones share their state.
#[derive(Clone, Debug)]
pub(crate) struct MemoryEmbeddings {
    memory: Arc<Memory>,
    source: Arc<Source>,
}

/// Where embeddings of requests come from.
#[derive(Debug)]
enum Source {
    /// An embedding model, which the recorder's thread runs.
    Model(Arc<dyn Embedder>),
    /// Hidden states of the model that answers.
    HiddenStates {
        /// The model whose states are stored, once there is one.
        stored: Mutex<Option<StoredStates>>,
        /// Time of the last attempt to measure a model.
        tried: Mutex<Option<Instant>>,
    },
}

/// The embeddings that the memory names as its own.
#[derive(Debug)]
struct StoredStates {
    /// See [`hidden_state_of`]; another name where embeddings of another kind are stored.
    name: String,
    stats: Option<Arc<DimensionStats>>,
}

impl MemoryEmbeddings {
    /// Returns the embeddings of a memory, and the function by which its recorder embeds texts, if it does.
    pub(crate) fn start(
        memory: &Arc<Memory>,
        embedder: Option<NamedEmbedder>,
    ) -> Result<(Self, Option<Embed>), MemoryError> {
        let (source, embed) = match embedder {
            Some(NamedEmbedder { name, model }) => {
                memory.embeddings().declare(&name, None)?;
                let embedder = Arc::clone(&model);
                let embed: Embed =
                    Box::new(move |texts: &[&str]| vectors_of(&*embedder, texts).map_err(|error| error.to_string()));
                (Source::Model(model), Some(embed))
            }
            None => {
                let stored = stored_states(memory)?;
                if stored.as_ref().is_some_and(|stored| stored.stats.is_none()) {
                    let how = "forget them with `ruvllm memory forget-embeddings` to have new ones stored";
                    tracing::warn!("the memory's embeddings are of an older kind, and none are added: {how}");
                }
                (Source::HiddenStates { stored: Mutex::new(stored), tried: Mutex::default() }, None)
            }
        };
        Ok((Self { memory: Arc::clone(memory), source: Arc::new(source) }, embed))
    }

    pub(crate) fn are_hidden_states(&self) -> bool {
        matches!(*self.source, Source::HiddenStates { .. })
    }

    /// Returns the embedding of a text to search for.
    pub(crate) fn embed(&self, text: &str, engine: Option<&Engine>) -> Result<Vec<f32>, RecallError> {
        match (&*self.source, engine) {
            (Source::Model(model), _) => vector_of(&**model, text, &self.memory),
            (Source::HiddenStates { .. }, Some(engine)) => vector_of(engine, text, &self.memory),
            (Source::HiddenStates { .. }, None) => Err(RecallError::Nothing),
        }
    }

    /// Measures the model and has its hidden states stored, unless embeddings of another model are.
    pub(crate) fn prepare(&self, engine: &Engine, model: &str) {
        let Source::HiddenStates { stored, .. } = &*self.source else { return };
        if lock(stored).is_some() {
            return;
        }
        // Not under the lock, which requests take.
        match self.adopt(engine, &hidden_state_of(model)) {
            Ok(states) => *lock(stored) = states,
            Err(why) => tracing::warn!("requests are remembered without embeddings: {why}"),
        }
    }

    /// Returns what the hidden states of requests to this model are standardised with; `None` if they are not stored, since
    /// those of several models could not be compared. While that is undecided, a thread decides it and no request waits.
    pub(crate) fn stats_for(&self, engine: &Engine, model: &str) -> Option<Arc<DimensionStats>> {
        let Source::HiddenStates { stored, tried } = &*self.source else { return None };
        if let Some(stored) = &*lock(stored) {
            return stored.stats.clone().filter(|_| stored.name == hidden_state_of(model));
        }
        let mut tried = lock(tried);
        if tried.is_none_or(|at| at.elapsed() >= MEASURE_INTERVAL) {
            *tried = Some(Instant::now());
            self.prepare_in_background(engine, model);
        }
        None
    }

    fn prepare_in_background(&self, engine: &Engine, model: &str) {
        let (embeddings, engine, model) = (self.clone(), engine.clone(), model.to_owned());
        let prepare = move || embeddings.prepare(&engine, &model);
        if let Err(error) = std::thread::Builder::new().name("embeddings".into()).spawn(prepare) {
            tracing::warn!("requests are remembered without embeddings: {error}");
        }
    }

    /// Makes the memory store the hidden states of this model from now on.
    fn adopt(&self, engine: &Engine, name: &str) -> Result<Option<StoredStates>, Box<dyn Error>> {
        self.memory.embeddings().declare(name, Some(&measure(engine)?))?;
        // Another machine may have been first, with statistics of its own.
        Ok(stored_states(&self.memory)?)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stored_states(memory: &Memory) -> Result<Option<StoredStates>, MemoryError> {
    let Some(name) = memory.embeddings().name()? else { return Ok(None) };
    Ok(Some(StoredStates { name, stats: memory.embeddings().dimension_stats()?.map(Arc::new) }))
}

/// Returns the vectors of texts, none of which is empty. The end of long ones is left out.
fn vectors_of(model: &dyn Embedder, texts: &[&str]) -> Result<Vec<Vec<f32>>, EmbedError> {
    let inputs = texts.iter().map(|text| EmbedInput::Text((*text).to_owned())).collect();
    let request = EmbedRequest { inputs, too_long: TooLong::CutEnd, ..EmbedRequest::default() };
    Ok(model.embed(&request)?.vectors)
}

/// Returns the vector of a text to search for. `model` is the one whose embeddings the memory holds.
pub fn vector_of(model: &dyn Embedder, text: &str, memory: &Memory) -> Result<Vec<f32>, RecallError> {
    if text.trim().is_empty() {
        return Err(RecallError::Empty);
    }
    let vector = vectors_of(model, &[text])?.pop().ok_or(RecallError::Nothing)?;
    let vector = match memory.embeddings().dimension_stats()? {
        Some(stats) => standardised(&vector, &stats).ok_or(RecallError::OtherModel)?,
        None => vector,
    };
    Ok(fitted(vector, memory.dimension()))
}

/// Returns the name under which a memory stores hidden states of a model.
pub fn hidden_state_of(model: &str) -> String {
    format!("{HIDDEN}{model}")
}

/// Returns the model whose hidden states are stored under a name, if they are hidden states.
pub fn hidden_model(embedding: &str) -> Option<&str> {
    embedding.strip_prefix(HIDDEN)
}

/// Returns a vector of `dimension` numbers or fewer. Longer ones are folded, each dimension with its own sign, which changes
/// angles little and always in the same way.
pub(crate) fn fitted(vector: Vec<f32>, dimension: usize) -> Vec<f32> {
    if vector.len() <= dimension {
        return vector;
    }
    let mut folded = vec![0.0; dimension];
    for (at, value) in vector.iter().enumerate() {
        let hash = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let sign = if hash >> 63 == 0 { 1.0 } else { -1.0 };
        folded[at % dimension] += sign * value;
    }
    folded
}
