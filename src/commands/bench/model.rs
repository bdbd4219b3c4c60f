//! Prefill and decode speed of one model, and further measurements that flags ask for.

mod adapter;
mod first_token;
mod report;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Error, Result, anyhow, bail};
use clap::Args;
use ruvllm_engine::{Core, PrefixUse, Request, Speculation, StepError, SubmitError};
use ruvllm_runtime::{Engine, HeldAdapter, KernelChoice};

use self::adapter::{AdapterCosts, Switch};
use self::first_token::FirstToken;
use self::report::Report;
use super::{Spread, arrival, filler, prefix, sessions, speculation, step_tokens};
use crate::exit::Interrupted;
use crate::flags::adapter::{AdapterFlags, WeightedAdapter, parse_weighted};
use crate::flags::model::{EngineFlags, ModelFlags};
use crate::flags::speculation::SpeculationFlag;
use crate::output::progress::interrupt_flag;

#[derive(Debug, Args)]
pub struct ModelBenchFlags {
    #[command(flatten)]
    pub engine: EngineFlags,
    /// Measure prefill and decode with a LoRA adapter, in turns with the model alone: its name, or the path of a PEFT folder or
    /// a GGUF file. Can be repeated: sequences take them in turn. Also measures how long the first one takes to load, and the
    /// first token of a prompt whose beginning is cached, without it and with it
    #[arg(long, value_name = "ADAPTER[=WEIGHT]", value_parser = parse_weighted)]
    pub adapter: Vec<WeightedAdapter>,
    /// Prompt tokens of the prefill measurement
    #[arg(long, short = 'p', default_value_t = 512, value_name = "N")]
    prompt_tokens: usize,
    /// Tokens of the decode measurement
    #[arg(long, short = 'n', default_value_t = 64, value_name = "N")]
    decode: usize,
    /// Tokens already in the context when decoding begins
    #[arg(long, short = 'd', default_value_t = 0, value_name = "N")]
    depth: usize,
    /// Sequences that are decoded together
    #[arg(long, short = 's', default_value_t = 1, value_name = "N")]
    sequences: usize,
    /// Number of measurements; the median is reported
    #[arg(long, short = 'r', default_value_t = 5, value_name = "N")]
    repeat: usize,
    /// auto or on: also compare texts (chat, code, a copy, a code edit, JSON) with and without speculative decoding. Prefill
    /// and decode are always measured without it
    #[arg(long, value_enum, default_value_t = SpeculationFlag::Off, value_name = "WHEN")]
    speculation: SpeculationFlag,
    /// Maximum number of tokens of each of those texts
    #[arg(long, default_value_t = 192, value_name = "N")]
    answer: usize,
    /// Also compare requests with common prefixes (a chat, a long context, a mix of documents, many at once) with and without
    /// the prefix cache
    #[arg(long)]
    prefix: bool,
    /// Also measure how the arrival of a prompt of N tokens slows down running sequences
    #[arg(long, value_name = "N")]
    arrival: Option<usize>,
    /// Also open N sessions of 500 tokens and resume each of them, within --kv-memory (1G by default). Pages that do not
    /// fit go to --kv-disk, or are computed again
    #[arg(long, value_name = "N", conflicts_with_all = ["prefix", "arrival"])]
    sessions: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// How fast a model runs.
pub struct ModelBench {
    pub model: ModelFlags,
    pub flags: ModelBenchFlags,
}

/// Tokens per second of each round.
struct Rates {
    prefill: Spread,
    decode: Spread,
}

/// Rates with the adapters and the kernel pack that flags name, and without.
struct AllRates {
    rates: Rates,
    /// `None` if flags name neither an adapter nor a kernel pack.
    adapter_speed: Option<AdapterSpeed>,
}

/// What adapters and kernel packs cost: rounds with them alternate with rounds of the model alone, so that both meet the same machine.
struct AdapterSpeed {
    alone: Rates,
    /// What is left of the model's own speed, of each pair of rounds.
    share: Rates,
}

impl Rates {
    fn of(rounds: Vec<[f64; 2]>) -> Self {
        let (prefill, decode) = rounds.into_iter().map(|[prefill, decode]| (prefill, decode)).unzip();
        Self { prefill: Spread::of(prefill), decode: Spread::of(decode) }
    }
}

impl ModelBench {
    pub fn execute(mut self) -> Result<()> {
        self.check_counts()?;
        if self.flags.sessions.is_some() {
            self.model.engine.kv.kv_memory.get_or_insert(sessions::BUDGET_BYTES_DEFAULT);
        }
        let interrupted = interrupt_flag();
        let loading = Instant::now();
        let mut engine = self.model.load(interrupted.clone(), self.sequences_max())?;
        self.check_context(engine.context())?;
        let load_s = loading.elapsed().as_secs_f64();
        let flags = AdapterFlags { adapter: self.flags.adapter.clone() };
        let model = self.model.file(interrupted.clone())?.name;
        let loads = flags.load_times(&engine, &model, self.flags.repeat)?;
        let adapters = flags.hold_each(&engine, &model)?;
        let mut report = self.measure(&mut engine, load_s, &adapters, &interrupted)?;
        report.adapter = self.measure_adapter(&mut engine, loads, adapters.first())?;
        if self.flags.json { report.print_json() } else { report.print_tables() }
    }

