//! The record of one answer: filled in along the request's way, written when the answer ends.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ruvllm_engine::{FinishReason, StepError, SubmitError, TokenId};
use ruvllm_memory::{
    CacheUse, DimensionStats, Failure, KvState, Latency, RecallUse as StoredRecallUse, Routing, Texts, TokenCounts,
    Trace, Turn, WitnessEntry, WitnessRecord, now_ms,
};
use ruvllm_text::Tokenizer;

use super::kept::Kept;
use super::{RequestIdentity, RequestRecorder, quality};
use crate::embed::{fitted, standardised};
use crate::engine::LoadedModel;
use crate::router::RoutedModel;
use crate::{GenerateError, Message, Prompt, RecallUse, Request, RequestError, Response};

/// Maximum number of characters that are embedded and stored of a text: its beginning says what it is about.
const CHARS_MAX: usize = 8_000;

#[derive(Clone, Debug)]
pub(crate) struct RequestRecord {
    recorder: RequestRecorder,
    entry: WitnessEntry,
    started: Instant,
    /// The newest message, for embeddings.
    question: String,
    /// The whole prompt, where texts are stored.
    prompt: Option<String>,
    /// The session's new messages, without the answer.
    turn: Option<Turn>,
    /// Standardises hidden states, where they are stored.
    stats: Option<Arc<DimensionStats>>,
    /// Hash of what is asked, where another answer could come.
    prompt_hash: Option<u64>,
    learns: bool,
    /// How the model was chosen, where there was a choice.
    model_choice: Option<RoutedModel>,
    /// What is kept to learn from, where that is wanted.
    kept: Option<Kept>,
}

impl RequestRecord {
    /// Begins the record of a request to a model that `backend` runs.
    pub fn begin(
        recorder: &RequestRecorder,
        identity: &RequestIdentity,
        backend: &str,
        request: Option<&Request>,
    ) -> Self {
        let entry = WitnessEntry {
            request: identity.request.clone(),
            response: identity.response.clone(),
            user: identity.user.clone(),
            at_ms: now_ms(),
            tenant: request.map_or_else(String::new, |request| request.tenant.name().to_owned()),
            session: request.and_then(|request| request.session.clone()),
            model: identity.model.clone(),
            backend: backend.to_owned(),
            ignored: identity.ignored.clone(),
            adapter: identity.adapter.clone(),
            ..WitnessEntry::default()
        };
        Self {
            recorder: recorder.clone(),
            entry,
            started: Instant::now(),
            question: String::new(),
            prompt: None,
            turn: None,
            stats: None,
            prompt_hash: None,
            learns: identity.learns,
            model_choice: identity.routed.clone(),
            kept: None,
        }
    }

    /// Notes how long session and policies took to read.
    pub fn retrieved(&mut self, took: Duration) {
        self.entry.latency.retrieval_ms = millis(took);
    }

    /// Notes what hidden states are standardised with.
    pub fn embeds_with(&mut self, stats: Option<Arc<DimensionStats>>) {
        self.stats = stats;
    }

    /// Notes what policies decided, and how the model was chosen before.
    pub fn routed(&mut self, mut routing: Routing, mut took: Duration) {
        if let Some(chosen) = &self.model_choice {
            chosen.note(&mut routing);
            took += chosen.took;
        }
        self.entry.routing = routing;
        self.entry.latency.routing_ms = millis(took);
    }

    /// Notes what is asked. The session holds the first `known_messages` already.
    pub fn asks(&mut self, tokenizer: &Tokenizer, request: &Request, known_messages: usize) {
        let keeps_text = self.recorder.0.keeps_text;
        if self.is_embedded() || keeps_text {
            self.question = beginning(&newest(tokenizer, &request.prompt));
        }
        if keeps_text {
            self.prompt = Some(beginning(&whole(tokenizer, &request.prompt)));
        }
        if let (Some(name), Prompt::Messages(messages)) = (&self.entry.session, &request.prompt) {
            self.turn = Some(Turn {
                session: name.clone(),
                tenant: self.entry.tenant.clone(),
                user: self.entry.user.clone(),
                model: self.entry.model.clone(),
                adapter: self.entry.adapter.clone(),
                messages: messages.iter().skip(known_messages).map(Message::to_json).collect(),
                ..Turn::default()
            });
        }
        self.kept = self.learns.then(|| Kept::new(tokenizer, request));
        self.compare(request, known_messages);
    }

