//! An answer while it is generated: tokens become text, and text becomes what a reader is shown.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use ruvllm_engine::{Event, FinishReason, HiddenStates, PrefixReport, SequenceId};
use ruvllm_text::{Detokenizer, StopMatcher, StopOutcome, ToolCallParser, ToolPiece};

use crate::embeddings::{Sum, unit};
use crate::engine::GenerateError;
use crate::engine_thread::{Events, Told};
use crate::remember::Witness;
use crate::{Divergence, Engine, Response, ToolCall};

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Whole characters, possibly none, and never part of a stop string or of a tool call.
    Text(String),
    /// A tool call begins, the `index`-th of this answer.
    ToolCall { index: usize, id: String, name: String },
    /// More of the arguments of that call: part of a JSON object.
    Arguments { index: usize, text: String },
}

impl Piece {
    /// The text of the answer in it.
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::ToolCall { .. } | Self::Arguments { .. } => "",
        }
    }
}

/// Yields the answer piece by piece, as an iterator or with [`Stream::next_piece`]. Dropping it ends the request.
#[derive(Debug)]
pub struct Stream {
    engine: Engine,
    id: SequenceId,
    events: Events,
    /// What the last token gave and was not handed out yet.
    pieces: VecDeque<Result<Piece, GenerateError>>,
    detokenizer: Detokenizer,
    stop: StopMatcher,
    /// Finds calls in the text, where there are tools.
    tool_calls: Option<ToolCallParser>,
    response: Response,
    /// Of the states that the answer's tokens were chosen from, where asked for.
    answer_states: Sum,
    started: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
    is_done: bool,
    /// Writes down what became of it, where there is a memory.
    witness: Option<Box<Witness>>,
}

impl Stream {
    pub(crate) fn new(
        engine: Engine,
        (id, events): (SequenceId, Events),
        response: Response,
        stop: StopMatcher,
        tool_calls: Option<ToolCallParser>,
        started: Instant,
    ) -> Self {
        let detokenizer = Detokenizer::continuing(Arc::clone(engine.tokenizer()));
        let pieces = VecDeque::new();
        Self {
            engine,
            id,
            events,
            pieces,
            detokenizer,
            stop,
            tool_calls,
            response,
            answer_states: Sum::default(),
            started,
            first: None,
            last: None,
            is_done: false,
            witness: None,
        }
    }

    /// The answer as far as it has come.
    pub fn response(&self) -> &Response {
        &self.response
    }

    /// When the last token came.
    pub fn last_token_at(&self) -> Option<Instant> {
        self.last
    }

    /// Has what becomes of it written down.
    pub(crate) fn watch(&mut self, witness: Witness) {
        self.witness = Some(Box::new(witness));
    }

    fn testify(&mut self, error: Option<&GenerateError>) {
        if let Some(witness) = self.witness.take() {
            witness.ended(&self.engine, &self.response, error);
        }
    }

    pub fn into_response(mut self) -> Response {
        self.testify(None);
        std::mem::take(&mut self.response)
    }

    /// The next piece, without blocking the thread meanwhile; `None` at the end.
    pub async fn next_piece(&mut self) -> Option<Result<Piece, GenerateError>> {
        poll_fn(|context| self.poll_piece(context)).await
    }

    /// The same for those who wait for several at a time.
    pub fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Piece, GenerateError>>> {
        loop {
            if let Some(piece) = self.ready() {
                return Poll::Ready(piece);
            }
            let told = ready!(self.events.poll_recv(context));
            self.take(told);
        }
    }

    /// The next piece if it is known already; `Some(None)` at the end.
    fn ready(&mut self) -> Option<Option<Result<Piece, GenerateError>>> {
        match self.pieces.pop_front() {
            Some(piece) => Some(Some(piece)),
            None => self.is_done.then_some(None),
        }
    }

    /// Takes what became of the request next, and makes pieces of it.
    fn take(&mut self, told: Option<Told>) {
        let advanced = self.advance(told);
        if self.is_done || advanced.is_err() {
            self.testify(advanced.as_ref().err());
        }
        if let Err(error) = advanced {
            self.pieces.push_back(Err(error));
            self.is_done = true;
        }
    }