    fn measure(
        &self,
        engine: &mut Engine,
        load_s: f64,
        adapters: &[HeldAdapter],
        interrupted: &AtomicBool,
    ) -> Result<Report<'_>> {
        let ModelBenchFlags { repeat, prefix, arrival, sessions, .. } = self.flags;
        let AllRates { rates, adapter_speed } = self.measure_rates(engine, adapters, interrupted)?;
        let first_token = self.measure_first_token(engine)?;
        let speculation = self.compare_speculation(engine, interrupted)?;
        let (threads, kernels) = (engine.threads(), engine.kernels());
        let core = &mut engine.core();
        let prefixes = prefix.then(|| prefix::compare(core, repeat, interrupted)).transpose();
        let prefixes = prefixes.map_err(|error| in_flags("prefix", error))?;
        let arrival = arrival.map(|prompt| arrival::measure(core, prompt, interrupted)).transpose();
        let arrival = arrival.map_err(|error| in_flags("arrival", error))?;
        let sessions = sessions.map(|count| sessions::measure(core, count, interrupted)).transpose();
        let sessions = sessions.map_err(|error| in_flags("sessions", error))?;
        Ok(Report {
            bench: self,
            threads,
            kernels,
            load_s,
            rates,
            adapter_speed,
            first_token,
            speculation,
            prefixes,
            arrival,
            sessions,
            adapter: None,
        })
    }

    /// Measures what the first adapter costs beside its products.
    fn measure_adapter(
        &self,
        engine: &mut Engine,
        loads: Vec<Duration>,
        adapter: Option<&HeldAdapter>,
    ) -> Result<Option<AdapterCosts>> {
        let Some(adapter) = adapter else { return Ok(None) };
        let ModelBenchFlags { prompt_tokens, repeat, .. } = self.flags;
        let load = Spread::of(loads.iter().map(|load| load.as_secs_f64() * 1e3).collect());
        Ok(Some(AdapterCosts { load, switch: Switch::measure(&mut engine.core(), adapter, prompt_tokens, repeat)? }))
    }

    /// Measures prefill and decode in turns. One round before them touches all memory and is not counted.
    fn measure_rates(
        &self,
        engine: &mut Engine,
        adapters: &[HeldAdapter],
        interrupted: &AtomicBool,
    ) -> Result<AllRates> {
        let packs = engine.kernel_packs().clone();
        let has_packs = packs.status().is_some();
        let core = &mut engine.core();
        let (mut with, mut alone) = (Vec::new(), Vec::new());
        for round in 0..=self.flags.repeat {
            let rates = self.measure_round(core, adapters, interrupted)?;
            let mut model_alone = None;
            if !adapters.is_empty() || has_packs {
                if has_packs {
                    packs.set(Vec::new(), KernelChoice::Always)?;
                }
                model_alone = Some(self.measure_round(core, &[], interrupted)?);
                if has_packs {
                    packs.rollback()?;
                }
            }
            if round > 0 {
                with.push(rates);
                alone.extend(model_alone);
            }
        }
        let share = with.iter().zip(&alone).map(|(with, alone)| [with[0] / alone[0], with[1] / alone[1]]).collect();
        let adapter_speed =
            (!alone.is_empty()).then(|| AdapterSpeed { share: Rates::of(share), alone: Rates::of(alone) });
        Ok(AllRates { rates: Rates::of(with), adapter_speed })
    }

