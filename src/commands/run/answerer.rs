//! Answers prompts with the settings of one command line.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use ruvllm_runtime::{
    Engine, FinishReason, HeldAdapter, Message, Piece, Prompt, Request, Response, Sampling, Speculation, Stream,
    Truncation, UnsetParams,
};
use ruvllm_server::apply_model_settings;
use ruvllm_store::ModelSettings;

use super::report;
use crate::exit::Interrupted;
use crate::loading::session::StoredSession;
use crate::output;

/// Maximum number of generated tokens without `--max-tokens`.
const MAX_TOKENS_DEFAULT: usize = 1024;

#[derive(Debug)]
pub struct Answerer {
    pub engine: Engine,
    /// What the model is run with.
    pub adapter: Option<HeldAdapter>,
    pub adapter_label: Option<String>,
    pub sampling: Sampling,
    /// Parameters that the command line leaves to the model's settings.
    pub unset: UnsetParams,
    pub settings: ModelSettings,
    pub max_tokens: Option<usize>,
    pub stop: Vec<String>,
    pub truncation: Truncation,
    pub speculation: Speculation,
    pub interrupted: Arc<AtomicBool>,
    /// Nothing is streamed; the caller prints one JSON object at the end.
    pub is_json: bool,
    pub hides_reasoning: bool,
    /// Where the conversation is stored, if it is.
    pub session: Option<StoredSession>,
}

impl Answerer {
    /// Returns the stored conversation that a session continues.
    pub fn stored_messages(&self) -> Result<Vec<Message>> {
        self.session.as_ref().map_or_else(|| Ok(Vec::new()), StoredSession::messages)
    }

    /// Streams the answer to standard output, unless it is wanted as JSON. Ctrl-C ends the answer.
    pub fn answer(&self, prompt: Prompt) -> Result<Response> {
        let mut stream = self.start(prompt)?;
        for piece in &mut stream {
            let piece = piece?;
            match &piece {
                _ if self.is_json => {}
                Piece::Reasoning(text) if !self.hides_reasoning => output::aside(&output::printable(text))?,
                piece => output::piece(&output::printable(piece.text()))?,
            }
            if self.interrupted.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(stream.into_response())
    }

    /// Prints what follows a single answer.
    pub fn report(&self, response: &Response) -> Result<()> {
        let Some(reason) = response.finish_reason else {
            output::line("")?;
            return Err(Interrupted.into());
        };
        if self.is_json {
            return output::json(&report::to_json(&self.engine, response, reason));
        }
        output::line("")?;
        output::remark(&report::summary(response));
        if let Some(id) = self.session.as_ref().and_then(StoredSession::last_request) {
            output::remark(&format!("ruvllm feedback {id:?} --score up says that it was right"));
        }
        if reason == FinishReason::Length {
            output::remark("the answer was cut off at the token limit: raise --max-tokens or --context");
        }
        Ok(())
    }

    fn start(&self, prompt: Prompt) -> Result<Stream> {
        let mut request = Request {
            sampling: self.sampling.clone(),
            max_tokens: Some(self.max_tokens.unwrap_or(MAX_TOKENS_DEFAULT)),
            clamps_max_tokens: self.max_tokens.is_none(),
            stop: self.stop.clone(),
            truncation: self.truncation,
            speculation: self.speculation,
            unset: self.unset,
            adapter: self.adapter.clone(),
            // A conversation that is stored begins without those of the model.
            session: self.session.as_ref().and_then(|session| session.name()).map(str::to_owned),
            ..Request::new(prompt)
        };
        apply_model_settings(&mut request, &self.settings);
        self.engine.sampling_defaults().fill(&mut request);
        request.unset = UnsetParams::default();
        match (&self.session, &request.prompt) {
            (Some(session), Prompt::Messages(messages)) => {
                let messages = messages.clone();
                session.stream(&self.engine, request, &messages, self.adapter_label.clone())
            }
            _ => Ok(self.engine.stream(request)?),
        }
    }
}
