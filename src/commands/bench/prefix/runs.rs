//! Runs a workload, with the prefix cache or without.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::Result;
use ruvllm_engine::{Core, PrefixUse, Request, Speculation, Tenant};
use serde_json::{Value, json};

use super::works::{Pattern, Texts, Work};
use crate::commands::bench::Spread;
use crate::commands::bench::answered::{Answered, answer};

/// How requests are made.
pub struct Settings<'a> {
    pub tenant: Tenant,
    pub prefix_use: PrefixUse,
    pub interrupted: &'a AtomicBool,
}

impl Settings<'_> {
    /// Runs a workload; returns its answers and the total seconds.
    pub fn run(&self, core: &mut Core, work: &Work, texts: &Texts) -> Result<(Vec<Answered>, f64)> {
        // Without the cache there is nothing to fill.
        for prompt in texts.before.iter().filter(|_| self.prefix_use.enabled) {
            answer(core, vec![self.request(work, prompt.clone())], self.interrupted)?;
        }
        let started = Instant::now();
        let mut answered = Vec::new();
        match work.pattern {
            Pattern::AtOnce { .. } => {
                let requests = texts.requests.iter().map(|prompt| self.request(work, prompt.clone())).collect();
                answered = answer(core, requests, self.interrupted)?;
            }
            Pattern::InTurn { .. } | Pattern::Mixed { .. } => {
                for prompt in &texts.requests {
                    answered.extend(answer(core, vec![self.request(work, prompt.clone())], self.interrupted)?);
                }
            }
            Pattern::Chat { .. } => {
                let mut said = Vec::new();
                for turn in &texts.requests {
                    said.extend(turn);
                    let turn = answer(core, vec![self.request(work, said.clone())], self.interrupted)?;
                    turn.iter().for_each(|answer| said.extend(&answer.tokens));
                    answered.extend(turn);
                }
            }
        }
        Ok((answered, started.elapsed().as_secs_f64()))
    }

    fn request(&self, work: &Work, prompt: Vec<u32>) -> Request {
        Request {
            max_tokens: Some(work.generated),
            speculation: Speculation::Off,
            tenant: self.tenant.clone(),
            prefix_use: self.prefix_use,
            ..Request::new(prompt)
        }
    }
}

/// Measurements of one workload, by run. Token counts are the same in each.
#[derive(Default)]
pub struct Runs {
    /// Median over the requests of a run.
    first_token_ms: Vec<f64>,
    /// From the first submission to the last token.
    seconds: Vec<f64>,
    requests: usize,
    /// Requests with cached tokens.
    hits: usize,
    prompt_tokens: usize,
    pub computed_tokens: usize,
    generated_tokens: usize,
}

impl Runs {
    pub fn add(&mut self, answered: &[Answered], seconds: f64) {
        let sum = |count: fn(&Answered) -> usize| answered.iter().map(count).sum();
        self.first_token_ms.push(Spread::of(answered.iter().map(|answer| answer.first_token_ms).collect()).median);
        self.seconds.push(seconds);
        self.requests = answered.len();
        self.hits = answered.iter().filter(|answer| answer.cached_tokens > 0).count();
        self.prompt_tokens = sum(|answer| answer.prompt_tokens);
        self.computed_tokens = sum(Answered::computed_tokens);
        self.generated_tokens = sum(|answer| answer.tokens.len());
    }

    pub fn first_token_ms(&self) -> f64 {
        Spread::of(self.first_token_ms.clone()).median
    }

    pub fn seconds(&self) -> f64 {
        Spread::of(self.seconds.clone()).median
    }

    /// Returns the fraction of prompt tokens that were cached.
    pub fn tokens_hit(&self) -> f64 {
        1.0 - self.computed_tokens as f64 / self.prompt_tokens as f64
    }

    pub fn requests_hit(&self) -> f64 {
        self.hits as f64 / self.requests as f64
    }

    pub fn to_json(&self) -> Value {
        let rates = self.seconds.iter().map(|seconds| self.generated_tokens as f64 / seconds).collect();
        json!({
            "prompt_tokens": self.prompt_tokens,
            "computed_prompt_tokens": self.computed_tokens,
            "first_token_ms": Spread::of(self.first_token_ms.clone()).to_json(),
            "total_s": Spread::of(self.seconds.clone()).to_json(),
            "tok_s": Spread::of(rates).to_json(),
        })
    }
}
