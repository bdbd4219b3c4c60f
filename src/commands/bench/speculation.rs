//! Measures the gain of speculative decoding: the same texts with and without it, in turns.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use ruvllm_runtime::{Engine, PrefixUse, Request, Response, Sampling, Speculation};
use serde_json::{Value, json};

use super::Spread;
use super::works::{Task, WORKLOADS, Work};
use crate::exit::Interrupted;

/// Measurements of one workload.
pub struct Comparison {
    name: &'static str,
    /// With speculation.
    total: Total,
    /// Tokens per second without and with speculation, and the ratio of each pair of consecutive runs.
    plain: Spread,
    speculative: Spread,
    gain: Spread,
    /// The median gain of the text that gains least.
    least_text_gain: f64,
}

/// How the texts are generated.
pub struct Settings<'a> {
    pub speculation: Speculation,
    /// Maximum tokens of each text.
    pub tokens_max: usize,
    pub repeat: usize,
    pub interrupted: &'a AtomicBool,
}

impl Settings<'_> {
    /// Runs every workload `repeat` times both ways; one round before is not counted.
    pub fn compare(&self, engine: &mut Engine) -> Result<Vec<Comparison>> {
        WORKLOADS.iter().map(|work| self.compare_work(engine, work)).collect()
    }

    fn compare_work(&self, engine: &mut Engine, work: &Work) -> Result<Comparison> {
        let (mut plain_rates, mut speculative_rates, mut gains) = (Vec::new(), Vec::new(), Vec::new());
        let mut text_gains = vec![Vec::new(); work.tasks.len()];
        let mut last = Total::default();
        for round in 0..=self.repeat {
            let texts = self.round(engine, work)?;
            let (mut plain, mut speculative) = (Total::default(), Total::default());
            for (text, gains) in texts.iter().zip(&mut text_gains) {
                plain.add(&text.0);
                speculative.add(&text.1);
                if round > 0 {
                    gains.push(text.1.rate() / text.0.rate());
                }
            }
            if round > 0 {
                plain_rates.push(plain.rate());
                speculative_rates.push(speculative.rate());
                gains.push(speculative.rate() / plain.rate());
            }
            last = speculative;
        }
        Ok(Comparison {
            name: work.name,
            total: last,
            plain: Spread::of(plain_rates),
            speculative: Spread::of(speculative_rates),
            gain: Spread::of(gains),
            least_text_gain: text_gains.into_iter().map(|gains| Spread::of(gains).median).fold(f64::INFINITY, f64::min),
        })
    }

    /// Runs every text of a workload without speculation, then with it.
    fn round(&self, engine: &mut Engine, work: &Work) -> Result<Vec<(Total, Total)>> {
        let mut texts = Vec::with_capacity(work.tasks.len());
        for task in work.tasks {
            let plain = self.answer(engine, task, Speculation::Off)?;
            let speculative = self.answer(engine, task, self.speculation)?;
            if plain.tokens != speculative.tokens {
                bail!("'{}' has different tokens with speculation than without: this is a bug", work.name);
            }
            texts.push((Total::of(&plain), Total::of(&speculative)));
            if self.interrupted.load(Ordering::Relaxed) {
                return Err(Interrupted.into());
            }
        }
        Ok(texts)
    }

    fn answer(&self, engine: &mut Engine, task: &Task, speculation: Speculation) -> Result<Response> {
        let (prompt, stop) = task.prompt(engine.has_chat_template());
        let mut request = Request::new(prompt);
        // Both must start from the same state: cached pages may have been demoted meanwhile.
        request.prefix_use = PrefixUse::OFF;
        request.sampling = Sampling::greedy();
        request.max_tokens = Some(self.tokens_max);
        request.stop = stop.map(str::to_owned).into_iter().collect();
        request.speculation = speculation;
        Ok(engine.generate(request)?)
    }
}

/// Answers without their first tokens, which belong to the prefill.
#[derive(Default)]
struct Total {
    tokens: usize,
    steps: usize,
    drafted: usize,
    accepted: usize,
    drafted_by_model: usize,
    accepted_by_model: usize,
    seconds: f64,
}

impl Total {
    fn of(response: &Response) -> Self {
        let tokens = response.tokens.len() - 1;
        let rate = response.timings.decode_tok_s;
        Self {
            tokens,
            steps: response.usage.steps - 1,
            drafted: response.usage.drafted_tokens,
            accepted: response.usage.accepted_tokens,
            drafted_by_model: response.usage.drafted_by_model,
            accepted_by_model: response.usage.accepted_by_model,
            seconds: if rate > 0.0 { tokens as f64 / rate } else { 0.0 },
        }
    }

    fn add(&mut self, other: &Self) {
        self.tokens += other.tokens;
        self.steps += other.steps;
        self.drafted += other.drafted;
        self.accepted += other.accepted;
        self.drafted_by_model += other.drafted_by_model;
        self.accepted_by_model += other.accepted_by_model;
        self.seconds += other.seconds;
    }

    fn rate(&self) -> f64 {
        self.tokens as f64 / self.seconds
    }
}

impl Comparison {
    fn tokens_per_step(&self) -> f64 {
        self.total.tokens as f64 / self.total.steps.max(1) as f64
    }

    pub fn to_json(&self) -> Value {
        json!({
            "work": self.name,
            "tokens": self.total.tokens,
            "steps": self.total.steps,
            "tokens_per_step": self.tokens_per_step(),
            "drafted_tokens": self.total.drafted,
            "accepted_tokens": self.total.accepted,
            "drafted_by_model": self.total.drafted_by_model,
            "accepted_by_model": self.total.accepted_by_model,
            "plain_tok_s": self.plain.to_json(),
            "speculative_tok_s": self.speculative.to_json(),
            "gain": self.gain.to_json(),
            "least_text_gain": self.least_text_gain,
        })
    }

    pub fn heading() -> Vec<String> {
        let titles = [
            "speculation",
            "tokens",
            "drafted",
            "accepted",
            "tokens/step",
            "plain tokens/s",
            "tokens/s",
            "gain",
            "least text",
        ];
        titles.map(str::to_owned).to_vec()
    }

    pub fn row(&self) -> Vec<String> {
        vec![
            self.name.to_owned(),
            self.total.tokens.to_string(),
            self.total.drafted.to_string(),
            self.total.accepted.to_string(),
            format!("{:.2}", self.tokens_per_step()),
            format!("{:.1}", self.plain.median),
            format!("{:.1}", self.speculative.median),
            format!("{:.2} ({:.2} to {:.2})", self.gain.median, self.gain.least, self.gain.most),
            format!("{:.2}", self.least_text_gain),
        ]
    }
}
