//! Metrics of each request to a model.

use std::time::Duration;

use metrics::{Counter, Histogram};
use ruvllm_runtime::StepMetrics;

use super::{Metrics, names};

/// Why an answer ended, in vLLM's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishedReason {
    /// An end token, a stop string, or a tool call.
    Stop,
    Length,
    /// The client disconnected, or a deadline passed.
    Abort,
    Error,
}

impl FinishedReason {
    const ALL: [Self; 4] = [Self::Stop, Self::Length, Self::Abort, Self::Error];

    fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Error => "error",
        }
    }
}

/// A finished request.
#[derive(Clone, Copy, Debug)]
pub struct Finished {
    pub reason: FinishedReason,
    /// From the request's arrival to its end.
    pub took: Duration,
    pub prompt_tokens: usize,
    /// Prompt tokens that were cached.
    pub cached_tokens: usize,
    pub generated_tokens: usize,
}

/// The metrics of one model; created once by [`Metrics::model`], since finding them by name is slower than counting.
/// Clones share them.
#[derive(Clone, Debug)]
pub struct ModelMetrics {
    queue_time: Histogram,
    ttft: Histogram,
    inter_token: Histogram,
    e2e: Histogram,
    request_prompt_tokens: Histogram,
    request_generation_tokens: Histogram,
    steps: StepMetrics,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    generation_tokens: Counter,
    finished: [Counter; 4],
}

impl ModelMetrics {
    pub(super) fn new(metrics: &Metrics, name: &str) -> Self {
        let model = [("model_name", name)];
        let histogram = |name| metrics.histogram(name, &model);
        let counter = |name| metrics.counter(name, &model);
        Self {
            queue_time: histogram(names::QUEUE_TIME),
            ttft: histogram(names::TTFT),
            inter_token: histogram(names::INTER_TOKEN),
            e2e: histogram(names::E2E),
            request_prompt_tokens: histogram(names::REQUEST_PROMPT_TOKENS),
            request_generation_tokens: histogram(names::REQUEST_GENERATION_TOKENS),
            steps: StepMetrics { rows: histogram(names::STEP_ROWS), sequences: histogram(names::STEP_SEQUENCES) },
            prompt_tokens: counter(names::PROMPT_TOKENS),
            cached_tokens: counter(names::CACHED_TOKENS),
            generation_tokens: counter(names::GENERATION_TOKENS),
            finished: FinishedReason::ALL
                .map(|reason| metrics.counter(names::SUCCESS, &[model[0], ("finished_reason", reason.name())])),
        }
    }

    /// Records that a request starts after waiting this long.
    pub fn started(&self, waited: Duration) {
        self.queue_time.record(waited);
    }

    /// Records the first token, this long after the request's arrival.
    pub fn first_token(&self, since_arrival: Duration) {
        self.ttft.record(since_arrival);
    }

    /// Records one more token, this long after the one before.
    pub fn next_token(&self, since_last: Duration) {
        self.inter_token.record(since_last);
    }

    /// Returns the metrics that the engine itself records.
    pub fn steps(&self) -> StepMetrics {
        self.steps.clone()
    }

    pub fn finished(&self, request: &Finished) {
        self.e2e.record(request.took);
        self.request_prompt_tokens.record(request.prompt_tokens as f64);
        self.request_generation_tokens.record(request.generated_tokens as f64);
        self.prompt_tokens.increment(request.prompt_tokens as u64);
        self.cached_tokens.increment(request.cached_tokens as u64);
        self.generation_tokens.increment(request.generated_tokens as u64);
        self.finished[request.reason as usize].increment(1);
    }
}
