//! A conversation of the command line that is stored in the memory.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use ruvllm_memory::{Memory, Session};
use ruvllm_runtime::{
    CancellationToken, Engine, EngineBuilder, Message, Request, RequestIdentity, RequestRecorder, Stream,
};

use super::embedding;
use crate::flags::session::SessionFlags;

/// The session that a command line names.
#[derive(Debug)]
pub struct StoredSession {
    remembering: RequestRecorder,
    name: String,
    model: String,
}

impl StoredSession {
    /// Opens the memory for the session, if the flags name one. `model` is the name of the model that will answer.
    pub fn open(flags: &SessionFlags, model: &str) -> Result<Option<Self>> {
        let Some(name) = &flags.session else { return Ok(None) };
        ruvllm_memory::check_session_name(name)?;
        let memory = Arc::new(Memory::open(flags.memory.options()?)?);
        if let Some(session) = memory.sessions().get("", name)?
            && session.model != model
        {
            let other = session.model;
            bail!("the session {name:?} is a conversation with {other}; use that model, or another name");
        }
        let embedder = embedding::embedder_of(&memory)?;
        let remembering = RequestRecorder::start(memory, embedder, false)?;
        Ok(Some(Self { remembering, name: name.clone(), model: model.to_owned() }))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets what the engine has to keep for the memory.
    pub fn prepare(&self, builder: EngineBuilder) -> EngineBuilder {
        builder.keep_hidden_states(self.remembering.uses_hidden_states())
    }

    fn stored(&self) -> Result<Option<Session>> {
        Ok(self.remembering.recorder().session("", &self.name)?)
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
        let remember = RequestIdentity {
            request: format!("{}@{}", self.name, ruvllm_memory::now_ms()),
            model: self.model.clone(),
            adapter,
            ..RequestIdentity::default()
        };
        self.remembering.prepare(engine, &self.model);
        let mut streams =
            engine.recorded_streams(&self.remembering, vec![request], &remember, &CancellationToken::default())?;
        streams.pop().context("the engine gave no answer")
    }
}
