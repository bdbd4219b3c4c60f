//! What the prefix cache gains on this machine: the same requests with and without it, in turns.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Result;
use ruvllm_engine::{Core, PrefixUse, Request, SequenceId, Speculation};
use serde_json::{Value, json};

use super::{Spread, filler};
use crate::exit::Interrupted;

/// Requests that begin alike.
struct Work {
    name: &'static str,
    /// Tokens that all of them share, and that each has of its own.
    shared: usize,
    own: usize,
    /// Requests that come after the first, one after the other or all at once.
    requests: usize,
    at_once: bool,
    /// Tokens that each generates.
    generated: usize,
}

const WORKS: [Work; 4] = [
    Work { name: "chat, 200-token system prompt", shared: 200, own: 20, requests: 4, at_once: false, generated: 1 },
    Work { name: "1,000-token context, 20 new", shared: 1000, own: 20, requests: 4, at_once: false, generated: 1 },
    Work { name: "100 with a 50-token instruction", shared: 50, own: 10, requests: 100, at_once: true, generated: 1 },
    Work { name: "8 at once, 1,000 tokens shared", shared: 1000, own: 20, requests: 8, at_once: true, generated: 64 },
];

/// Tokens of the longest request.
pub const CONTEXT_MIN: usize = 1000 + 20 + 64;
/// Requests that run at once at most.
pub const SEQUENCES: usize = 8;

/// The measurements of one kind of work.
pub struct Comparison {
    work: &'static Work,
    cold: Runs,
    cached: Runs,
}

/// Runs without the cache, or with it.
#[derive(Default)]
struct Runs {
    /// Median time to the first token of a run's requests.
    first_token_ms: Vec<f64>,
    /// Generated tokens of all requests per second, from submission to the end.
    tok_s: Vec<f64>,
    /// Prompt tokens of the last run that were computed.
    computed: usize,
}

pub fn compare(core: &mut Core, repeat: usize, interrupted: &AtomicBool) -> Result<Vec<Comparison>> {
    let mut number = 0;
    let mut all = Vec::new();
    for work in &WORKS {
        let mut comparison = Comparison { work, cold: Runs::default(), cached: Runs::default() };
        for round in 0..=repeat {
            // Prompts that were never asked before.
            number += 1;
            let prompts = work.prompts(core, number);
            let runs = [(PrefixUse::OFF, &mut comparison.cold), (PrefixUse::default(), &mut comparison.cached)];
            for (prefix_use, runs) in runs {
                let run = work.run(core, &prompts, prefix_use)?;
                if round > 0 {
                    runs.first_token_ms.push(run.0);
                    runs.tok_s.push(run.1);
                    runs.computed = run.2;
                }
            }
            if interrupted.load(Ordering::Relaxed) {
                return Err(Interrupted.into());
            }
        }
        all.push(comparison);
    }
    Ok(all)
}

impl Work {
    fn prompts(&self, core: &Core, number: usize) -> Vec<Vec<u32>> {
        let shared = filler(core, self.shared, number * 1000);
        let own = |request: usize| filler(core, self.own, number * 1000 + 1 + request);
        (0..=self.requests).map(|request| [&shared[..], &own(request)].concat()).collect()
    }

    /// The median time to the first token in ms, tokens per second, and prompt tokens computed. The first request, which
    /// fills the cache, counts only where all come at once.
    fn run(&self, core: &mut Core, prompts: &[Vec<u32>], prefix_use: PrefixUse) -> Result<(f64, f64, usize)> {
        let request = |prompt: &Vec<u32>| Request {
            max_tokens: Some(self.generated),
            speculation: Speculation::Off,
            prefix_use,
            ..Request::new(prompt.clone())
        };
        let (first, rest) = prompts.split_first().expect("there is a first request");
        let mut computed = 0;
        let mut first_tokens = Vec::new();
        let started = Instant::now();
        if self.at_once {
            run(core, rest.iter().map(request), &mut first_tokens, &mut computed)?;
        } else {
            run(core, [request(first)].into_iter(), &mut Vec::new(), &mut 0)?;
            for prompt in rest {
                run(core, [request(prompt)].into_iter(), &mut first_tokens, &mut computed)?;
            }
        }
        let seconds = started.elapsed().as_secs_f64();
        let tokens = rest.len() * self.generated;
        Ok((Spread::of(first_tokens).median, tokens as f64 / seconds, computed))
    }
}

/// Runs requests together. Adds the time to the first token of each in ms, and the prompt tokens that were computed.
fn run(
    core: &mut Core,
    requests: impl Iterator<Item = Request>,
    first_tokens: &mut Vec<f64>,
    computed: &mut usize,
) -> Result<()> {
    let started = Instant::now();
    let mut waiting: Vec<(SequenceId, usize)> = Vec::new();
    for request in requests {
        let prompt = request.prompt.len();
        waiting.push((core.submit(request)?, prompt));
    }
    while !core.is_idle() {
        let step = Instant::now();
        let results = core.step();
        core.step_took(step.elapsed());
        for event in results {
            let event = event?;
            if let Some(prefix) = event.prefix {
                let at = waiting.iter().position(|(id, _)| *id == event.sequence).expect("it was submitted here");
                *computed += waiting.swap_remove(at).1 - prefix.cached_tokens;
                first_tokens.push(started.elapsed().as_secs_f64() * 1e3);
            }
        }
    }
    Ok(())
}

impl Comparison {
    fn first_token(&self, runs: &Runs) -> f64 {
        Spread::of(runs.first_token_ms.clone()).median
    }

    fn tok_s(&self, runs: &Runs) -> f64 {
        Spread::of(runs.tok_s.clone()).median
    }

    pub fn to_json(&self) -> Value {
        let runs = |runs: &Runs| {
            json!({
                "first_token_ms": Spread::of(runs.first_token_ms.clone()).to_json(),
                "tok_s": Spread::of(runs.tok_s.clone()).to_json(),
                "computed_prompt_tokens": runs.computed,
            })
        };
        json!({
            "work": self.work.name,
            "shared_tokens": self.work.shared,
            "own_tokens": self.work.own,
            "requests": self.work.requests,
            "generated_tokens": self.work.generated,
            "without": runs(&self.cold),
            "with": runs(&self.cached),
            "first_token_gain": self.first_token(&self.cold) / self.first_token(&self.cached),
        })
    }

    pub fn heading() -> Vec<String> {
        let titles = ["prefix cache", "computed", "with", "first token ms", "with", "gain", "tokens/s", "with"];
        titles.map(str::to_owned).to_vec()
    }

    pub fn row(&self) -> Vec<String> {
        let (cold, cached) = (self.first_token(&self.cold), self.first_token(&self.cached));
        vec![
            self.work.name.to_owned(),
            self.cold.computed.to_string(),
            self.cached.computed.to_string(),
            format!("{cold:.1}"),
            format!("{cached:.1}"),
            format!("{:.1}", cold / cached),
            format!("{:.0}", self.tok_s(&self.cold)),
            format!("{:.0}", self.tok_s(&self.cached)),
        ]
    }
}
