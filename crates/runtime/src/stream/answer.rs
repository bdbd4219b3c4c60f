//! An answer while it grows: tokens become text, and text becomes the pieces that a reader sees.
//!
//! Knows events and text, and nothing of channels or threads.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Instant;

use ruvllm_engine::{Event, FinishReason, HiddenStates, PrefixReport, TokenId};
use ruvllm_text::{
    Detokenizer, NotEnforced, ReasoningParser, ReasoningPhase, ReasoningPiece, SchemaValidator, StopMatcher,
    StopOutcome, Tokenizer, ToolCallParser, ToolPiece, Violation,
};
use tokio::sync::oneshot;

use super::Piece;
use crate::embed::{StateSum, unit};
use crate::submit::AnswerStart;
use crate::{Divergence, Response, ToolCall};

#[derive(Debug)]
pub(super) struct Answer {
    tokenizer: Arc<Tokenizer>,
    detokenizer: Detokenizer,
    reasoning: Option<ReasoningParser>,
    stop: StopMatcher,
    tool_calls: Option<ToolCallParser>,
    response: Response,
    not_enforced: Arc<NotEnforced>,
    validator: Option<SchemaValidator>,
    /// Sum of the hidden states that the answer's tokens were sampled from, where embeddings are wanted.
    states: StateSum,
    submitted_at: Instant,
    first_token_at: Option<Instant>,
    last_token_at: Option<Instant>,
}

impl Answer {
    pub(super) fn new(tokenizer: Arc<Tokenizer>, start: AnswerStart) -> Self {
        let AnswerStart { response, stop, tool_calls, reasoning, not_enforced, validator, submitted_at } = start;
        Self {
            detokenizer: Detokenizer::continuing(Arc::clone(&tokenizer)),
            tokenizer,
            reasoning,
            stop,
            tool_calls,
            response,
            not_enforced,
            validator,
            states: StateSum::default(),
            submitted_at,
            first_token_at: None,
            last_token_at: None,
        }
    }

    pub(super) fn response(&self) -> &Response {
        &self.response
    }

    pub(super) fn take_response(&mut self) -> Response {
        std::mem::take(&mut self.response)
    }

    pub(super) fn last_token_at(&self) -> Option<Instant> {
        self.last_token_at
    }

    pub(super) fn not_enforced(&self) -> &NotEnforced {
        &self.not_enforced
    }

