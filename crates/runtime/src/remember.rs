//! The memory on the path of a request: its session is restored, policies fill in what it left open, and what became of it is
//! written down.
//!
//! Without a memory nothing of this happens, and requests are answered all the same.

mod quality;
mod route;
mod standard;
mod witness;

use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ruvllm_memory::{DimensionStats, Embed, Memory, MemoryError, Recorder, Session};
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::backend::EmbedError as BackendError;
use crate::{
    Backend, EmbedInput, EmbedRequest, Engine, GenerateError, Message, Patience, Prompt, Request, Stream, TooLong,
};

pub use route::check_policy;
use standard::standardised;
pub(crate) use witness::Witness;

/// A memory in use. Clones are the same one; when the last is gone, everything is written.
#[derive(Clone, Debug)]
pub struct Remembering(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    recorder: Recorder,
    vectors: Vectors,
    /// Whether what was said is stored with the witness log.
    keeps_text: bool,
    /// Who may look things up at a time: a database that hangs must not take all threads with it.
    turns: Arc<Semaphore>,
    /// When somebody last tried to find out whose hidden states are stored.
    tried: Mutex<Option<Instant>>,
}

/// Look-ups at a time.
const LOOK_UPS_MAX: usize = 8;

/// Between attempts.
const PREPARE_INTERVAL: Duration = Duration::from_secs(30);

/// Where embeddings of requests come from.
#[derive(Debug)]
enum Vectors {
    /// A model for it, on the recorder's thread.
    Embedder(Arc<dyn Backend>),
    /// The hidden states of the model that answers, once there is one.
    HiddenStates(Mutex<Option<HiddenStates>>),
}

/// Whose hidden states are stored.
#[derive(Debug)]
struct HiddenStates {
    /// What the store calls them; another name where other embeddings are stored.
    name: String,
    standard: Option<Arc<DimensionStats>>,
}

/// An embedding model, with the name that the store notes.
#[derive(Clone, Debug)]
pub struct Embedder {
    pub name: String,
    pub model: Arc<dyn Backend>,
}

/// The vectors of texts, none of which is empty. The end of long ones does not count.
fn vectors_of(model: &dyn Backend, texts: &[&str]) -> Result<Vec<Vec<f32>>, BackendError> {
    let inputs = texts.iter().map(|text| EmbedInput::Text((*text).to_owned())).collect();
    let request = EmbedRequest { inputs, too_long: TooLong::CutEnd, ..EmbedRequest::default() };
    Ok(model.embed(&request)?.vectors)
}