    /// Notes the request that was answered to the same prompt a short time ago: another answer is wanted. Greedy sampling
    /// would give the same one.
    fn compare(&mut self, request: &Request, known_messages: usize) {
        if request.sampling.temperature <= 0.0 {
            return;
        }
        let WitnessEntry { tenant, user, session, .. } = &self.entry;
        let hasher = &self.recorder.0.prompt_hasher;
        let hash = match (&request.prompt, session) {
            // A session holds the earlier answer by now: its new messages are what is repeated.
            (Prompt::Messages(messages), Some(session)) => {
                hasher.hash_one((tenant, user, session, messages.get(known_messages..)))
            }
            (prompt, _) => hasher.hash_one((tenant, user, prompt)),
        };
        self.entry.regenerates = self.recorder.recorder().answered(hash);
        self.prompt_hash = Some(hash);
    }

    /// Notes the prompt as the model reads it, where that is kept.
    pub fn encoded(&mut self, tokens: &Arc<[TokenId]>) {
        if let Some(kept) = &mut self.kept {
            kept.encoded(Arc::clone(tokens));
        }
    }

    /// Returns the record of the `index`-th answer to the same request id, which all but the first have a suffix for.
    pub fn for_choice(&self, index: usize) -> Self {
        let mut record = self.clone();
        if index > 0 {
            record.entry.request = format!("{}#{}", self.entry.request, index + 1);
            record.entry.regenerates = None;
            // One choice was made for all, and counts once.
            record.entry.routing.choice = None;
            record.prompt_hash = None;
        }
        record
    }

    /// Returns whether an embedding model reads prompt and answer.
    fn is_embedded(&self) -> bool {
        !self.recorder.uses_hidden_states()
    }

    /// Records that the request could not be prepared.
    pub fn refused(self, error: &RequestError) {
        self.write_failure(Failure { kind: "invalid_session".to_owned(), message: beginning(&error.to_string()) });
    }

    /// Records that the engine refused the request.
    pub fn failed(self, error: &GenerateError) {
        self.write_failure(failure(error));
    }

    fn write_failure(mut self, failure: Failure) {
        self.entry.error = Some(failure);
        self.entry.latency.total_ms = millis(self.started.elapsed());
        let witness = WitnessRecord { entry: self.entry, ..Default::default() };
        self.recorder.recorder().record(Trace { witness, ..Trace::default() });
    }

    /// Records an answer that has ended, in whatever way.
    pub fn ended(mut self, model: &LoadedModel, response: &Response, error: Option<&GenerateError>) {
        self.measure(response);
        self.entry.error = match (error, response.finish_reason) {
            (Some(error), _) => Some(failure(error)),
            (None, None) => Some(Failure { kind: "cancelled".into(), message: "nobody waited for the answer".into() }),
            (None, Some(_)) => None,
        };
        let answer = answer(response);
        if let Some(prompt) = self.prompt.take() {
            self.entry.texts = Some(Texts { prompt, answer: beginning(&answer.content) });
        }
        let to_embed = self
            .is_embedded()
            .then(|| [std::mem::take(&mut self.question), beginning(&answer.content)])
            .filter(|[question, _]| !question.is_empty());
        let (prompt_embedding, answer_embedding) =
            (self.stored_vector(&response.embeddings.prompt), self.stored_vector(&response.embeddings.answer));
        let turn = self.turn.take().filter(|_| self.entry.error.is_none()).map(|mut turn| {
            turn.messages.push(answer.to_json());
            let tokens = response.usage.prompt_tokens + response.usage.completion_tokens;
            turn.kv = model.caches_prefixes.then(|| kv_state(model, tokens));
            turn.embedding.clone_from(&prompt_embedding);
            turn.at_ms = now_ms();
            turn
        });
        let is_answered = self.entry.error.is_none();
        let kept = self.kept.take().filter(|_| is_answered);
        let trajectory = kept.and_then(|kept| kept.trajectory(model, &self.entry, &answer, response));
        let prompt = self.prompt_hash.filter(|_| is_answered);
        let witness = WitnessRecord { entry: self.entry, prompt_embedding, answer_embedding };
        self.recorder.recorder().record(Trace { witness, to_embed, turn, trajectory, prompt });
    }

