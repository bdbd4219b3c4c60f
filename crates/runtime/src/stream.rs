//! Reads the events of a request and yields the answer piece by piece.

mod answer;

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use ruvllm_engine::SequenceId;
use ruvllm_text::{NotEnforced, Violation};
use tokio::sync::oneshot;

use answer::Answer;

use crate::engine::LoadedModel;
use crate::record::RequestRecord;
use crate::submit::{Accepted, Events, TimedEvent};
use crate::{GenerateError, Response};

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// What the model writes for itself before its answer.
    Reasoning(String),
    /// Whole characters, possibly none, and never part of a stop string or of a tool call.
    Text(String),
    /// A tool call begins, the `index`-th of this answer.
    ToolCall { index: usize, id: String, name: String },
    /// More of the arguments of that call: part of a JSON object.
    Arguments { index: usize, text: String },
}

impl Piece {
    /// Returns the text of the answer in this piece.
    pub fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            Self::Reasoning(_) | Self::ToolCall { .. } | Self::Arguments { .. } => "",
        }
    }
}

/// Yields the answer piece by piece, as an iterator or with [`Stream::next_piece`]. Dropping it ends the request.
#[derive(Debug)]
pub struct Stream {
    model: Arc<LoadedModel>,
    id: SequenceId,
    events: Events,
    answer: Answer,
    /// Pieces of the last token that were not yielded yet.
    pieces: VecDeque<Result<Piece, GenerateError>>,
    has_failed: bool,
    /// Tells whether the finished answer is valid.
    check: Option<oneshot::Receiver<Result<(), Violation>>>,
    /// Records the answer when it ends, where there is a memory.
    record: Option<Box<RequestRecord>>,
}

impl Stream {
    pub(crate) fn new(model: Arc<LoadedModel>, accepted: Accepted) -> Self {
        let Accepted { id, events, answer } = accepted;
        let answer = Answer::new(Arc::clone(model.encoder.tokenizer()), answer);
        Self { model, id, events, answer, pieces: VecDeque::new(), has_failed: false, check: None, record: None }
    }

    /// Returns the answer as far as it has come.
    pub fn response(&self) -> &Response {
        self.answer.response()
    }

    /// Returns what of the schemas of the answer its grammar does not enforce.
    pub fn not_enforced(&self) -> &NotEnforced {
        self.answer.not_enforced()
    }

    /// Returns the time of the last token.
    pub fn last_token_at(&self) -> Option<Instant> {
        self.answer.last_token_at()
    }

    /// Has the answer recorded when it ends.
    pub(crate) fn record_with(&mut self, record: RequestRecord) {
        self.record = Some(Box::new(record));
    }

    pub fn into_response(mut self) -> Response {
        self.finish_record(None);
        self.answer.take_response()
    }

    /// Returns the next piece without blocking the thread; `None` at the end.
    pub async fn next_piece(&mut self) -> Option<Result<Piece, GenerateError>> {
        poll_fn(|context| self.poll_piece(context)).await
    }

    /// Polls for the next piece, for callers that read several streams at a time.
    pub fn poll_piece(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Piece, GenerateError>>> {
        loop {
            if let Some(piece) = self.ready() {
                return Poll::Ready(piece);
            }
            if let Some(check) = &mut self.check {
                let outcome = ready!(Pin::new(check).poll(context));
                self.checked(outcome);
                continue;
            }
            let event = ready!(self.events.poll_recv(context));
            self.take(event);
        }
    }

    /// Returns the next piece if it is known already; `Some(None)` at the end.
    fn ready(&mut self) -> Option<Option<Result<Piece, GenerateError>>> {
        match self.pieces.pop_front() {
            Some(piece) => Some(Some(piece)),
            None => (self.check.is_none() && (self.answer.is_finished() || self.has_failed)).then_some(None),
        }
    }

    /// Turns the next event into pieces. `None` means that the engine has stopped.
    fn take(&mut self, event: Option<TimedEvent>) {
        match self.advance(event) {
            Ok(pieces) => {
                self.pieces.extend(pieces.into_iter().map(Ok));
                if self.answer.is_finished() {
                    self.check = self.answer.start_check();
                    if self.check.is_none() {
                        self.finish_record(None);
                    }
                }
            }
            Err(error) => {
                self.finish_record(Some(&error));
                self.pieces.push_back(Err(error));
                self.has_failed = true;
            }
        }
    }

    fn advance(&mut self, event: Option<TimedEvent>) -> Result<Vec<Piece>, GenerateError> {
        let TimedEvent { at, result } = event.ok_or(GenerateError::EngineFailed)?;
        let event = result?;
        let pieces = self.answer.push(&event, at);
        if self.answer.is_finished() && event.finish.is_none() {
            // A stop string ended the answer: the engine would go on.
            self.model.thread.cancel(self.id);
        }
        Ok(pieces)
    }

    /// Notes whether the answer is valid. There is no outcome if the check could not be made.
    fn checked(&mut self, outcome: Result<Result<(), Violation>, oneshot::error::RecvError>) {
        self.check = None;
        let outcome = outcome.map_err(|_| "the answer could not be checked".to_owned());
        self.answer.set_validity(outcome.and_then(|outcome| outcome.map_err(|violation| violation.to_string())));
        self.finish_record(None);
    }

    fn finish_record(&mut self, error: Option<&GenerateError>) {
        if let Some(record) = self.record.take() {
            record.ended(&self.model, self.answer.response(), error);
        }
    }
}

impl Iterator for Stream {
    type Item = Result<Piece, GenerateError>;

    /// Blocks the thread until the next piece comes; not for asynchronous code.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(piece) = self.ready() {
                return piece;
            }
            if let Some(check) = self.check.take() {
                self.checked(check.blocking_recv());
                continue;
            }
            let event = self.events.blocking_recv();
            self.take(event);
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.finish_record(None);
        self.model.thread.cancel(self.id);
    }
}