/// What the memory needs to know of a request besides what the engine does.
#[derive(Clone, Debug, Default)]
pub struct Remember {
    /// The id that the client was told.
    pub request: String,
    /// The name of the model that answers.
    pub model: String,
}

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
    Model(#[from] BackendError),
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

#[derive(Debug, thiserror::Error)]
pub enum RememberError {
    #[error(transparent)]
    Generate(#[from] GenerateError),
    #[error("a session needs messages, and one answer to them")]
    NotASession,
    #[error("the session cannot be restored: {0}")]
    Session(MemoryError),
    #[error("the session {name:?} is a conversation with {model}; ask that model, or begin another session")]
    OtherModel { name: String, model: String },
}

impl Remembering {
    /// Starts using a memory. Its embeddings are all of one kind: `embedder`'s, or hidden states.
    pub fn start(memory: Arc<Memory>, embedder: Option<Embedder>, keeps_text: bool) -> Result<Self, MemoryError> {
        let (vectors, embed) = match embedder {
            Some(Embedder { name, model }) => {
                memory.embeddings().declare(&name, None)?;
                let embedding = Arc::clone(&model);
                let embed: Embed =
                    Box::new(move |texts: &[&str]| vectors_of(&*embedding, texts).map_err(|error| error.to_string()));
                (Vectors::Embedder(model), Some(embed))
            }
            None => {
                let stored = stored_states(&memory)?;
                if stored.as_ref().is_some_and(|stored| stored.standard.is_none()) {
                    let how = "forget them with `ruvllm memory forget-embeddings` to have new ones stored";
                    tracing::warn!("the memory's embeddings are of an older kind, and none are added: {how}");
                }
                (Vectors::HiddenStates(Mutex::new(stored)), None)
            }
        };
        let recorder = Recorder::start(memory, embed)?;
        let (turns, tried) = (Arc::new(Semaphore::new(LOOK_UPS_MAX)), Mutex::default());
        Ok(Self(Arc::new(Inner { recorder, vectors, keeps_text, turns, tried })))
    }

    pub fn memory(&self) -> &Arc<Memory> {
        self.0.recorder.memory()
    }

    /// Whether engines must keep hidden states for it.
    pub fn uses_hidden_states(&self) -> bool {
        matches!(self.0.vectors, Vectors::HiddenStates(_))
    }

    pub fn recorder(&self) -> &Recorder {
        &self.0.recorder
    }

    /// Waits for a turn to look something up, which is to be held as long as that takes. Requests that are answered need none.
    pub async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        // It fails only if it was closed, which nobody does.
        Arc::clone(&self.0.turns).acquire_owned().await.ok()
    }

    /// Starts answering, as [`Engine::streams`] does. What becomes of the answers is written down when they end.
    pub fn streams(
        &self,
        engine: &Engine,
        mut requests: Vec<Request>,
        remember: &Remember,
        patience: &Patience,
    ) -> Result<Vec<Stream>, RememberError> {
        let started = Instant::now();
        let mut witness = Witness::new(self.clone(), remember, requests.first());
        let session = self.restore(&mut requests, &remember.model);
        let session = session.inspect_err(|error| witness.clone().refused("invalid_session", &error.to_string()))?;
        let policies = self.memory().policies().known(witness.tenant());
        witness.retrieved(started.elapsed());
        let standard = self.standard_for(engine, &remember.model);
        let mut witnesses = Vec::new();
        for request in &mut requests {
            request.embeddings = standard.is_some();
            let mut witness = witness.clone();
            witness.standard.clone_from(&standard);
            witness.route(&policies, &remember.model, request);
            witness.asks(engine, request, session.as_ref());
            witnesses.extend((0..request.choices).map(|_| witness.clone()));
        }
        witnesses.iter_mut().enumerate().for_each(|(index, witness)| witness.number(index));
        match engine.streams_of(&requests, patience) {
            Ok(mut streams) => {
                streams.iter_mut().zip(witnesses).for_each(|(stream, witness)| stream.watch(witness));
                Ok(streams)
            }
            Err(error) => {
                witness.failed(&error);
                Err(error.into())
            }
        }
    }

    /// Puts the conversation so far before what is said now.
    fn restore(&self, requests: &mut [Request], model: &str) -> Result<Option<Session>, RememberError> {
        let Some(name) = requests.iter().find_map(|request| request.session.clone()) else { return Ok(None) };
        let [request @ Request { choices: 1, .. }] = requests else { return Err(RememberError::NotASession) };
        let Prompt::Messages(messages) = &mut request.prompt else { return Err(RememberError::NotASession) };
        ruvllm_memory::check_session_name(&name).map_err(RememberError::Session)?;
        let session = self.0.recorder.session(request.tenant.name(), &name).map_err(RememberError::Session)?;
        let Some(session) = session else {
            check_size(messages)?;
            return Ok(None);
        };
        if session.model != model {
            return Err(RememberError::OtherModel { name, model: session.model });
        }
        let before = session.messages.iter().map(Message::from_json).collect::<Option<Vec<_>>>();
        let before = before.ok_or_else(|| RememberError::Session(MemoryError::unreadable_session(&name)))?;
        *messages = continued(before, std::mem::take(messages));
        check_size(messages)?;
        Ok(Some(session))
    }

    /// The embedding of a text that is searched for, by whatever embeds what is stored: `engine` is the model of whose hidden
    /// states that are, where they are.
    pub fn embed(&self, text: &str, engine: Option<&Engine>) -> Result<Vec<f32>, RecallError> {
        match (&self.0.vectors, engine) {
            (Vectors::Embedder(model), _) => vector_of(&**model, text, self.memory()),
            (Vectors::HiddenStates(_), Some(engine)) => vector_of(engine, text, self.memory()),
            (Vectors::HiddenStates(_), None) => Err(RecallError::Nothing),
        }
    }

    /// Gets ready for requests to a model: where nothing was embedded yet, its hidden states will be.
    pub fn prepare(&self, engine: &Engine, model: &str) {
        let Vectors::HiddenStates(stored) = &self.0.vectors else { return };
        if lock(stored).is_some() {
            return;
        }
        // Not under the lock: requests look at it.
        match self.adopt(engine, &hidden_state_of(model)) {
            Ok(states) => *lock(stored) = states,
            Err(why) => tracing::warn!("requests are remembered without embeddings: {why}"),
        }
    }

    /// What the hidden states of requests to this model are measured by. `None` if they are not stored: those of several models
    /// could not be compared. If that is open yet, it is decided aside, and no request waits for it.
    fn standard_for(&self, engine: &Engine, model: &str) -> Option<Arc<DimensionStats>> {
        let Vectors::HiddenStates(stored) = &self.0.vectors else { return None };
        let stored = lock(stored);
        if let Some(stored) = &*stored {
            return stored.standard.clone().filter(|_| stored.name == hidden_state_of(model));
        }
        drop(stored);
        self.prepare_aside(engine, model);
        None
    }

    /// Once in a while, for as long as it fails.
    fn prepare_aside(&self, engine: &Engine, model: &str) {
        let mut tried = lock(&self.0.tried);
        if tried.is_some_and(|at| at.elapsed() < PREPARE_INTERVAL) {
            return;
        }
        *tried = Some(Instant::now());
        drop(tried);
        let (remembering, engine, model) = (self.clone(), engine.clone(), model.to_owned());
        let prepare = move || remembering.prepare(&engine, &model);
        if let Err(error) = std::thread::Builder::new().name("embeddings".into()).spawn(prepare) {
            tracing::warn!("requests are remembered without embeddings: {error}");
        }
    }

    /// The memory is to store the hidden states of this model from now on.
    fn adopt(&self, engine: &Engine, name: &str) -> Result<Option<HiddenStates>, Box<dyn Error>> {
        self.memory().embeddings().declare(name, Some(&standard::measure(engine)?))?;
        // Another machine may have been first, with a standard of its own.
        Ok(stored_states(self.memory())?)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stored_states(memory: &Memory) -> Result<Option<HiddenStates>, MemoryError> {
    let Some(name) = memory.embeddings().name()? else { return Ok(None) };
    Ok(Some(HiddenStates { name, standard: memory.embeddings().dimension_stats()?.map(Arc::new) }))
}

/// What a text that is searched for is compared by, by the model whose embeddings a memory holds.
pub fn vector_of(model: &dyn Backend, text: &str, memory: &Memory) -> Result<Vec<f32>, RecallError> {
    if text.trim().is_empty() {
        return Err(RecallError::Empty);
    }
    let vector = vectors_of(model, &[text])?.pop().ok_or(RecallError::Nothing)?;
    let vector = match memory.embeddings().dimension_stats()? {
        Some(standard) => standardised(&vector, &standard).ok_or(RecallError::OtherModel)?,
        None => vector,
    };
    Ok(fitted(vector, memory.dimension()))
}

/// What the store calls embeddings that are hidden states of a model.
pub fn hidden_state_of(model: &str) -> String {
    format!("{HIDDEN}{model}")
}

/// The model whose hidden states are stored, if they are.
pub fn hidden_model(embedding: &str) -> Option<&str> {
    embedding.strip_prefix(HIDDEN)
}

const HIDDEN: &str = "hidden:";

/// A vector of at most so many dimensions. Longer ones are folded, each dimension with a sign of its own: that changes angles
/// little, and always in the same way.
pub fn fitted(vector: Vec<f32>, dimension: usize) -> Vec<f32> {
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

/// Whether a conversation can be stored; before it is answered, so that its client is told.
fn check_size(messages: &[Message]) -> Result<(), RememberError> {
    let messages: Vec<Value> = messages.iter().map(Message::to_json).collect();
    ruvllm_memory::check_conversation(&messages).map_err(RememberError::Session)
}

/// Clients send what is new, or all of it again. An instruction that is there already is not repeated.
fn continued(before: Vec<Message>, sent: Vec<Message>) -> Vec<Message> {
    if sent.len() > before.len() && sent[..before.len()] == before[..] {
        return sent;
    }
    let repeats = |message: &Message| message.role == "system" && before.contains(message);
    let new: Vec<Message> = sent.into_iter().filter(|message| !repeats(message)).collect();
    before.into_iter().chain(new).collect()
}

impl Message {
    /// As [`Message::to_json`] wrote it.
    pub fn from_json(json: &Value) -> Option<Self> {
        let text = |field: &str| json.get(field).and_then(Value::as_str).map(str::to_owned);
        let calls = json.get("tool_calls").and_then(Value::as_array).into_iter().flatten();
        let call = |call: &Value| {
            let part = |field: &str| call.pointer(field).and_then(Value::as_str).map(str::to_owned);
            let (id, name, arguments) = (part("/id")?, part("/function/name")?, part("/function/arguments")?);
            Some(crate::ToolCall { id, name, arguments })
        };
        Some(Self {
            role: text("role")?,
            content: text("content")?,
            tool_calls: calls.map(call).collect::<Option<_>>()?,
            tool_call_id: text("tool_call_id"),
            name: text("name"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_goes_on_whether_or_not_it_is_sent_again() {
        let before = vec![Message::system("Be brief."), Message::user("Hello"), Message::assistant("Hi")];
        let expected: Vec<Message> = before.iter().cloned().chain([Message::user("Go on")]).collect();
        assert_eq!(continued(before.clone(), vec![Message::user("Go on")]), expected);
        assert_eq!(continued(before.clone(), vec![Message::system("Be brief."), Message::user("Go on")]), expected);
        assert_eq!(continued(before.clone(), expected.clone()), expected);
        let other = vec![Message::system("Be rude."), Message::user("Go on")];
        assert_eq!(continued(before, other).len(), 5, "another instruction counts");
    }

    #[test]
    fn a_conversation_that_is_full_is_refused_before_it_is_answered() {
        let message = Message { name: Some("A".repeat(5_000_000)), ..Message::user("hi") };
        assert!(check_size(std::slice::from_ref(&message)).is_ok());
        let error = check_size(&[message.clone(), message]).unwrap_err();
        assert!(matches!(error, RememberError::Session(MemoryError::Invalid { field: "session", .. })), "{error}");
        assert!(error.to_string().contains("begin another session"), "{error}");
    }

    #[test]
    fn messages_come_back_as_they_were_stored() {
        let call = crate::ToolCall { id: "1".into(), name: "f".into(), arguments: "{\"a\": 1}".into() };
        let asked = Message { tool_calls: vec![call.clone()], ..Message::assistant("") };
        for message in [Message::user("Grüße \u{1F600}"), asked, Message::tool(&call, "2")] {
            assert_eq!(Message::from_json(&message.to_json()), Some(message));
        }
        assert_eq!(Message::from_json(&serde_json::json!({ "role": 1 })), None);
    }
}
