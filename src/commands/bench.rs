//! `ruvllm bench`: prefill and decode speed of a model on this machine.

mod answered;
mod arrival;
mod prefix;
mod serve;
mod sessions;
mod speculation;
mod spread;
mod together;
mod works;

use std::sync::atomic::Ordering;
use std::time::Instant;

use anyhow::{Error, Result, anyhow, bail};
use clap::{Args, Subcommand};
use ruvllm_engine::{Core, PrefixUse, Request, Speculation, StepError, SubmitError};
use serde_json::json;

use self::speculation::Comparison;
use self::spread::Spread;
use crate::exit::Interrupted;
use crate::flags::model::{EngineFlags, ModelFlags};
use crate::flags::speculation::SpeculationFlag;
use crate::output;
use crate::output::progress::interrupt_flag;

/// Measure how fast a model runs on this machine, or how a running server does under load
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Bench {
    #[command(subcommand)]
    other: Option<Other>,
    /// A name from the catalogue, hf:OWNER/REPO/FILE.gguf, or the path of a GGUF file
    #[arg(required = true)]
    model: Option<String>,
    #[command(flatten)]
    flags: ModelBenchFlags,
}

/// What else can be measured.
#[derive(Debug, Subcommand)]
enum Other {
    Serve(serve::Serve),
    Together(together::Together),
}

impl Bench {
    pub fn execute(self) -> Result<()> {
        match (self.other, self.model) {
            (Some(Other::Serve(serve)), _) => serve.execute(),
            (Some(Other::Together(together)), _) => together.execute(),
            (None, Some(model)) => {
                let model = ModelFlags { model, engine: self.flags.engine.clone() };
                ModelBench { model, flags: self.flags }.execute()
            }
            (None, None) => bail!("name a model, or measure a server with `ruvllm bench serve URL`"),
        }
    }
}

