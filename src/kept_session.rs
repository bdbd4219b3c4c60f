//! A conversation of the command line that is kept in the memory.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::Args;
use ruvllm_memory::{Memory, Session};
use ruvllm_runtime::{
    CancellationToken, Engine, EngineBuilder, Message, Request, RequestIdentity, RequestRecorder, Stream,
};

use crate::embedding;
use crate::memory_flags::MemoryPlaceFlags;

#[derive(Debug, Args)]
pub struct SessionFlags {
    /// Go on with the conversation of this name, or begin it; `ruvllm sessions` lists them
    #[arg(long, value_name = "NAME", conflicts_with = "raw")]
    pub session: Option<String>,
    #[command(flatten)]
    pub memory: MemoryPlaceFlags,
}

/// The session of a command line.
#[derive(Debug)]
pub struct KeptSession {
    remembering: RequestRecorder,
    name: String,
    model: String,
}

impl SessionFlags {
    /// Opens the memory for the session, if one is named. `model` is the name of its model.
    pub fn open(&self, model: &str) -> Result<Option<KeptSession>> {
        let Some(name) = &self.session else { return Ok(None) };
        ruvllm_memory::check_session_name(name)?;
        let memory = Arc::new(Memory::open(self.memory.options()?)?);
        if let Some(session) = memory.session("", name)?
            && session.model != model
        {
            let other = session.model;
            bail!("the session {name:?} is a conversation with {other}; use that model, or another name");
        }
        let embedder = embedding::embedder_of(&memory)?;
        let remembering = RequestRecorder::start(memory, embedder, false)?;
        Ok(Some(KeptSession { remembering, name: name.clone(), model: model.to_owned() }))
    }
}

impl KeptSession {
    /// What the engine has to keep for it.
    pub fn prepare(&self, builder: EngineBuilder) -> EngineBuilder {
        builder.keep_hidden_states(self.remembering.uses_hidden_states())
    }

    fn stored(&self) -> Result<Option<Session>> {
        Ok(self.remembering.recorder().session("", &self.name)?)
    }

    /// What was said so far.
    pub fn messages(&self) -> Result<Vec<Message>> {
        let stored = self.stored()?.map(|session| session.messages).unwrap_or_default();
        let messages = stored.iter().map(Message::from_json).collect::<Option<Vec<_>>>();
        messages.with_context(|| format!("the messages of the session {:?} cannot be read", self.name))
    }

    /// Starts answering. `messages` are the whole conversation: what was taken back since is taken back in the memory too.
    pub fn stream(&self, engine: &Engine, request: Request, messages: &[Message]) -> Result<Stream> {
        let before = self.messages()?;
        let common = before.iter().zip(messages).take_while(|(before, now)| before == now).count();
        if common < before.len() {
            self.remembering.recorder().flush();
            if let Some(mut session) = self.stored()? {
                session.messages.truncate(common);
                self.remembering.memory().put_session(&session)?;
            }
        }
        let request = Request { session: Some(self.name.clone()), ..request };
        let remember = RequestIdentity {
            request: format!("{}@{}", self.name, ruvllm_memory::now_ms()),
            model: self.model.clone(),
        };
        self.remembering.prepare(engine, &self.model);
        let mut streams =
            engine.recorded_streams(&self.remembering, vec![request], &remember, &CancellationToken::default())?;
        streams.pop().context("the engine gave no answer")
    }
}
