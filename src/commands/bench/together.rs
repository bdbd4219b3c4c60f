//! `ruvllm bench together`: the speed of several models that run at the same time, relative to each alone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use ruvllm_engine::{Core, PrefixUse, Request, Speculation};
use ruvllm_runtime::hardware::Hardware;
use ruvllm_runtime::{Cores, Engine};
use serde_json::{Value, json};

use super::{Spread, filler, step_tokens};
use crate::exit::Interrupted;
use crate::flags::model::EngineFlags;
use crate::loading::{build, model_file};
use crate::output;
use crate::output::progress::interrupt_flag;

/// Tokens of a generated text, few enough that depth hardly matters.
const ANSWER_TOKENS: usize = 256;
/// Tokens of a prompt.
const PROMPT_TOKENS: usize = 512;

/// Measure how several models share the cores of this machine
#[derive(Debug, Args)]
#[command(after_help = "Example, two engines of the same model:\n  ruvllm bench together smollm2 smollm2")]
pub struct Together {
    /// Names from the catalogue, hf:OWNER/REPO/FILE.gguf, or paths of GGUF files; the same model can be repeated
    #[arg(required = true, num_args = 2.., value_name = "MODEL")]
    models: Vec<String>,
    #[command(flatten)]
    engine: EngineFlags,
    /// Concurrent sequences per model
    #[arg(long, short = 's', default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    sequences: u16,
    /// Duration of each measurement
    #[arg(long, default_value_t = 4.0, value_name = "SECONDS")]
    seconds: f64,
    /// Number of measurements; the median is reported
    #[arg(long, short = 'r', default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeat: u16,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// What all models do.
#[derive(Clone, Copy)]
enum Work {
    Decode { sequences: usize },
    Prefill,
}

/// Measurements of one workload.
struct Shares {
    work: Work,
    /// For each model: tokens per second alone, and the fraction of that beside the others.
    models: Vec<(Spread, Spread)>,
    /// Sum of all fractions: 1 if nothing is lost.
    sum: Spread,
}

impl Together {
    pub fn execute(self) -> Result<()> {
        if !(self.seconds > 0.0 && self.seconds <= 3600.0) {
            bail!("--seconds is {}; it must be between 0 and 3600", self.seconds);
        }
        let interrupted = interrupt_flag();
        let cores = Arc::new(Cores::new(Hardware::detect().cores));
        let sequences = usize::from(self.sequences);
        let mut engines = Vec::new();
        for model in &self.models {
            let file = model_file(model, Arc::clone(&interrupted))?;
            let builder = self.engine.builder(&file.path)?.sequences(sequences).cores(Arc::clone(&cores));
            engines.push(build(builder, &file.path)?);
        }
        if let Some(engine) = engines.iter().find(|engine| engine.context() < ANSWER_TOKENS.max(PROMPT_TOKENS) + 2) {
            bail!("this needs a context of {} tokens; the context is {}", PROMPT_TOKENS + 2, engine.context());
        }
        let works = [Work::Decode { sequences }, Work::Prefill];
        let measured: Vec<Shares> =
            works.iter().map(|work| self.measure(&mut engines, *work, &interrupted)).collect::<Result<_>>()?;
        if self.json {
            let works: Vec<Value> = measured.iter().map(|shares| shares.to_json(&self.models)).collect();
            return output::json(&json!({ "threads": engines[0].threads(), "works": works }));
        }
        let heading = ["work", "model", "alone tokens/s", "fraction beside the others", "all together"];
        let mut rows = vec![heading.map(str::to_owned).to_vec()];
        rows.extend(measured.iter().flat_map(|shares| shares.rows(&self.models)));
        output::table(&rows)
    }