#[derive(Debug, Args)]
struct ModelBenchFlags {
    #[command(flatten)]
    engine: EngineFlags,
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
    /// Also compare requests that begin alike (a chat, a long context, a mix of documents, many at once) with and without
    /// the prefix cache
    #[arg(long)]
    prefix: bool,
    /// Also measure what the arrival of a prompt of so many tokens does to texts that are being generated
    #[arg(long, value_name = "N")]
    arrival: Option<usize>,
    /// Also open so many sessions of 500 tokens and resume each of them, within --kv-memory (1G unless said otherwise).
    /// What does not fit goes to --kv-disk, or is computed again
    #[arg(long, value_name = "N", conflicts_with_all = ["prefix", "arrival"])]
    sessions: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// How fast a model runs.
struct ModelBench {
    model: ModelFlags,
    flags: ModelBenchFlags,
}

impl ModelBench {
    fn execute(mut self) -> Result<()> {
        self.check_counts()?;
        let interrupted = interrupt_flag();
        let loading = Instant::now();
        if self.flags.sessions.is_some() {
            self.model.engine.kv.kv_memory.get_or_insert(sessions::BUDGET_BYTES_DEFAULT);
        }
        let mut engine = self.model.load(interrupted.clone(), self.sequences_at_once())?;
        self.check_context(engine.context())?;
        let load_s = loading.elapsed().as_secs_f64();
        let (threads, kernels) = (engine.threads(), engine.kernels().name());
        let (mut prefill, mut decode) = (Vec::new(), Vec::new());
        // One round to touch all memory; it is not counted.
        for round in 0..=self.flags.repeat {
            let core = &mut engine.core();
            let rates = (
                self.measure_prefill(core).map_err(|error| in_flags("prefill", error))?,
                self.measure_decode(core).map_err(|error| in_flags("decode", error))?,
            );
            if round > 0 {
                prefill.push(rates.0);
                decode.push(rates.1);
            }
            if interrupted.load(Ordering::Relaxed) {
                return Err(Interrupted.into());
            }
        }
        let (prefill, decode) = (Spread::of(prefill), Spread::of(decode));
        let comparisons = match self.flags.speculation {
            SpeculationFlag::Off => Vec::new(),
            when => {
                let settings = speculation::Settings {
                    speculation: when.into(),
                    tokens_max: self.flags.answer,
                    repeat: self.flags.repeat,
                    interrupted: &interrupted,
                };
                settings.compare(&mut engine)?
            }
        };
        let prefixes = if self.flags.prefix {
            prefix::compare(&mut engine.core(), self.flags.repeat, &interrupted)
                .map_err(|error| in_flags("prefix", error))?
        } else {
            Vec::new()
        };
        let arrival =
            self.flags.arrival.map(|prompt| arrival::measure(&mut engine.core(), prompt, &interrupted)).transpose();
        let arrival = arrival.map_err(|error| in_flags("arrival", error))?;
        let sessions =
            self.flags.sessions.map(|count| sessions::measure(&mut engine.core(), count, &interrupted)).transpose();
        let sessions = sessions.map_err(|error| in_flags("sessions", error))?;
        let remarks = sessions.iter().flat_map(|sessions| sessions.remarks());
        remarks.chain(prefixes.iter().filter_map(prefix::Comparison::remark)).for_each(|text| output::remark(&text));
        if self.flags.json {
            let mut object = json!({
                "model": self.model.model,
                "threads": threads,
                "kernels": kernels,
                "load_s": load_s,
                "prefill": { "tokens": self.flags.prefill, "tok_s": prefill.to_json() },
                "decode": { "tokens": self.flags.decode, "depth": self.flags.depth, "sequences": self.flags.sequences,
                            "tok_s": decode.to_json() },
            });
            if !comparisons.is_empty() {
                object["speculation"] = comparisons.iter().map(Comparison::to_json).collect();
            }
            if let Some(arrival) = &arrival {
                object["arrival"] = arrival.to_json();
            }
            if let Some(sessions) = &sessions {
                object["sessions"] = sessions.to_json();
            }
            if self.flags.prefix {
                object["prefix"] = prefixes.iter().map(prefix::Comparison::to_json).collect();
            }
            return output::json(&object);
        }
        output::line(&format!("{}: {threads} threads, {kernels} kernels, loaded in {load_s:.2} s", self.model.model))?;
        output::table(&[
            ["", "tokens", "tokens/s", "least", "most"].map(str::to_owned).to_vec(),
            prefill.row("prefill", self.flags.prefill),
            decode.row(
                &format!("decode at depth {}, {} at once", self.flags.depth, self.flags.sequences),
                self.flags.decode,
            ),
        ])?;
        if self.flags.prefix {
            output::line("")?;
            let heading = prefix::Comparison::heading();
            let rows: Vec<_> = [heading].into_iter().chain(prefixes.iter().map(prefix::Comparison::row)).collect();
            output::table(&rows)?;
        }
        if let Some(arrival) = &arrival {
            output::line("")?;
            output::table(&arrival.table())?;
        }
        if let Some(sessions) = &sessions {
            output::line("")?;
            output::table(&sessions.table())?;
        }
        if comparisons.is_empty() {
            return Ok(());
        }
        output::line("")?;
        let rows: Vec<_> = [Comparison::heading()].into_iter().chain(comparisons.iter().map(Comparison::row)).collect();
        output::table(&rows)
    }

    /// Every count is one that can be measured.
    fn check_counts(&self) -> Result<()> {
        // An answer's first token is its prompt's work.
        let counts = [
            ("prefill", Some(self.flags.prefill), 1),
            ("decode", Some(self.flags.decode), 1),
            ("sequences", Some(self.flags.sequences), 1),
            ("repeat", Some(self.flags.repeat), 1),
            ("answer", Some(self.flags.answer), 2),
            ("arrival", self.flags.arrival, 1),
            ("sessions", self.flags.sessions, 1),
        ];
        for (flag, value, least) in counts {
            if let Some(value) = value.filter(|value| *value < least) {
                bail!("--{flag} is {value}; it must be at least {least}");
            }
        }
        Ok(())
    }

