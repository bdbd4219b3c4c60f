//! Watches one request, and writes down what became of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ruvllm_engine::{FinishReason, StepError, SubmitError};
use ruvllm_memory::{
    CacheUse, DimensionStats, Failure, KvState, Latency, Policies, Session, Texts, TokenCounts, Trace, Turn,
    WitnessEntry, WitnessRecord, now_ms,
};

use super::route::route;
use super::standard::standardised;
use super::{Remember, Remembering, Vectors, fitted, quality};
use crate::{Engine, GenerateError, Message, Prompt, Request, Response};

/// Characters that an embedding model is given, and that are stored where texts are: the beginning says what it is about.
const CHARS_MAX: usize = 8_000;

#[derive(Clone, Debug)]
pub(crate) struct Witness {
    memory: Remembering,
    entry: WitnessEntry,
    started: Instant,
    /// What was asked: the newest of it, for embeddings, and all, for those who keep texts.
    asked: String,
    said: Option<String>,
    /// What the session gets, without the answer.
    turn: Option<Turn>,
    /// What its hidden states are measured by.
    pub(super) standard: Option<Arc<DimensionStats>>,
}

impl Witness {
    pub fn new(memory: Remembering, remember: &Remember, request: Option<&Request>) -> Self {
        let entry = WitnessEntry {
            request: remember.request.clone(),
            at_ms: now_ms(),
            tenant: request.map_or_else(String::new, |request| request.tenant.name().to_owned()),
            session: request.and_then(|request| request.session.clone()),
            model: remember.model.clone(),
            ..WitnessEntry::default()
        };
        let started = Instant::now();
        Self { memory, entry, started, asked: String::new(), said: None, turn: None, standard: None }
    }

    pub fn retrieved(&mut self, took: Duration) {
        self.entry.latency.retrieval_ms = millis(took);
    }

    pub fn tenant(&self) -> &str {
        &self.entry.tenant
    }

    /// Has policies decide, and notes how.
    pub fn route(&mut self, policies: &Policies, model: &str, request: &mut Request) {
        let started = Instant::now();
        self.entry.routing = route(policies, model, request);
        self.entry.latency.routing_ms = millis(started.elapsed());
    }

    /// Notes what is asked, before the engine takes it. One of several answers has a name of its own.
    pub fn asks(&mut self, engine: &Engine, request: &Request, session: Option<&Session>) {
        if self.is_embedded() || self.memory.0.keeps_text {
            self.asked = beginning(&newest(engine, &request.prompt));
        }
        if self.memory.0.keeps_text {
            self.said = Some(beginning(&whole(engine, &request.prompt)));
        }
        if let (Some(name), Prompt::Messages(messages)) = (&self.entry.session, &request.prompt) {
            let known = session.map_or(0, |session| session.messages.len()).min(messages.len());
            self.turn = Some(Turn {
                session: name.clone(),
                tenant: self.entry.tenant.clone(),
                model: self.entry.model.clone(),
                messages: messages[known..].iter().map(Message::to_json).collect(),
                ..Turn::default()
            });
        }
    }

    /// Tells the answers to one request apart.
    pub fn number(&mut self, index: usize) {
        if index > 0 {
            self.entry.request = format!("{}#{}", self.entry.request, index + 1);
        }
    }

    fn is_embedded(&self) -> bool {
        matches!(self.memory.0.vectors, Vectors::Embedder(_))
    }

    /// It never began.
    pub fn failed(self, error: &GenerateError) {
        let Failure { kind, message } = failure(error);
        self.refused(&kind, &message);
    }

    pub fn refused(mut self, kind: &str, message: &str) {
        self.entry.error = Some(Failure { kind: kind.to_owned(), message: beginning(message) });
        self.entry.latency.total_ms = millis(self.started.elapsed());
        let recorder = self.memory.recorder().clone();
        recorder
            .record(Trace { witness: WitnessRecord { entry: self.entry, ..Default::default() }, ..Trace::default() });
    }

