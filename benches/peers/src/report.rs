//! The JSON file: the machine, the peers, every sample and the ratios.

use std::fmt;
use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use ruvllm_kernels::ceilings::Ceilings;
use ruvllm_text::strftime;
use serde::Serialize;

use crate::candidates::{LLAMA_CPP, RUVLLM};
use crate::ceilings;
use crate::fairness;
use crate::machine::Machine;
use crate::models::Model;
use crate::options::Options;
use crate::schedule::{CandidateFacts, Measured, Samples, Task};
use crate::spread::Spread;

#[derive(Debug, Serialize)]
pub struct Report {
    pub date: String,
    pub machine: Machine,
    pub remarks: Vec<String>,
    pub repetitions: usize,
    pub batch_rows: usize,
    #[serde(serialize_with = "ceilings::serialize")]
    pub ceilings: Ceilings,
    pub models: Vec<ModelReport>,
}

#[derive(Debug, Serialize)]
pub struct ModelReport {
    pub model: Model,
    pub candidates: Vec<CandidateFacts>,
    /// What makes the comparison unfair; empty if nothing does.
    pub warnings: Vec<String>,
    pub lines: Vec<Line>,
}

/// One task: what each candidate reached and how RuvLLM compares.
#[derive(Debug, Serialize)]
pub struct Line {
    pub task: String,
    pub unit: Unit,
    /// In the order of the candidates.
    pub results: Vec<Outcome>,
    /// RuvLLM against each peer in its best setting for this task. Above 1, RuvLLM is ahead.
    pub ratios: Vec<Ratio>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Unit {
    #[serde(rename = "tok/s")]
    TokensPerSecond,
    #[serde(rename = "s")]
    Seconds,
    #[serde(rename = "MB")]
    Megabytes,
}

impl Unit {
    /// A value with as many digits as are worth reading.
    pub fn show(self, value: f64) -> String {
        match self {
            Self::Seconds => format!("{value:.2}"),
            _ if value >= 100.0 => format!("{value:.0}"),
            _ => format!("{value:.1}"),
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TokensPerSecond => "tok/s",
            Self::Seconds => "s",
            Self::Megabytes => "MB",
        })
    }
}

#[derive(Debug, Serialize)]
pub struct Outcome {
    pub value: Option<Spread>,
    /// Of the ceiling that limits this task.
    pub share: Option<f64>,
    #[serde(flatten)]
    pub samples: Samples,
}

#[derive(Debug, Serialize)]
pub struct Ratio {
    pub peer: String,
    pub best_setting: String,
    pub ratio: f64,
}

impl Report {
    pub fn new(options: &Options, machine: &Machine, ceilings: Ceilings) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        Self {
            date: strftime::format("%Y-%m-%d", now as i64),
            machine: machine.clone(),
            remarks: machine.remarks(),
            repetitions: options.samples(),
            batch_rows: options.batch_rows,
            ceilings,
            models: Vec::new(),
        }
    }

    pub fn add(&mut self, model: &Model, measured: Measured, machine: &Machine) {
        let Measured { tasks, candidates } = measured;
        let mut lines = Vec::new();
        for (task, samples) in tasks {
            let with_prompts = matches!(task, Task::Work(work) if work.sequences() > 1);
            let extra =
                with_prompts.then(|| self.line(model, &candidates, Measure::WithPrompts(task), samples.clone()));
            lines.push(self.line(model, &candidates, Measure::Of(task), samples));
            lines.extend(extra);
        }
        let warnings = warnings(machine, &candidates);
        self.models.push(ModelReport { model: model.clone(), candidates, warnings, lines });
    }

    fn line(&self, model: &Model, candidates: &[CandidateFacts], measure: Measure, samples: Vec<Samples>) -> Line {
        let results: Vec<Outcome> = samples
            .into_iter()
            .zip(candidates)
            .map(|(samples, candidate)| {
                let value = measure.spread(&samples);
                let share = value.and_then(|value| self.share(model, measure, candidate, value.median));
                Outcome { value, share, samples }
            })
            .collect();
        let ratios = ratios(candidates, &results, measure.unit());
        Line { task: measure.name(), unit: measure.unit(), results, ratios }
    }

    fn share(&self, model: &Model, measure: Measure, candidate: &CandidateFacts, tok_s: f64) -> Option<f64> {
        let Measure::Of(Task::Work(work)) = measure else { return None };
        // llama.cpp's 8-bit KV has a scale of two bytes for 32 numbers.
        let kv_bytes_per_number = if candidate.setting.contains("q8") { 34.0 / 32.0 } else { 2.0 };
        let in_bf16 = candidate.setting.ends_with("-fast");
        ceilings::share(&self.ceilings, model.cost(work, kv_bytes_per_number)?, in_bf16, tok_s)
    }

    pub fn write(&self, path: &Path) -> Result<()> {
        let write = || -> Result<()> {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            Ok(fs::write(path, serde_json::to_string_pretty(self)? + "\n")?)
        };
        write().with_context(|| format!("{} cannot be written", path.display()))
    }
}

/// What of the samples a line shows.
#[derive(Clone, Copy)]
pub enum Measure {
    Of(Task),
    /// The time of several sequences with their prompts.
    WithPrompts(Task),
}

