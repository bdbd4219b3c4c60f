//! The last step of a recorded request: what became of it goes to the witness log, and the answer to its session.
//!
//! Without a memory nothing is recorded, and requests are answered all the same.

mod kept;
mod quality;
mod request_record;

use std::hash::RandomState;
use std::sync::Arc;
use std::time::Duration;

use ruvllm_engine::Recall;
use ruvllm_memory::{Memory, MemoryError, Recorder};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

pub(crate) use request_record::RequestRecord;

use crate::Engine;
use crate::embed::{MemoryEmbeddings, NamedEmbedder, RecallError};
use crate::recall::{RecallFor, RecallMemory, RecallStats};
use crate::router::RoutedModel;

/// Maximum number of concurrent reads of the memory by the server's endpoints.
const LOOKUPS_MAX: usize = 8;

/// A memory in use. Clones share it; dropping the last of them writes everything.
#[derive(Clone, Debug)]
pub struct RequestRecorder(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Ends before the recorder: fields are dropped in order.
    recall: Option<RecallMemory>,
    recorder: Recorder,
    embeddings: MemoryEmbeddings,
    /// Whether prompts and answers are stored with the witness log.
    keeps_text: bool,
    /// Hashes prompts, to recognise those that are asked again.
    prompt_hasher: RandomState,
    /// Limits reads: a database that hangs must not block all threads.
    lookups: Arc<Semaphore>,
}

/// What the witness log calls a request.
#[derive(Clone, Debug, Default)]
pub struct RequestIdentity {
    /// The id that the client was told.
    pub request: String,
    /// The id in the body of the response, where the API has one.
    pub response: Option<String>,
    /// The end user, as the client named them: see [`ruvllm_memory::check_user`].
    pub user: Option<String>,
    /// The name of the model that answers.
    pub model: String,
    /// Parameters of the request that have no effect.
    pub ignored: Vec<String>,
    /// The adapters that it is answered with, by name and digest.
    pub adapter: Option<String>,
    /// Whether texts and tokens are kept to learn from.
    pub learns: bool,
    /// How the model was chosen, where there was a choice.
    pub routed: Option<RoutedModel>,
}

impl RequestRecorder {
    /// Starts recording to a memory. Its embeddings are all of one kind: those of `embedder`, or hidden states.
    pub fn start(memory: Arc<Memory>, embedder: Option<NamedEmbedder>, keeps_text: bool) -> Result<Self, MemoryError> {
        Self::start_with_recall(memory, embedder, keeps_text, None)
    }

    /// Starts recording to a memory, and has requests of those that opted in to learning answered with what was
    /// corrected, of which up to `recall_bytes` are kept in memory.
    pub fn start_with_recall(
        memory: Arc<Memory>,
        embedder: Option<NamedEmbedder>,
        keeps_text: bool,
        recall_bytes: Option<usize>,
    ) -> Result<Self, MemoryError> {
        let (embeddings, embed) = MemoryEmbeddings::start(&memory, embedder)?;
        let recorder = Recorder::start(memory, embed)?;
        let lookups = Arc::new(Semaphore::new(LOOKUPS_MAX));
        let prompt_hasher = RandomState::new();
        let recall = recall_bytes.map(|bytes_max| RecallMemory::start(recorder.clone(), bytes_max)).transpose()?;
        Ok(Self(Arc::new(Inner { recall, recorder, embeddings, keeps_text, prompt_hasher, lookups })))
    }

    pub fn memory(&self) -> &Arc<Memory> {
        self.0.recorder.memory()
    }

    pub fn recorder(&self) -> &Recorder {
        &self.0.recorder
    }

    pub(crate) fn embeddings(&self) -> &MemoryEmbeddings {
        &self.0.embeddings
    }

    /// Returns whether engines must keep hidden states for this memory.
    pub fn uses_hidden_states(&self) -> bool {
        self.0.embeddings.are_hidden_states()
    }

    /// Returns what was corrected for a request, if there is anything.
    pub(crate) fn recall_for(&self, engine: &Engine, wanted: RecallFor<'_>) -> Option<Arc<Recall>> {
        self.0.recall.as_ref()?.of_request(engine, wanted)
    }

    pub(crate) fn recall(&self) -> Option<&RecallMemory> {
        self.0.recall.as_ref()
    }

    /// Has the next answers follow feedback that the recorder accepted.
    pub fn feedback_given(&self) {
        self.0.recall.iter().for_each(RecallMemory::feedback_given);
    }

    /// Has the next answers follow that something was forgotten, at once.
    pub fn forgotten(&self) {
        self.0.recall.iter().for_each(RecallMemory::forget);
    }

    /// Reads what was corrected before, so that the first request need not do without. Waits no longer than `within`.
    pub fn prepare_recall(&self, engine: &Engine, tenant: &str, session: Option<&str>, within: Duration) {
        if let Some(recall) = &self.0.recall {
            recall.prepare(engine, tenant, session);
            recall.settle(within);
        }
    }

    /// Waits until answers follow what was said so far. Returns `false` if that takes longer than `within`.
    pub fn settle_recall(&self, within: Duration) -> bool {
        self.0.recall.as_ref().is_none_or(|recall| recall.settle(within))
    }

    /// Returns figures of what answers are drawn with; `None` where that is turned off.
    pub fn recall_stats(&self) -> Option<RecallStats> {
        self.0.recall.as_ref().map(RecallMemory::stats)
    }

    /// Waits for a permit to read from the memory, to be held during the read. Requests that are answered need none.
    pub async fn lookup_permit(&self) -> Option<OwnedSemaphorePermit> {
        // Fails only if the semaphore was closed, which never happens.
        Arc::clone(&self.0.lookups).acquire_owned().await.ok()
    }

    /// Returns the embedding of a text to search for, made like the stored ones. `engine` runs the model whose hidden states
    /// are stored, where they are.
    pub fn embed(&self, text: &str, engine: Option<&Engine>) -> Result<Vec<f32>, RecallError> {
        self.0.embeddings.embed(text, engine)
    }

    /// Has the hidden states of this model stored from now on, unless other embeddings are stored already. Measures the model,
    /// so that the first request need not wait.
    pub fn prepare(&self, engine: &Engine, model: &str) {
        self.0.embeddings.prepare(engine, model);
    }
}
