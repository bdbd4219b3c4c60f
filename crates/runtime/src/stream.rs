//! An answer while it is generated.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use ruvllm_engine::{Event, FinishReason, PrefixReport, SequenceId, StepError};
use ruvllm_text::{Detokenizer, StopMatcher, StopOutcome};

use crate::engine::GenerateError;
use crate::{Divergence, Engine, Response, Usage};

/// A piece of an answer: whole characters, and never part of a stop string.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub text: String,
}

/// Yields the answer piece by piece; each call does the work for it.
#[derive(Debug)]
pub struct Stream<'e> {
    engine: &'e mut Engine,
    id: SequenceId,
    /// What the last step gave and was not handed out yet: a step may give several tokens.
    events: VecDeque<Result<Event, StepError>>,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    response: Response,
    started: Instant,
    first: Option<Instant>,
    is_done: bool,
}

impl<'e> Stream<'e> {
    pub(crate) fn new(
        engine: &'e mut Engine,
        id: SequenceId,
        usage: Usage,
        stop: StopMatcher,
        started: Instant,
    ) -> Self {
        let detokenizer = Detokenizer::continuing(Arc::clone(&engine.tokenizer));
        let response = Response { usage, ..Response::default() };
        let events = VecDeque::new();
        Self { engine, id, events, detokenizer, stop, response, started, first: None, is_done: false }
    }

    /// The answer as far as it has come.
    pub fn response(&self) -> &Response {
        &self.response
    }

    pub fn into_response(mut self) -> Response {
        std::mem::take(&mut self.response)
    }

    /// The next token of this sequence; runs steps until there is one.
    fn next_event(&mut self) -> Result<Event, StepError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return event;
            }
            let started = Instant::now();
            let results = self.engine.core.step();
            self.engine.core.step_took(started.elapsed());
            self.events.extend(results.into_iter().filter(|result| match result {
                Ok(event) => event.sequence == self.id,
                Err(error) => error.sequence() == self.id,
            }));
        }
    }

    /// Takes the next token and gives what may be shown because of it.
    fn advance(&mut self) -> Result<Piece, GenerateError> {
        let event = self.next_event()?;
        self.note(&event);
        let mut text = self.detokenizer.push(event.sampled.token);
        if event.finish.is_some() {
            text.push_str(&self.detokenizer.flush());
        }
        let mut text = match self.stop.push(&text) {
            StopOutcome::Continue { emit } => emit,
            StopOutcome::Stopped { emit, .. } => {
                self.engine.core.cancel(self.id);
                self.finish(FinishReason::Stop);
                emit
            }
        };
        if let Some(reason) = event.finish.filter(|_| !self.is_done) {
            text.push_str(&self.stop.flush());
            self.finish(reason);
        }
        self.response.text.push_str(&text);
        Ok(Piece { text })
    }

    fn note(&mut self, event: &Event) {
        let now = Instant::now();
        let first = *self.first.get_or_insert(now);
        if let Some(prefix) = &event.prefix {
            self.note_prefix(prefix);
        }
        let response = &mut self.response;
        response.tokens.push(event.sampled.token);
        response.logprobs.extend(event.sampled.logprobs.clone());
        response.usage.completion_tokens = response.tokens.len();
        response.usage.steps = event.counts.steps;
        response.usage.drafted_tokens = event.counts.drafted;
        response.usage.accepted_tokens = event.counts.accepted;
        let ttft_s = (first - self.started).as_secs_f64();
        response.timings.ttft_ms = ttft_s * 1e3;
        response.timings.prefill_tok_s = response.usage.prompt_tokens as f64 / ttft_s;
        let decode_s = (now - first).as_secs_f64();
        if decode_s > 0.0 {
            response.timings.decode_tok_s = (response.tokens.len() - 1) as f64 / decode_s;
        }
    }

    fn note_prefix(&mut self, prefix: &PrefixReport) {
        let text = |tokens: &[u32]| {
            let bytes: Vec<u8> = tokens.iter().flat_map(|id| self.engine.tokenizer.token_bytes(*id)).copied().collect();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        self.response.usage.cached_tokens = prefix.cached_tokens;
        self.response.usage.loaded_tokens = prefix.loaded_tokens;
        self.response.divergence = prefix.divergence.as_ref().map(|divergence| Divergence {
            at: divergence.at,
            cached: text(&divergence.cached),
            asked: text(&divergence.asked),
        });
        if let Some(divergence) = &self.response.divergence {
            tracing::info!(cached_tokens = prefix.cached_tokens, "the prefix cache could not serve more: {divergence}");
        }
    }

    fn finish(&mut self, reason: FinishReason) {
        self.response.finish_reason = Some(reason);
        self.is_done = true;
    }
}

impl Iterator for Stream<'_> {
    type Item = Result<Piece, GenerateError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_done {
            return None;
        }
        let result = self.advance();
        self.is_done |= result.is_err();
        Some(result)
    }
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        self.engine.core.cancel(self.id);
    }
}