impl Measure {
    fn name(self) -> String {
        match self {
            Self::Of(task) => task.to_string(),
            Self::WithPrompts(task) => format!("{task} with prompts"),
        }
    }

    pub fn unit(self) -> Unit {
        match self {
            Self::Of(Task::Work(_)) => Unit::TokensPerSecond,
            Self::Of(Task::Memory) => Unit::Megabytes,
            Self::Of(Task::Load) | Self::WithPrompts(_) => Unit::Seconds,
        }
    }

    /// Returns `None` without samples. A peer that reports its own times may report none: such a sample has no rate.
    pub fn spread(self, samples: &Samples) -> Option<Spread> {
        let timings = samples.timings.iter();
        match self {
            Self::Of(Task::Work(_)) => {
                let timed = timings.filter(|timing| timing.seconds > 0.0);
                Spread::of(timed.map(|timing| timing.tokens as f64 / timing.seconds))
            }
            Self::Of(Task::Load) => Spread::of(timings.map(|timing| timing.seconds)),
            Self::Of(Task::Memory) => Spread::of(samples.peak_bytes.map(|bytes| bytes as f64 / 1e6)),
            Self::WithPrompts(_) => Spread::of(timings.filter_map(|timing| timing.total_s)),
        }
    }
}

fn ratios(candidates: &[CandidateFacts], results: &[Outcome], unit: Unit) -> Vec<Ratio> {
    let named: Vec<(&CandidateFacts, f64)> = candidates
        .iter()
        .zip(results)
        .filter(|(_, result)| result.samples.failure.is_none())
        .filter_map(|(candidate, result)| Some((candidate, result.value?.median)))
        .collect();
    let is_rate = unit == Unit::TokensPerSecond;
    let own = named.iter().filter(|(candidate, _)| candidate.engine == RUVLLM).map(|(_, value)| *value);
    let Some(own) = own.reduce(if is_rate { f64::max } else { f64::min }) else { return Vec::new() };
    let ahead = |peer: f64| if is_rate { own / peer } else { peer / own };
    let mut ratios: Vec<Ratio> = Vec::new();
    for (candidate, value) in named.iter().filter(|(candidate, _)| candidate.engine != RUVLLM) {
        let ratio =
            Ratio { peer: candidate.engine.clone(), best_setting: candidate.setting.clone(), ratio: ahead(*value) };
        match ratios.iter_mut().find(|known| known.peer == ratio.peer) {
            // The peer's best setting is the one that makes us look worst.
            Some(known) if known.ratio > ratio.ratio => *known = ratio,
            Some(_) => {}
            None => ratios.push(ratio),
        }
    }
    ratios
}

fn warnings(machine: &Machine, candidates: &[CandidateFacts]) -> Vec<String> {
    let llama = candidates.iter().find(|candidate| candidate.engine == LLAMA_CPP && !candidate.system_info.is_empty());
    let missing = llama.map(|candidate| fairness::missing(machine, &candidate.system_info)).unwrap_or_default();
    if missing.is_empty() {
        return Vec::new();
    }
    vec![format!(
        "NOT A FAIR COMPARISON: llama.cpp was built without {}, which this processor could use",
        missing.join(", ")
    )]
}

#[cfg(test)]
mod tests {
    use peers_protocol::{Timing, Work};

    use super::*;

    #[test]
    fn a_sample_without_a_time_has_no_rate() {
        let measure = Measure::Of(Task::Work(Work::Prefill { tokens: 512, depth: 0 }));
        let timing = |seconds: f64| Timing { tokens: 512, seconds, total_s: None };
        let samples = |seconds: &[f64]| Samples {
            timings: seconds.iter().map(|seconds| timing(*seconds)).collect(),
            ..Samples::default()
        };
        assert_eq!(measure.spread(&samples(&[0.0, 0.0])), None);
        assert_eq!(measure.spread(&samples(&[0.0, 2.0])).map(|spread| spread.median), Some(256.0));
    }

    #[test]
    fn an_engine_counts_with_its_best_setting_and_without_failures() {
        let facts = |engine: &str, setting: &str| CandidateFacts {
            engine: engine.to_owned(),
            setting: setting.to_owned(),
            version: String::new(),
            system_info: String::new(),
            weight_buffers: Vec::new(),
        };
        let outcome = |rate: f64, failure: Option<&str>| Outcome {
            value: Spread::of([rate]),
            share: None,
            samples: Samples { failure: failure.map(str::to_owned), ..Samples::default() },
        };
        let candidates = [
            facts(RUVLLM, "f16"),
            facts(RUVLLM, "q8"),
            facts(LLAMA_CPP, "fa"),
            facts(LLAMA_CPP, "no-fa"),
            facts("candle", ""),
        ];
        let rates = [(30.0, None), (25.0, None), (10.0, None), (20.0, None), (5.0, Some("died"))];
        let results = rates.map(|(rate, failure)| outcome(rate, failure));
        let best = ratios(&candidates, &results, Unit::TokensPerSecond);
        assert_eq!(best.len(), 1);
        assert_eq!((best[0].best_setting.as_str(), best[0].ratio), ("no-fa", 1.5));
        let best = ratios(&candidates, &results, Unit::Seconds);
        assert_eq!((best[0].best_setting.as_str(), best[0].ratio), ("fa", 0.4));
    }
}
