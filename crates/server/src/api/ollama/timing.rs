//! How long a request took, in nanoseconds.

use std::time::{Duration, Instant};

use ruvllm_runtime::Response;
use serde::Serialize;
use utoipa::ToSchema;

/// When a request arrived, and how long its model took to load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    arrived: Instant,
    load: Duration,
}

/// The durations of an answer, in nanoseconds, and its tokens.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Durations {
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
    prompt_eval_duration: u64,
    eval_count: usize,
    eval_duration: u64,
}

impl Clock {
    pub(super) fn start() -> Self {
        Self { arrived: Instant::now(), load: Duration::ZERO }
    }

    /// Notes that the model is loaded now.
    pub(super) fn loaded(self) -> Self {
        Self { load: self.arrived.elapsed(), ..self }
    }

    pub(super) fn total_ns(&self) -> u64 {
        nanoseconds(self.arrived.elapsed())
    }

    pub(super) fn load_ns(&self) -> u64 {
        nanoseconds(self.load)
    }

    pub(super) fn durations(&self, response: &Response) -> Durations {
        let (usage, timings) = (response.usage, response.timings);
        let ms = |ms: f64| (ms.max(0.0) * 1e6) as u64;
        Durations {
            total_duration: self.total_ns(),
            load_duration: self.load_ns(),
            prompt_eval_count: usage.prompt_tokens,
            prompt_eval_duration: ms(timings.ttft_ms - timings.queue_ms),
            eval_count: usage.completion_tokens,
            eval_duration: ms(timings.total_ms - timings.ttft_ms),
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