    fn advance(&mut self, told: Option<Told>) -> Result<(), GenerateError> {
        let Told { at, result } = told.ok_or(GenerateError::EngineFailed)?;
        let event = result?;
        self.note(&event, at);
        let mut text = self.detokenizer.push(event.sampled.token);
        if event.finish.is_some() {
            text.push_str(&self.detokenizer.flush());
        }
        let mut text = match self.stop.push(&text) {
            StopOutcome::Continue { emit } => emit,
            StopOutcome::Stopped { emit, stop } => {
                self.engine.thread().cancel(self.id);
                self.response.stop_index = Some(stop);
                self.finish(FinishReason::Stop);
                emit
            }
        };
        if let Some(reason) = event.finish.filter(|_| !self.is_done) {
            text.push_str(&self.stop.flush());
            self.finish(reason);
        }
        self.show(text);
        Ok(())
    }

    /// Makes pieces of text that may be shown.
    fn show(&mut self, text: String) {
        let Some(parser) = &mut self.tool_calls else { return self.add(Piece::Text(text)) };
        let mut found = parser.push(&text);
        if self.is_done {
            found.extend(parser.finish());
        }
        if found.is_empty() {
            self.add(Piece::Text(String::new()));
        }
        for piece in found {
            match piece {
                ToolPiece::Text(text) => self.add(Piece::Text(text)),
                ToolPiece::Call { index, name } => self.add(Piece::ToolCall { index, id: call_id(), name }),
                ToolPiece::Arguments { index, delta: text } => self.add(Piece::Arguments { index, text }),
                ToolPiece::CallEnd { .. } => {}
            }
        }
    }

    fn add(&mut self, piece: Piece) {
        match &piece {
            Piece::Text(text) => self.response.text.push_str(text),
            Piece::ToolCall { id, name, .. } => {
                let call = ToolCall { id: id.clone(), name: name.clone(), arguments: String::new() };
                self.response.tool_calls.push(call);
            }
            Piece::Arguments { index, text } => self.response.tool_calls[*index].arguments.push_str(text),
        }
        self.pieces.push_back(Ok(piece));
    }

    fn note(&mut self, event: &Event, at: Instant) {
        let first = *self.first.get_or_insert(at);
        self.last = Some(at);
        if let Some(prefix) = &event.prefix {
            self.note_prefix(prefix);
        }
        if let Some(states) = &event.states {
            self.note_states(states);
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
        response.timings.total_ms = (at - self.started).as_secs_f64() * 1e3;
        let decode_s = (at - first).as_secs_f64();
        if decode_s > 0.0 {
            response.timings.decode_tok_s = (response.tokens.len() - 1) as f64 / decode_s;
        }
    }

    fn note_states(&mut self, states: &HiddenStates) {
        self.answer_states.add(&states.last);
        if let Some(prompt) = &states.prompt {
            self.response.embeddings.prompt = unit(prompt);
        }
    }

    fn note_prefix(&mut self, prefix: &PrefixReport) {
        let text = |tokens: &[u32]| {
            let bytes: Vec<u8> =
                tokens.iter().flat_map(|id| self.engine.tokenizer().token_bytes(*id)).copied().collect();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        self.response.timings.queue_ms = prefix.waited.as_secs_f64() * 1e3;
        self.response.usage.cached_tokens = prefix.cached_tokens;
        self.response.usage.loaded_tokens = prefix.loaded_tokens;
        self.response.divergence = prefix.divergence.as_ref().map(|divergence| Divergence {
            at: divergence.at,
            cached: text(&divergence.cached),
            asked: text(&divergence.asked),
        });
        if let Some(divergence) = &self.response.divergence {
            // Shows what was said, so it is for those who look for it: servers log at info.
            tracing::debug!(
                cached_tokens = prefix.cached_tokens,
                "the prefix cache could not serve more: {divergence}"
            );
        }
    }

    fn finish(&mut self, reason: FinishReason) {
        self.response.finish_reason = Some(reason);
        self.response.embeddings.answer = self.answer_states.direction();
        self.is_done = true;
    }
}

impl Iterator for Stream {
    type Item = Result<Piece, GenerateError>;

    /// Blocks the thread until there is a piece; not for asynchronous code.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(piece) = self.ready() {
                return piece;
            }
            let told = self.events.blocking_recv();
            self.take(told);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.testify(None);
        self.engine.thread().cancel(self.id);
    }
}

/// Tells a call from all others.
fn call_id() -> String {
    let (first, second) = (RandomState::new().hash_one(0u8), RandomState::new().hash_one(1u8));
    format!("call_{first:016x}{:08x}", second as u32)
}
