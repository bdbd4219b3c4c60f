//! Measures how a long prompt slows down running sequences when it arrives.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Result;
use ruvllm_engine::{Core, PrefixUse, Request, SequenceId, Speculation};
use serde_json::{Value, json};

use super::filler;
use crate::exit::Interrupted;

/// Sequences that generate meanwhile.
const STREAMS: usize = 4;
/// Prompt tokens of each sequence.
const STREAM_PROMPT: usize = 32;
/// Tokens of each sequence before the prompt arrives.
const BEFORE: usize = 96;
/// Tokens of each sequence after it was answered.
const AFTER: usize = 32;
/// Maximum number of concurrent sequences.
pub const SEQUENCES: usize = STREAMS + 1;

/// Returns the tokens of the longest sequence. Those that generate meanwhile must not end before the measurement does.
pub fn context_min(prompt: usize) -> usize {
    prompt.saturating_add(1).max(STREAM_PROMPT + 2 * BEFORE)
}

/// Milliseconds between the tokens of a sequence.
pub struct Arrival {
    prompt: usize,
    before: Vec<f64>,
    meanwhile: Vec<f64>,
    /// Sequences are longer by then, and slower for that reason alone.
    after: Vec<f64>,
    first_token_ms: f64,
}

pub fn measure(core: &mut Core, prompt: usize, interrupted: &AtomicBool) -> Result<Arrival> {
    let plain = |prompt: Vec<u32>| Request {
        speculation: Speculation::Off,
        prefix_use: PrefixUse::OFF,
        ..Request::new(prompt)
    };
    let mut streams: Vec<SequenceId> = Vec::new();
    for stream in 0..STREAMS {
        streams.push(core.submit(plain(filler(core, STREAM_PROMPT, stream)))?);
    }
    let steps = |core: &mut Core, until: &mut dyn FnMut(SequenceId) -> bool| -> Result<Vec<f64>> {
        let mut times = Vec::new();
        let mut all_run = true;
        loop {
            let started = Instant::now();
            let results = core.step();
            let took = started.elapsed();
            core.step_took(took);
            if all_run {
                times.push(took.as_secs_f64() * 1e3);
            }
            let mut is_done = false;
            for event in results {
                let event = event?;
                // A sequence may reach the end of the context; the steps after that are easier.
                all_run &= event.finish.is_none();
                is_done |= until(event.sequence);
            }
            if interrupted.load(Ordering::Relaxed) {
                return Err(Interrupted.into());
            }
            if is_done {
                return Ok(times);
            }
        }
    };
    let mut tokens = 0;
    let mut before = steps(core, &mut |_| {
        tokens += 1;
        tokens == STREAMS * BEFORE
    })?;
    // Runs the prompts and touches all memory.
    before.drain(..before.len() / 3);
    let arrived = Instant::now();
    let long = core.submit(Request { max_tokens: Some(1), ..plain(filler(core, prompt, 99)) })?;
    let meanwhile = steps(core, &mut |sequence| sequence == long)?;
    let first_token_ms = arrived.elapsed().as_secs_f64() * 1e3;
    tokens = 0;
    let after = steps(core, &mut |_| {
        tokens += 1;
        tokens == STREAMS * AFTER
    })?;
    streams.into_iter().for_each(|stream| core.cancel(stream));
    Ok(Arrival { prompt, before, meanwhile, after, first_token_ms })
}

impl Arrival {
    /// Returns the mean and the 95th percentile.
    fn typical(times: &[f64]) -> (f64, f64) {
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        (times.iter().sum::<f64>() / times.len() as f64, sorted[(sorted.len() - 1) * 95 / 100])
    }

    /// Returns how much longer steps took on average because of the prompt.
    fn slowdown(&self) -> f64 {
        let mean = |times: &[f64]| Self::typical(times).0;
        mean(&self.meanwhile) * 2.0 / (mean(&self.before) + mean(&self.after))
    }

    pub fn to_json(&self) -> Value {
        let times = |times: &[f64]| {
            let (mean, most) = Self::typical(times);
            json!({ "mean": mean, "p95": most })
        };
        json!({
            "prompt_tokens": self.prompt,
            "streams": STREAMS,
            "before_ms": times(&self.before),
            "meanwhile_ms": times(&self.meanwhile),
            "after_ms": times(&self.after),
            "slowdown": self.slowdown(),
            "first_token_ms": self.first_token_ms,
        })
    }

    pub fn table(&self) -> Vec<Vec<String>> {
        let heading = [&format!("a prompt of {} tokens arrives", self.prompt), "ms between tokens", "95 % below", ""];
        let row = |name: &str, times: &[f64], remark: String| {
            let (mean, most) = Self::typical(times);
            vec![name.to_owned(), format!("{mean:.1}"), format!("{most:.1}"), remark]
        };
        let remark = format!("{:.2} times; answered after {:.0} ms", self.slowdown(), self.first_token_ms);
        vec![
            heading.map(str::to_owned).to_vec(),
            row(&format!("{STREAMS} sequences before"), &self.before, String::new()),
            row("meanwhile", &self.meanwhile, remark),
            row("after (longer by then)", &self.after, String::new()),
        ]
    }
}
