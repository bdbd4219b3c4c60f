//! Runs requests together and records what each of them took.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Result;
use ruvllm_engine::{Core, Event, Request, SequenceId};

use crate::exit::Interrupted;

/// An answered request.
pub struct Answered {
    pub prompt_tokens: usize,
    /// Prompt tokens that were cached, and those of them that were loaded from disk.
    pub cached_tokens: usize,
    pub loaded_tokens: usize,
    /// Measured from submission, so that waiting for others counts.
    pub first_token_ms: f64,
    pub tokens: Vec<u32>,
}

impl Answered {
    pub fn computed_tokens(&self) -> usize {
        self.prompt_tokens - self.cached_tokens
    }

    fn take(&mut self, event: Event, submitted: Instant) {
        if let Some(prefix) = event.prefix {
            self.cached_tokens = prefix.cached_tokens;
            self.loaded_tokens = prefix.loaded_tokens;
            self.first_token_ms = submitted.elapsed().as_secs_f64() * 1e3;
        }
        self.tokens.push(event.sampled.token);
    }
}

/// Submits all requests and runs them to completion; answers are in the order of the requests.
pub fn answer(core: &mut Core, requests: Vec<Request>, interrupted: &AtomicBool) -> Result<Vec<Answered>> {
    let mut answered = Vec::with_capacity(requests.len());
    let mut places: HashMap<SequenceId, (usize, Instant)> = HashMap::new();
    for request in requests {
        let prompt_tokens = request.prompt.len();
        let submitted = Instant::now();
        places.insert(core.submit(request)?, (answered.len(), submitted));
        answered.push(Answered {
            prompt_tokens,
            cached_tokens: 0,
            loaded_tokens: 0,
            first_token_ms: 0.0,
            tokens: Vec::new(),
        });
    }
    while !core.is_idle() {
        let started = Instant::now();
        let results = core.step();
        core.step_took(started.elapsed());
        for event in results {
            let event = event?;
            let (place, submitted) = places[&event.sequence];
            answered[place].take(event, submitted);
        }
        if interrupted.load(Ordering::Relaxed) {
            return Err(Interrupted.into());
        }
    }
    Ok(answered)
}
