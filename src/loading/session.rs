//! A conversation of the command line that is stored in the memory.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ruvllm_memory::{Annotation, Feedback, Memory, Said, Session, now_ms};
use ruvllm_runtime::{
    CancellationToken, Engine, EngineBuilder, Message, Request, RequestIdentity, RequestRecorder, Stream,
};

use super::embedding;
use crate::flags::session::SessionFlags;

/// Memory of what was corrected.
const RECALL_BYTES: usize = 32 << 20;
/// How long the next question waits for a correction to be read, and the first one for those of before.
const RECALL_PATIENCE: Duration = Duration::from_secs(2);

/// What a command line keeps: the session that it names, what can be learned from, or both.
#[derive(Debug)]
pub struct StoredSession {
    remembering: RequestRecorder,
    name: Option<String>,
    model: String,
    learns: bool,
    /// Id of the last request.
    last: RefCell<Option<String>>,
}

impl StoredSession {
    /// Opens the memory, if the flags ask for something to be kept. `model` is the name of the model that will answer.
    pub fn open(flags: &SessionFlags, model: &str) -> Result<Option<Self>> {
        if flags.session.is_none() && !flags.learn {
            return Ok(None);
        }
        let memory = Arc::new(Memory::open(flags.memory.options()?)?);
        if let Some(name) = &flags.session {
            check(&memory, name, model)?;
        }
        let embedder = embedding::embedder_of(&memory)?;
        let recall_bytes = (flags.learn && !flags.no_recall).then_some(RECALL_BYTES);
        let remembering = RequestRecorder::start_with_recall(memory, embedder, false, recall_bytes)?;
        let (name, model, learns) = (flags.session.clone(), model.to_owned(), flags.learn);
        Ok(Some(Self { remembering, name, model, learns, last: RefCell::default() }))
    }

    /// Returns the memory, if answers are to be given with what was learned.
    pub fn learned_from(&self) -> Option<&Memory> {
        self.learns.then(|| &**self.remembering.memory())
    }

    /// Returns the name of the session, if there is one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the id of the last request, if it is kept to learn from.
    pub fn last_request(&self) -> Option<String> {
        self.last.borrow().clone().filter(|_| self.learns)
    }

    /// Sets what the engine has to keep for the memory.
    pub fn prepare(&self, builder: EngineBuilder) -> EngineBuilder {
        builder.keep_hidden_states(self.remembering.uses_hidden_states())
    }

    fn stored(&self) -> Result<Option<Session>> {
        let Some(name) = &self.name else { return Ok(None) };
        Ok(self.remembering.recorder().session("", name)?)
    }

    /// Returns the conversation so far.
    pub fn messages(&self) -> Result<Vec<Message>> {
        let stored = self.stored()?.map(|session| session.messages).unwrap_or_default();
        let messages = stored.iter().map(Message::from_json).collect::<Option<Vec<_>>>();
        messages.with_context(|| format!("cannot read the messages of the session {:?}", self.name))
    }

    /// Starts answering. `messages` is the whole conversation: stored messages that it no longer has are removed from the memory.
    pub fn stream(
        &self,
        engine: &Engine,
        request: Request,
        messages: &[Message],
        adapter: Option<String>,
    ) -> Result<Stream> {
        let before = self.messages()?;
        let common = before.iter().zip(messages).take_while(|(before, now)| before == now).count();
        if common < before.len() {
            self.remembering.recorder().flush();
            if let Some(mut session) = self.stored()? {
                session.messages.truncate(common);
                self.remembering.memory().sessions().put(&session)?;
            }
        }
        let id = format!("{}@{}", self.name.as_deref().unwrap_or("run"), now_ms());
        let remember = RequestIdentity {
            request: id.clone(),
            model: self.model.clone(),
            adapter,
            learns: self.learns,
            ..RequestIdentity::default()
        };
        self.remembering.prepare(engine, &self.model);
        if self.last.borrow().is_none() {
            self.remembering.prepare_recall(engine, "", self.name.as_deref(), RECALL_PATIENCE);
        }
        let mut streams =
            engine.recorded_streams(&self.remembering, vec![request], &remember, &CancellationToken::default())?;
        *self.last.borrow_mut() = Some(id);
        streams.pop().context("the engine gave no answer")
    }

    /// Notes what the user thinks of the last answer. Returns what to tell them.
    pub fn rate(&self, feedback: Feedback) -> Result<String> {
        feedback.check()?;
        let recorder = self.remembering.recorder();
        let last = self.last.borrow().clone().context("nothing was answered yet")?;
        let known = recorder.recent_request("", &last).context("the last answer was not kept")?;
        let feedback = if known.keeps_text { feedback } else { feedback.without_texts() };
        let withheld = feedback.withheld.join(" and ");
        let is_noted = recorder.annotate(Annotation {
            request: format!("feedback@{}", now_ms()),
            at_ms: now_ms(),
            tenant: known.tenant,
            about: Some(known.request),
            user: None,
            model: known.model,
            said: Said::Feedback(feedback),
        });
        self.remembering.feedback_given();
        self.remembering.settle_recall(RECALL_PATIENCE);
        match withheld.as_str() {
            _ if !is_noted => bail!("the queue of the witness log is full"),
            "" => Ok("noted".to_owned()),
            names => Ok(format!("noted; the {names} itself is kept only with --learn")),
        }
    }
}

/// Refuses a session of another model.
fn check(memory: &Memory, name: &str, model: &str) -> Result<()> {
    ruvllm_memory::check_session_name(name)?;
    if let Some(session) = memory.sessions().get("", name)?
        && session.model != model
    {
        let other = session.model;
        bail!("the session {name:?} is a conversation with {other}; use that model, or another name");
    }
    Ok(())
}