    fn measure(&mut self, response: &Response) {
        let Response { usage, timings, finish_reason, .. } = response;
        let entry = &mut self.entry;
        entry.latency = Latency {
            queue_ms: timings.queue_ms,
            prefill_ms: (timings.ttft_ms - timings.queue_ms).max(0.0),
            decode_ms: (timings.total_ms - timings.ttft_ms).max(0.0),
            total_ms: millis(self.started.elapsed()),
            ..entry.latency
        };
        entry.cache = CacheUse { cached_tokens: usage.cached_tokens as u64, loaded_tokens: usage.loaded_tokens as u64 };
        entry.tokens = TokenCounts { prompt: usage.prompt_tokens as u64, answer: usage.completion_tokens as u64 };
        let tokens = usage.prompt_tokens + usage.completion_tokens;
        entry.routing.context_bucket = tokens.next_power_of_two() as u64;
        entry.finish = finish_reason.map(|reason| finish_tag(reason).to_owned());
        entry.quality = Some(quality::quality(response));
        entry.recall = response.recall.map(|RecallUse { items, share }| StoredRecallUse { items: items as u64, share });
        if let (Some(recall), Some(used)) = (self.recorder.recall(), &response.recall) {
            recall.answered(response.tokens.len(), used.share);
        }
    }

    /// Returns a hidden state as the memory stores it.
    fn stored_vector(&self, state: &Option<Vec<f32>>) -> Option<Vec<f32>> {
        let standardised = standardised(state.as_ref()?, self.stats.as_ref()?)?;
        Some(fitted(standardised, self.recorder.memory().dimension()))
    }
}

/// Returns the log's word for a finish reason. These words are stored: they stay, whatever the variants are called.
fn finish_tag(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
    }
}

/// Returns the log's word and message for an error.
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
        GenerateError::OutputFormat(_) | GenerateError::Tools(_) => "invalid_grammar",
        GenerateError::NoTemplate | GenerateError::Template(_) => "template",
        GenerateError::NoMemory => "invalid_session",
        GenerateError::Step(_) | GenerateError::EngineFailed | GenerateError::NoEmbedding => "engine",
    };
    Failure { kind: kind.to_owned(), message: beginning(&error.to_string()) }
}

/// Returns the answer as a message of the conversation.
fn answer(response: &Response) -> Message {
    let reasoning = Some(response.reasoning.clone()).filter(|reasoning| !reasoning.is_empty());
    Message { reasoning, tool_calls: response.tool_calls.clone(), ..Message::assistant(&response.text) }
}

/// Returns what was asked last.
fn newest(tokenizer: &Tokenizer, prompt: &Prompt) -> String {
    match prompt {
        Prompt::Messages(messages) => {
            let asked = messages.iter().rfind(|message| message.role == "user").or(messages.last());
            asked.map_or_else(String::new, |message| message.content.clone())
        }
        other => whole(tokenizer, other),
    }
}

pub(super) fn whole(tokenizer: &Tokenizer, prompt: &Prompt) -> String {
    match prompt {
        Prompt::Messages(messages) => {
            let lines = messages.iter().map(|message| format!("{}: {}", message.role, message.content));
            lines.collect::<Vec<_>>().join("\n")
        }
        Prompt::Text(text) => text.clone(),
        Prompt::Tokens(tokens) => {
            let bytes: Vec<u8> = tokens.iter().flat_map(|token| tokenizer.token_bytes(*token)).copied().collect();
            String::from_utf8_lossy(&bytes).into_owned()
        }
    }
}

fn beginning(text: &str) -> String {
    text.chars().take(CHARS_MAX).collect()
}

/// Returns where the KV pages of a conversation are now.
fn kv_state(model: &LoadedModel, tokens: usize) -> KvState {
    let status = model.thread.status();
    let on_disk = status.cache.disk.is_some();
    let precision = status.tier_pages().next().map_or_else(|| "f16".to_owned(), |(format, _)| format);
    KvState {
        tier: if on_disk { "disk" } else { "memory" }.to_owned(),
        place: model.disk_folder.as_ref().map(|folder| folder.display().to_string()),
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

    /// Stored logs are searched by these words.
    #[test]
    fn words_that_are_stored_stay() {
        assert_eq!([FinishReason::Stop, FinishReason::Length].map(finish_tag), ["stop", "length"]);
        assert_eq!(failure(&GenerateError::NoMemory).kind, "invalid_session");
        assert_eq!(failure(&GenerateError::EngineFailed).kind, "engine");
    }
}