    /// It has ended, in whatever way.
    pub fn ended(mut self, engine: &Engine, response: &Response, error: Option<&GenerateError>) {
        let Response { usage, timings, finish_reason, .. } = response;
        let total_ms = millis(self.started.elapsed());
        let latency = &mut self.entry.latency;
        *latency = Latency {
            queue_ms: timings.queue_ms,
            prefill_ms: (timings.ttft_ms - timings.queue_ms).max(0.0),
            decode_ms: (timings.total_ms - timings.ttft_ms).max(0.0),
            total_ms,
            ..*latency
        };
        self.entry.cache =
            CacheUse { cached_tokens: usage.cached_tokens as u64, loaded_tokens: usage.loaded_tokens as u64 };
        self.entry.tokens = TokenCounts { prompt: usage.prompt_tokens as u64, answer: usage.completion_tokens as u64 };
        let tokens = usage.prompt_tokens + usage.completion_tokens;
        self.entry.routing.context_bucket = tokens.next_power_of_two() as u64;
        self.entry.finish = finish_reason.map(|reason| finish_tag(reason).to_owned());
        self.entry.error = match (error, finish_reason) {
            (Some(error), _) => Some(failure(error)),
            (None, None) => Some(Failure { kind: "cancelled".into(), message: "nobody waited for the answer".into() }),
            (None, Some(_)) => None,
        };
        self.entry.quality = Some(quality::quality(response));
        let answer = answer(response);
        if let Some(said) = self.said.take() {
            self.entry.texts = Some(Texts { prompt: said, answer: beginning(&answer.content) });
        }
        let to_embed = self
            .is_embedded()
            .then(|| [std::mem::take(&mut self.asked), beginning(&answer.content)])
            .filter(|[asked, _]| !asked.is_empty());
        let dimension = self.memory.memory().dimension();
        let fit = |vector: &Option<Vec<f32>>| {
            Some(fitted(standardised(vector.as_ref()?, self.standard.as_ref()?)?, dimension))
        };
        let (prompt_embedding, answer_embedding) = (fit(&response.embeddings.prompt), fit(&response.embeddings.answer));
        let turn = self.turn.take().filter(|_| self.entry.error.is_none()).map(|mut turn| {
            turn.messages.push(answer.to_json());
            turn.kv = Some(kv_state(engine, tokens));
            turn.embedding.clone_from(&prompt_embedding);
            turn.at_ms = now_ms();
            turn
        });
        let witness = WitnessRecord { entry: self.entry, prompt_embedding, answer_embedding };
        let recorder = self.memory.recorder().clone();
        recorder.record(Trace { witness, to_embed, turn });
    }
}

/// How the log calls an end. These words are stored: they stay, whatever the variants are called.
fn finish_tag(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

/// With one word for it, to search for.
fn failure(error: &GenerateError) -> Failure {
    let kind = match error {
        GenerateError::Step(StepError::DeadlinePassed { .. }) | GenerateError::Abandoned => "timeout",
        GenerateError::Submit(SubmitError::QueueFull(_) | SubmitError::TenantQueueFull { .. }) => "queue_full",
        GenerateError::PromptTooLarge { .. }
        | GenerateError::Submit(
            SubmitError::PromptTooLong { .. } | SubmitError::TooLong { .. } | SubmitError::TooLargeForCache { .. },
        ) => "context_length",
        GenerateError::Submit(SubmitError::DeviceLost(_)) => "engine",
        GenerateError::Submit(_) | GenerateError::Stop(_) | GenerateError::Unencodable(_) => "invalid_request",
        GenerateError::Shape(_) | GenerateError::Tools(_) => "invalid_grammar",
        GenerateError::NoTemplate | GenerateError::Template(_) => "template",
        GenerateError::NoMemory => "invalid_session",
        GenerateError::Step(_) | GenerateError::EngineFailed | GenerateError::NoEmbedding => "engine",
    };
    Failure { kind: kind.to_owned(), message: beginning(&error.to_string()) }
}

/// The answer as a message of the conversation.
fn answer(response: &Response) -> Message {
    Message { tool_calls: response.tool_calls.clone(), ..Message::assistant(&response.text) }
}

/// What was asked last.
fn newest(engine: &Engine, prompt: &Prompt) -> String {
    match prompt {
        Prompt::Messages(messages) => {
            let asked = messages.iter().rfind(|message| message.role == "user").or(messages.last());
            asked.map_or_else(String::new, |message| message.content.clone())
        }
        other => whole(engine, other),
    }
}

fn whole(engine: &Engine, prompt: &Prompt) -> String {
    match prompt {
        Prompt::Messages(messages) => {
            let lines = messages.iter().map(|message| format!("{}: {}", message.role, message.content));
            lines.collect::<Vec<_>>().join("\n")
        }
        Prompt::Text(text) => text.clone(),
        Prompt::Tokens(tokens) => {
            let bytes: Vec<u8> =
                tokens.iter().flat_map(|token| engine.tokenizer().token_bytes(*token)).copied().collect();
            String::from_utf8_lossy(&bytes).into_owned()
        }
    }
}

fn beginning(text: &str) -> String {
    text.chars().take(CHARS_MAX).collect()
}

/// Where the keys and values of a conversation are now.
fn kv_state(engine: &Engine, tokens: usize) -> KvState {
    let status = engine.status();
    let on_disk = status.cache.disk.is_some();
    let precision = status.tier_pages().next().map_or_else(|| "f16".to_owned(), |(format, _)| format);
    KvState {
        tier: if on_disk { "disk" } else { "memory" }.to_owned(),
        place: engine.disk_folder().map(|folder| folder.display().to_string()),
        tokens: tokens as u64,
        precision,
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Logs of years are searched by them.
    #[test]
    fn words_that_are_stored_stay() {
        assert_eq!([FinishReason::Stop, FinishReason::Length].map(finish_tag), ["stop", "length"]);
        assert_eq!(failure(&GenerateError::NoMemory).kind, "invalid_session");
        assert_eq!(failure(&GenerateError::EngineFailed).kind, "engine");
    }
}
