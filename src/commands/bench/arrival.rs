//! What a long prompt does to texts that are being generated when it arrives.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Result;
use ruvllm_engine::{Core, PrefixUse, Request, SequenceId, Speculation};
use serde_json::{Value, json};

use super::{Spread, filler};
use crate::exit::Interrupted;

/// Texts that are generated meanwhile.
const STREAMS: usize = 4;
/// Tokens that each begins with.
const STREAM_PROMPT: usize = 32;
/// Tokens of each before the prompt arrives.
const BEFORE: usize = 96;
/// Sequences that run at once.
pub const SEQUENCES: usize = STREAMS + 1;

/// Tokens of the longest text. Those that are generated meanwhile should not end before anything was measured.
pub fn context_min(prompt: usize) -> usize {
    prompt.saturating_add(1).max(STREAM_PROMPT + 2 * BEFORE)
}

/// Milliseconds between the tokens of a text.
pub struct Arrival {
    prompt: usize,
    before: Vec<f64>,
    meanwhile: Vec<f64>,
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
                // A text may reach the end of the context; what comes then is easier work.
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
    // Prompts and the first use of all memory.
    before.drain(..before.len() / 3);
    let arrived = Instant::now();
    let long = core.submit(Request { max_tokens: Some(1), ..plain(filler(core, prompt, 99)) })?;
    let meanwhile = steps(core, &mut |sequence| sequence == long)?;
    let first_token_ms = arrived.elapsed().as_secs_f64() * 1e3;
    streams.into_iter().for_each(|stream| core.cancel(stream));
    Ok(Arrival { prompt, before, meanwhile, first_token_ms })
}

impl Arrival {
    /// Median and the time that 95 % stay below.
    fn typical(times: &[f64]) -> (f64, f64) {
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        (Spread::of(sorted.clone()).median, sorted[(sorted.len() - 1) * 95 / 100])
    }

    pub fn to_json(&self) -> Value {
        let (before, meanwhile) = (Self::typical(&self.before), Self::typical(&self.meanwhile));
        json!({
            "prompt_tokens": self.prompt,
            "streams": STREAMS,
            "before_ms": { "median": before.0, "p95": before.1 },
            "meanwhile_ms": { "median": meanwhile.0, "p95": meanwhile.1 },
            "slowdown": meanwhile.0 / before.0,
            "first_token_ms": self.first_token_ms,
        })
    }

    pub fn table(&self) -> Vec<Vec<String>> {
        let heading = [&format!("a prompt of {} tokens arrives", self.prompt), "ms between tokens", "95 % below", ""];
        let row = |name: &str, times: &[f64], remark: String| {
            let (median, most) = Self::typical(times);
            vec![name.to_owned(), format!("{median:.1}"), format!("{most:.1}"), remark]
        };
        let slowdown = Self::typical(&self.meanwhile).0 / Self::typical(&self.before).0;
        vec![
            heading.map(str::to_owned).to_vec(),
            row(&format!("{STREAMS} texts before"), &self.before, String::new()),
            row(
                "meanwhile",
                &self.meanwhile,
                format!("{slowdown:.2} times; its answer after {:.0} ms", self.first_token_ms),
            ),
        ]
    }
}
