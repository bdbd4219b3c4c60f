//! `ruvllm bench`: prefill and decode speed of a model on this machine.

mod arrival;
mod prefix;
mod speculation;
mod works;

use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use ruvllm_engine::{Core, PrefixUse, Request, Speculation};
use serde_json::json;

use self::speculation::Comparison;
use crate::exit::Interrupted;
use crate::model_flags::ModelFlags;
use crate::output;
use crate::progress::interrupt_flag;
use crate::speculation_flag::SpeculationFlag;

/// Measure how fast a model runs on this machine
#[derive(Debug, Args)]
pub struct Bench {
    #[command(flatten)]
    model: ModelFlags,
    /// Prompt tokens of the prefill measurement
    #[arg(long, short = 'p', default_value_t = 512, value_name = "N")]
    prefill: usize,
    /// Tokens of the decode measurement
    #[arg(long, short = 'n', default_value_t = 64, value_name = "N")]
    decode: usize,
    /// Tokens already in the context when decoding begins
    #[arg(long, short = 'd', default_value_t = 0, value_name = "N")]
    depth: usize,
    /// Texts that are decoded at the same time
    #[arg(long, short = 's', default_value_t = 1, value_name = "N")]
    sequences: usize,
    /// Measurements, of which the median is reported
    #[arg(long, short = 'r', default_value_t = 5, value_name = "N")]
    repeat: usize,
    /// auto or on: also compare texts (chat, a copy, a code edit, JSON) with and without speculative decoding. Prefill
    /// and decode are measured without it in any case
    #[arg(long, value_enum, default_value_t = SpeculationFlag::Off, value_name = "WHEN")]
    speculation: SpeculationFlag,
    /// Tokens of each of those texts at most
    #[arg(long, default_value_t = 192, value_name = "N")]
    answer: usize,
    /// Also compare requests that begin alike (a system prompt, a long context, many at once) with and without the prefix
    /// cache
    #[arg(long)]
    prefix: bool,
    /// Also measure what the arrival of a prompt of so many tokens does to texts that are being generated
    #[arg(long, value_name = "N")]
    arrival: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Bench {
    pub fn execute(self) -> Result<()> {
        // An answer's first token is its prompt's work.
        let counts = [
            ("prefill", self.prefill, 1),
            ("decode", self.decode, 1),
            ("repeat", self.repeat, 1),
            ("answer", self.answer, 2),
        ];
        if let Some((flag, value, least)) = counts.into_iter().find(|(_, value, least)| value < least) {
            bail!("--{flag} is {value}; it must be at least {least}");
        }
        let interrupted = interrupt_flag();
        let loading = Instant::now();
        let for_prefix = if self.prefix { prefix::SEQUENCES } else { 0 };
        let for_arrival = if self.arrival.is_some() { arrival::SEQUENCES } else { 0 };
        let sequences = self.sequences.max(for_prefix).max(for_arrival);
        let mut engine = self.model.load(interrupted.clone(), sequences)?;
        if self.prefix && engine.context() < prefix::CONTEXT_MIN {
            bail!("--prefix needs a context of {} tokens at least; it is {}", prefix::CONTEXT_MIN, engine.context());
        }
        let load_s = loading.elapsed().as_secs_f64();
        let (threads, kernels) = (engine.threads(), engine.kernels().name());
        let core = engine.core();
        let (mut prefill, mut decode) = (Vec::new(), Vec::new());
        // One round to touch all memory; it is not counted.
        for round in 0..=self.repeat {
            let rates = (self.measure_prefill(core)?, self.measure_decode(core)?);
            if round > 0 {
                prefill.push(rates.0);
                decode.push(rates.1);
            }
            if interrupted.load(Ordering::Relaxed) {
                return Err(Interrupted.into());
            }
        }
        let (prefill, decode) = (Spread::of(prefill), Spread::of(decode));
        let comparisons = match self.speculation {
            SpeculationFlag::Off => Vec::new(),
            when => {
                let settings = speculation::Settings {
                    speculation: when.into(),
                    tokens_max: self.answer,
                    repeat: self.repeat,
                    interrupted: &interrupted,
                };
                settings.compare(&mut engine)?
            }
        };
        let prefixes =
            if self.prefix { prefix::compare(engine.core(), self.repeat, &interrupted)? } else { Vec::new() };
        let arrival = self.arrival.map(|prompt| arrival::measure(engine.core(), prompt, &interrupted)).transpose()?;
        if self.json {
            let mut object = json!({
                "model": self.model.model,
                "threads": threads,
                "kernels": kernels,
                "load_s": load_s,
                "prefill": { "tokens": self.prefill, "tok_s": prefill.to_json() },
                "decode": { "tokens": self.decode, "depth": self.depth, "sequences": self.sequences,
                            "tok_s": decode.to_json() },
            });
            if !comparisons.is_empty() {
                object["speculation"] = comparisons.iter().map(Comparison::to_json).collect();
            }
            if let Some(arrival) = &arrival {
                object["arrival"] = arrival.to_json();
            }
            if self.prefix {
                object["prefix"] = prefixes.iter().map(prefix::Comparison::to_json).collect();
            }
            return output::json(&object);
        }
        output::line(&format!("{}: {threads} threads, {kernels} kernels, loaded in {load_s:.2} s", self.model.model))?;
        output::table(&[
            ["", "tokens", "tokens/s", "least", "most"].map(str::to_owned).to_vec(),
            prefill.row("prefill", self.prefill),
            decode.row(&format!("decode at depth {}, {} at once", self.depth, self.sequences), self.decode),
        ])?;
        if self.prefix {
            output::line("")?;
            let heading = prefix::Comparison::heading();
            let rows: Vec<_> = [heading].into_iter().chain(prefixes.iter().map(prefix::Comparison::row)).collect();
            output::table(&rows)?;
        }
        if let Some(arrival) = &arrival {
            output::line("")?;
            output::table(&arrival.table())?;
        }
        if comparisons.is_empty() {
            return Ok(());
        }
        output::line("")?;
        let rows: Vec<_> = [Comparison::heading()].into_iter().chain(comparisons.iter().map(Comparison::row)).collect();
        output::table(&rows)
    }

    /// Prompt tokens per second.
    fn measure_prefill(&self, core: &mut Core) -> Result<f64> {
        let tokens = filler(core, self.prefill, 0);
        let started = Instant::now();
        core.evaluate(&tokens, self.prefill - 1..self.prefill, |_, _| {})?;
        Ok(self.prefill as f64 / started.elapsed().as_secs_f64())
    }

    /// Tokens per second of all sequences together, after their prompts.
    fn measure_decode(&self, core: &mut Core) -> Result<f64> {
        for sequence in 0..self.sequences {
            core.submit(Request {
                max_tokens: Some(self.decode + 1),
                speculation: Speculation::Off,
                prefix_use: PrefixUse::OFF,
                ..Request::new(filler(core, self.depth.max(1), sequence))
            })?;
        }
        // Until each has its first token, prompts are part of the work.
        let mut first_tokens = 0;
        while first_tokens < self.sequences {
            first_tokens += core.step().len();
        }
        let started = Instant::now();
        let mut tokens = 0;
        while !core.is_idle() {
            tokens += core.step().len();
        }
        Ok(tokens as f64 / started.elapsed().as_secs_f64())
    }
}

/// Ordinary tokens in a fixed order; speed does not depend on what they say.
fn filler(core: &Core, count: usize, offset: usize) -> Vec<u32> {
    let vocabulary = core.model().config().vocabulary;
    (0..count).map(|i| ((i * 37 + offset * 101 + 1000) % vocabulary) as u32).collect()
}

/// Median and range of some measurements.
struct Spread {
    least: f64,
    median: f64,
    most: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self { least: values[0], median: values[values.len() / 2], most: values[values.len() - 1] }
    }

    fn to_json(&self) -> serde_json::Value {
        json!({ "median": self.median, "least": self.least, "most": self.most })
    }

    fn row(&self, name: &str, tokens: usize) -> Vec<String> {
        let rate = |value: f64| format!("{value:.1}");
        vec![name.to_owned(), tokens.to_string(), rate(self.median), rate(self.least), rate(self.most)]
    }
}
