//! An answer in lines, for both endpoints.

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use ruvllm_runtime::Piece;

use super::response::{GenerateResponse, OllamaChatResponse, Said, Tail, calls};
use super::timing::Clock;
use crate::api::generation::{Generation, Part};
use crate::api::logprobs::TokenLogprobs;
use crate::api::sse::{Events, Wire};
use crate::error::ApiError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Chat,
    Generate,
}

/// Writes the lines of an answer.
pub(super) struct Lines {
    pub endpoint: Endpoint,
    /// As the client calls it.
    pub model: String,
    pub clock: Clock,
    /// Tokens of the prompt, where the end of the answer has to return them.
    pub prompt: Option<Vec<u32>>,
    pub wants_logprobs: bool,
    /// Number of tokens whose log probabilities were sent.
    pub reported: usize,
    /// Number of tool calls that were sent: they are sent whole.
    pub told_calls: usize,
}

impl Lines {
    /// Returns all of an answer at once.
    pub(super) fn whole(mut self, generation: &Generation) -> Response {
        let mut line = Events::default();
        self.write(Said::of(generation.response(0)), generation, true, &mut line);
        ([(CONTENT_TYPE, "application/json")], line.take()).into_response()
    }

    fn write(&mut self, said: Said, generation: &Generation, is_last: bool, events: &mut Events) {
        let response = generation.response(0);
        let mut tail = if is_last { Tail::of(response, &self.clock) } else { Tail::default() };
        if self.wants_logprobs {
            tail.logprobs = TokenLogprobs::of(response, self.reported, generation.tokenizer());
            self.reported += tail.logprobs.len();
        }
        match self.endpoint {
            Endpoint::Chat => events.line(&OllamaChatResponse::new(&self.model, said, tail)),
            Endpoint::Generate => {
                let mut line = GenerateResponse::new(&self.model, said, tail);
                if is_last {
                    let after = |prompt: Vec<u32>| prompt.into_iter().chain(response.tokens.iter().copied()).collect();
                    line.context = self.prompt.take().map(after);
                }
                events.line(&line);
            }
        }
    }

    /// Returns the calls that are complete: all before the `index`-th.
    fn complete_calls(&mut self, index: usize, generation: &Generation) -> Said {
        let mut complete = calls(generation.response(0), self.told_calls);
        complete.retain(|call| call.function.index < index);
        self.told_calls = index.max(self.told_calls);
        Said { calls: complete, ..Said::default() }
    }
}

impl Wire for Lines {
    const CONTENT_TYPE: &'static str = "application/x-ndjson";

    fn begin(&mut self, _: &Generation, _: &mut Events) {}

    fn part(&mut self, part: Part, generation: &Generation, events: &mut Events) {
        let said = match part.piece {
            Some(Piece::Text(text)) => Said { text, ..Said::default() },
            Some(Piece::Reasoning(thinking)) => Said { thinking, ..Said::default() },
            Some(Piece::ToolCall { index, .. }) => self.complete_calls(index, generation),
            Some(Piece::Arguments { .. }) => Said::default(),
            None => self.complete_calls(usize::MAX, generation),
        };
        if !said.is_empty() {
            self.write(said, generation, false, events);
        }
    }

    fn end(&mut self, generation: &Generation, events: &mut Events) {
        self.write(Said::default(), generation, true, events);
    }

    fn fail(&mut self, error: &ApiError, events: &mut Events) {
        events.line(&error.to_ollama());
    }

    /// Lines that say nothing: clients parse each of them.
    fn silence(&mut self, events: &mut Events) {
        match self.endpoint {
            Endpoint::Chat => events.line(&OllamaChatResponse::new(&self.model, Said::default(), Tail::default())),
            Endpoint::Generate => events.line(&GenerateResponse::new(&self.model, Said::default(), Tail::default())),
        }
    }
}