    /// Runs each model alone and then all together, `repeat` times; one round before is not counted.
    fn measure(&self, engines: &mut [Engine], work: Work, interrupted: &AtomicBool) -> Result<Shares> {
        let time = Duration::from_secs_f64(self.seconds);
        let mut rates = vec![(Vec::new(), Vec::new()); engines.len()];
        let mut sums = Vec::new();
        for round in 0..=self.repeat {
            let mut alone = Vec::new();
            for engine in &mut *engines {
                alone.extend(run(std::slice::from_mut(engine), work, time)?);
            }
            let beside = run(engines, work, time)?;
            if interrupted.load(Ordering::Relaxed) {
                return Err(Interrupted.into());
            }
            if round > 0 {
                let shares: Vec<f64> = beside.iter().zip(&alone).map(|(beside, alone)| beside / alone).collect();
                sums.push(shares.iter().sum());
                for ((rates, alone), share) in rates.iter_mut().zip(alone).zip(shares) {
                    rates.0.push(alone);
                    rates.1.push(share);
                }
            }
        }
        let models = rates.into_iter().map(|(alone, shares)| (Spread::of(alone), Spread::of(shares))).collect();
        Ok(Shares { work, models, sum: Spread::of(sums) })
    }
}

/// Runs engines concurrently, each on its own thread; returns the tokens per second of each.
fn run(engines: &mut [Engine], work: Work, time: Duration) -> Result<Vec<f64>> {
    let start = Barrier::new(engines.len());
    thread::scope(|scope| {
        let threads: Vec<_> = engines
            .iter_mut()
            .map(|engine| {
                scope.spawn(|| {
                    let mut core = engine.core();
                    start.wait();
                    let rate = work.rate(&mut core, time);
                    core.yield_device();
                    rate
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("measuring does not panic")).collect()
    })
}

impl Work {
    fn name(self) -> String {
        match self {
            Self::Decode { sequences } => format!("decode, {sequences} at once"),
            Self::Prefill => format!("prefill of {PROMPT_TOKENS}"),
        }
    }

    fn rate(self, core: &mut Core, time: Duration) -> Result<f64> {
        let (started, mut tokens, mut asked) = (Instant::now(), 0, Vec::new());
        while started.elapsed() < time {
            match self {
                Self::Prefill => {
                    let prompt = filler(core, PROMPT_TOKENS, 0);
                    core.evaluate(&prompt, PROMPT_TOKENS - 1..PROMPT_TOKENS, |_, _| {})?;
                    tokens += PROMPT_TOKENS;
                }
                Self::Decode { sequences } => {
                    while core.running() + core.waiting() < sequences {
                        asked.push(core.submit(Request {
                            max_tokens: Some(ANSWER_TOKENS),
                            speculation: Speculation::Off,
                            prefix_use: PrefixUse::OFF,
                            ..Request::new(filler(core, 1, core.running()))
                        })?);
                    }
                    tokens += step_tokens(core)?;
                }
            }
        }
        let rate = tokens as f64 / started.elapsed().as_secs_f64();
        // The rest of the answers is of no interest.
        asked.into_iter().for_each(|sequence| core.cancel(sequence));
        Ok(rate)
    }
}

impl Shares {
    fn rows(&self, names: &[String]) -> Vec<Vec<String>> {
        let range = |spread: &Spread| format!("{:.3} ({:.3} to {:.3})", spread.median, spread.least, spread.most);
        let rows = self.models.iter().zip(names).enumerate().map(|(index, ((alone, share), name))| {
            let is_first = index == 0;
            let once = |text: String| if is_first { text } else { String::new() };
            vec![
                once(self.work.name()),
                name.clone(),
                format!("{:.1}", alone.median),
                range(share),
                once(range(&self.sum)),
            ]
        });
        rows.collect()
    }

    fn to_json(&self, names: &[String]) -> Value {
        let models = self.models.iter().zip(names).map(
            |((alone, share), name)| json!({ "model": name, "alone_tok_s": alone.to_json(), "share": share.to_json() }),
        );
        json!({ "work": self.work.name(), "models": models.collect::<Vec<_>>(), "together": self.sum.to_json() })
    }
}