    /// The context holds the longest text of every measurement.
    fn check_context(&self, context: usize) -> Result<()> {
        let needs = [
            (format!("--prefill {}", self.flags.prefill), self.flags.prefill.saturating_add(1)),
            (
                format!("--depth {} with --decode {}", self.flags.depth, self.flags.decode),
                self.flags.depth.max(1).saturating_add(self.flags.decode).saturating_add(1),
            ),
            ("--prefix".to_owned(), if self.flags.prefix { prefix::context_min() } else { 0 }),
            (
                format!("--arrival {}", self.flags.arrival.unwrap_or(0)),
                self.flags.arrival.map_or(0, arrival::context_min),
            ),
            ("--sessions".to_owned(), if self.flags.sessions.is_some() { sessions::CONTEXT_MIN } else { 0 }),
        ];
        match needs.into_iter().find(|(_, needed)| *needed > context) {
            Some((flags, needed)) => {
                bail!(
                    "{flags} needs a context of {needed} tokens and it holds {context}; ask for less or raise --context"
                )
            }
            None => Ok(()),
        }
    }

    fn sequences_at_once(&self) -> usize {
        let prefix = if self.flags.prefix { prefix::SEQUENCES } else { 0 };
        let arrival = if self.flags.arrival.is_some() { arrival::SEQUENCES } else { 0 };
        let sessions = if self.flags.sessions.is_some() { sessions::SEQUENCES } else { 0 };
        self.flags.sequences.max(prefix).max(arrival).max(sessions)
    }

    /// Prompt tokens per second.
    fn measure_prefill(&self, core: &mut Core) -> Result<f64> {
        let tokens = filler(core, self.flags.prefill, 0);
        let started = Instant::now();
        core.evaluate(&tokens, self.flags.prefill - 1..self.flags.prefill, |_, _| {})?;
        Ok(self.flags.prefill as f64 / started.elapsed().as_secs_f64())
    }

    /// Tokens per second of all sequences together, after their prompts.
    fn measure_decode(&self, core: &mut Core) -> Result<f64> {
        for sequence in 0..self.flags.sequences {
            core.submit(Request {
                max_tokens: Some(self.flags.decode + 1),
                speculation: Speculation::Off,
                prefix_use: PrefixUse::OFF,
                ..Request::new(filler(core, self.flags.depth.max(1), sequence))
            })?;
        }
        // Until each has its first token, prompts are part of the work.
        let mut first_tokens = 0;
        while first_tokens < self.flags.sequences {
            first_tokens += events(core)?;
        }
        let started = Instant::now();
        let mut tokens = 0;
        while !core.is_idle() {
            tokens += events(core)?;
        }
        Ok(tokens as f64 / started.elapsed().as_secs_f64())
    }
}

/// Tokens that a step gives.
fn events(core: &mut Core) -> Result<usize> {
    let events = core.step().into_iter().collect::<Result<Vec<_>, StepError>>()?;
    Ok(events.len())
}

/// The flag that helps, where memory is too small for a measurement.
fn in_flags(flag: &str, error: Error) -> Error {
    if let Some(SubmitError::TooLargeForCache { needed, pages }) = error.downcast_ref() {
        return anyhow!("--{flag} needs {needed} KV pages at least and --kv-memory holds {pages}; raise it");
    }
    match error.downcast_ref() {
        Some(StepError::OutOfMemory { .. }) => anyhow!("--{flag} needs more memory than --kv-memory gives; raise it"),
        _ => error,
    }
}

/// Ordinary tokens in a fixed order; speed does not depend on what they say.
fn filler(core: &Core, count: usize, offset: usize) -> Vec<u32> {
    let vocabulary = core.model().config().vocabulary;
    (0..count).map(|i| ((i * 37 + offset * 101 + 1000) % vocabulary) as u32).collect()
}