    /// Starts checking a finished answer, if its grammar does not guarantee that it is valid. One that was cut off cannot be,
    /// and one that calls tools has another form.
    pub(super) fn start_check(&mut self) -> Option<oneshot::Receiver<Result<(), Violation>>> {
        let validator = self.validator.take()?;
        if self.response.finish_reason != Some(FinishReason::Stop) || !self.response.tool_calls.is_empty() {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        validator.check_in_background(self.response.text.clone(), move |outcome| drop(sender.send(outcome)));
        Some(receiver)
    }

    pub(super) fn set_validity(&mut self, outcome: Result<(), String>) {
        self.response.validity = Some(outcome);
    }

    /// Returns whether the answer has ended by itself, by a stop string or by its length.
    pub(super) fn is_finished(&self) -> bool {
        self.response.finish_reason.is_some()
    }

    /// Appends a token to the answer. Returns the pieces that became certain with it.
    pub(super) fn push(&mut self, event: &Event, at: Instant) -> Vec<Piece> {
        self.measure(event, at);
        let text = self.decode(event);
        let (reasoning, text) = self.split_reasoning(text, event.finish.is_some());
        let mut text = match self.stop.push(&text) {
            StopOutcome::Continue { emit } => emit,
            StopOutcome::Stopped { emit, stop } => {
                self.response.stop_index = Some(stop);
                self.finish(FinishReason::Stop);
                emit
            }
        };
        if let Some(reason) = event.finish.filter(|_| !self.is_finished()) {
            text.push_str(&self.stop.flush());
            self.finish(reason);
        }
        let mut pieces = self.pieces(text);
        if !reasoning.is_empty() {
            pieces.insert(0, Piece::Reasoning(reasoning));
        }
        pieces.iter().for_each(|piece| self.append(piece));
        pieces
    }

    /// Returns the text that a token completes. Before the answer, markers of reasoning are text even if they are control
    /// tokens.
    fn decode(&mut self, event: &Event) -> String {
        let token = event.sampled.token;
        let reasoning = self.reasoning.as_ref().filter(|reasoning| reasoning.phase() != ReasoningPhase::Answer);
        let marker = reasoning.and_then(|reasoning| reasoning.format().control_text(token));
        let mut text = marker.map_or_else(|| self.detokenizer.push(token), str::to_owned);
        if event.finish.is_some() {
            text.push_str(&self.detokenizer.flush());
        }
        text
    }

    /// Splits the reasoning off, to which stop strings and tool calls do not apply.
    fn split_reasoning(&mut self, text: String, is_last: bool) -> (String, String) {
        let Some(parser) = &mut self.reasoning else { return (String::new(), text) };
        let mut found = parser.push(&text);
        if is_last {
            found.extend(parser.finish());
        }
        if matches!(parser.phase(), ReasoningPhase::Reasoning | ReasoningPhase::Closed) {
            self.response.usage.reasoning_tokens += 1;
        }
        let (mut reasoning, mut text) = (String::new(), String::new());
        for piece in &found {
            match piece {
                ReasoningPiece::Reasoning(piece) => reasoning.push_str(piece),
                ReasoningPiece::Text(piece) => text.push_str(piece),
            }
        }
        (reasoning, text)
    }

    /// Splits text that may be shown into plain text and tool calls. There is always a piece, so that readers see progress.
    fn pieces(&mut self, text: String) -> Vec<Piece> {
        let is_finished = self.is_finished();
        let Some(parser) = &mut self.tool_calls else { return vec![Piece::Text(text)] };
        let mut found = parser.push(&text);
        if is_finished {
            found.extend(parser.finish());
        }
        if found.is_empty() {
            return vec![Piece::Text(String::new())];
        }
        let piece = |found| match found {
            ToolPiece::Text(text) => Some(Piece::Text(text)),
            ToolPiece::Call { index, name } => Some(Piece::ToolCall { index, id: call_id(), name }),
            ToolPiece::Arguments { index, delta: text } => Some(Piece::Arguments { index, text }),
            ToolPiece::CallEnd { .. } => None,
        };
        found.into_iter().filter_map(piece).collect()
    }

    fn append(&mut self, piece: &Piece) {
        match piece {
            Piece::Reasoning(text) => self.response.reasoning.push_str(text),
            Piece::Text(text) => self.response.text.push_str(text),
            Piece::ToolCall { id, name, .. } => {
                let call = ToolCall { id: id.clone(), name: name.clone(), arguments: String::new() };
                self.response.tool_calls.push(call);
            }
            Piece::Arguments { index, text } => self.response.tool_calls[*index].arguments.push_str(text),
        }
    }

    fn measure(&mut self, event: &Event, at: Instant) {
        let first = *self.first_token_at.get_or_insert(at);
        self.last_token_at = Some(at);
        if let Some(prefix) = &event.prefix {
            self.measure_prefix(prefix);
        }
        if let Some(states) = &event.states {
            self.add_states(states);
        }
        let response = &mut self.response;
        response.tokens.push(event.sampled.token);
        response.logprobs.extend(event.sampled.logprobs.clone());
        if let (Some(recall), Some(share)) = (&mut response.recall, event.sampled.recall_share) {
            recall.share += (f64::from(share) - recall.share) / response.tokens.len() as f64;
        }
        response.usage.completion_tokens = response.tokens.len();
        response.usage.steps = event.counts.steps;
        response.usage.drafted_tokens = event.counts.drafted;
        response.usage.accepted_tokens = event.counts.accepted;
        response.usage.drafted_by_model = event.counts.drafted_by_model;
        response.usage.accepted_by_model = event.counts.accepted_by_model;
        let ttft_s = (first - self.submitted_at).as_secs_f64();
        response.timings.ttft_ms = ttft_s * 1e3;
        response.timings.prefill_tok_s = response.usage.prompt_tokens as f64 / ttft_s;
        response.timings.total_ms = (at - self.submitted_at).as_secs_f64() * 1e3;
        let decode_s = (at - first).as_secs_f64();
        if decode_s > 0.0 {
            response.timings.decode_tok_s = (response.tokens.len() - 1) as f64 / decode_s;
        }
    }

    fn add_states(&mut self, states: &HiddenStates) {
        self.states.add(&states.last);
        if let Some(prompt) = &states.prompt {
            self.response.embeddings.prompt = unit(prompt);
        }
    }

    fn measure_prefix(&mut self, prefix: &PrefixReport) {
        self.response.timings.queue_ms = prefix.waited.as_secs_f64() * 1e3;
        self.response.usage.cached_tokens = prefix.cached_tokens;
        self.response.usage.loaded_tokens = prefix.loaded_tokens;
        self.response.divergence = prefix.divergence.as_ref().map(|divergence| Divergence {
            at: divergence.at,
            cached: self.text_of(&divergence.cached),
            asked: self.text_of(&divergence.asked),
        });
        if let Some(divergence) = &self.response.divergence {
            // Quotes the prompt, so it is below the level that servers log at.
            tracing::debug!(
                cached_tokens = prefix.cached_tokens,
                "the prefix cache could not serve more: {divergence}"
            );
        }
    }

    fn text_of(&self, tokens: &[TokenId]) -> String {
        let bytes: Vec<u8> = tokens.iter().flat_map(|id| self.tokenizer.token_bytes(*id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn finish(&mut self, reason: FinishReason) {
        self.response.finish_reason = Some(reason);
        self.response.embeddings.answer = self.states.direction();
    }
}

/// Returns an id that no other tool call has.
fn call_id() -> String {
    let (first, second) = (RandomState::new().hash_one(0u8), RandomState::new().hash_one(1u8));
    format!("call_{first:016x}{:08x}", second as u32)
}