    /// Returns prompt tokens and generated tokens per second.
    fn measure_round(&self, core: &mut Core, adapters: &[HeldAdapter], interrupted: &AtomicBool) -> Result<[f64; 2]> {
        let prefill = self.measure_prefill(core, adapters).map_err(|error| in_flags("prompt-tokens", error))?;
        let decode = self.measure_decode(core, adapters).map_err(|error| in_flags("decode", error))?;
        if interrupted.load(Ordering::Relaxed) { Err(Interrupted.into()) } else { Ok([prefill, decode]) }
    }

    /// Measures where the time to the first token goes, if the prompt and a token fit the context.
    fn measure_first_token(&self, engine: &mut Engine) -> Result<Option<FirstToken>> {
        let ModelBenchFlags { prompt_tokens, repeat, .. } = self.flags;
        let fits = (1..engine.context()).contains(&prompt_tokens);
        fits.then(|| FirstToken::measure(engine, prompt_tokens, repeat)).transpose()
    }

    fn compare_speculation(
        &self,
        engine: &mut Engine,
        interrupted: &AtomicBool,
    ) -> Result<Vec<speculation::Comparison>> {
        if self.flags.speculation == SpeculationFlag::Off {
            return Ok(Vec::new());
        }
        let settings = speculation::Settings {
            speculation: self.flags.speculation.into(),
            tokens_max: self.flags.answer,
            repeat: self.flags.repeat,
            interrupted,
        };
        settings.compare(engine)
    }

    /// Refuses counts that cannot be measured.
    fn check_counts(&self) -> Result<()> {
        // The first token of an answer belongs to the prefill.
        let counts = [
            ("prompt-tokens", Some(self.flags.prompt_tokens), 1),
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

    /// Refuses measurements that do not fit the context.
    fn check_context(&self, context: usize) -> Result<()> {
        let needs = [
            (format!("--prompt-tokens {}", self.flags.prompt_tokens), self.flags.prompt_tokens.saturating_add(1)),
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
                    "{flags} needs a context of {needed} tokens and the context is {context}; lower it or raise --context"
                )
            }
            None => Ok(()),
        }
    }

    fn sequences_max(&self) -> usize {
        let prefix = if self.flags.prefix { prefix::SEQUENCES } else { 0 };
        let arrival = if self.flags.arrival.is_some() { arrival::SEQUENCES } else { 0 };
        let sessions = if self.flags.sessions.is_some() { sessions::SEQUENCES } else { 0 };
        self.flags.sequences.max(prefix).max(arrival).max(sessions)
    }

    /// Returns prompt tokens per second.
    fn measure_prefill(&self, core: &mut Core, adapters: &[HeldAdapter]) -> Result<f64> {
        let tokens = filler(core, self.flags.prompt_tokens, 0);
        let started = Instant::now();
        let last = self.flags.prompt_tokens - 1..self.flags.prompt_tokens;
        core.evaluate_with(adapters.first(), &tokens, last, |_, _| {})?;
        Ok(self.flags.prompt_tokens as f64 / started.elapsed().as_secs_f64())
    }

    /// Returns tokens per second of all sequences together, after their prompts.
    fn measure_decode(&self, core: &mut Core, adapters: &[HeldAdapter]) -> Result<f64> {
        for sequence in 0..self.flags.sequences {
            core.submit(Request {
                max_tokens: Some(self.flags.decode + 1),
                speculation: Speculation::Off,
                prefix_use: PrefixUse::OFF,
                adapter: adapters.get(sequence % adapters.len().max(1)).cloned(),
                ..Request::new(filler(core, self.flags.depth.max(1), sequence))
            })?;
        }
        // The prefill ends when each sequence has its first token.
        let mut first_tokens = 0;
        while first_tokens < self.flags.sequences {
            first_tokens += step_tokens(core)?;
        }
        let started = Instant::now();
        let mut tokens = 0;
        while !core.is_idle() {
            tokens += step_tokens(core)?;
        }
        Ok(tokens as f64 / started.elapsed().as_secs_f64())
    }
}

/// Names the flag to change where memory is too small for a measurement.
fn in_flags(flag: &str, error: Error) -> Error {
    if let Some(SubmitError::TooLargeForCache { needed, pages }) = error.downcast_ref() {
        return anyhow!("--{flag} needs at least {needed} KV pages and --kv-memory holds {pages}; raise it");
    }
    match error.downcast_ref() {
        Some(StepError::OutOfMemory { .. }) => anyhow!("--{flag} needs more memory than --kv-memory gives; raise it"),
        _ => error,
    }
}
