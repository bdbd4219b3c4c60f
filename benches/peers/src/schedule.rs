//! The order of measurements: one work at a time, all candidates in turns.

use std::fmt;
use std::str::FromStr;
use std::thread;
use std::time::Duration;

use peers_protocol::{DECODE_TOKENS, Ready, Start, Timing, Work};
use serde::Serialize;

use crate::candidates::Candidate;
use crate::machine::Machine;
use crate::models::Model;
use crate::options::Options;
use crate::process::{Failure, Process};
use crate::progress::Progress;
use crate::report::Measure;

/// Something to measure: a work, or what only a fresh process can show.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Task {
    Load,
    Memory,
    Work(Work),
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Load => f.write_str("load"),
            Self::Memory => f.write_str("memory"),
            Self::Work(work) => work.fmt(f),
        }
    }
}

impl FromStr for Task {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "load" => Ok(Self::Load),
            "memory" => Ok(Self::Memory),
            other => other.parse().map(Self::Work),
        }
    }
}

/// What a process reads and writes before its peak of memory is looked at.
const MEMORY_WORKS: [Work; 2] =
    [Work::Prefill { tokens: 2048, depth: 0 }, Work::Decode { tokens: DECODE_TOKENS, depth: 2048 }];

/// Percent that a held sequence may grow; see the RuvLLM process.
const GROWTH: usize = 13;

/// The samples of one task and one candidate.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Samples {
    pub timings: Vec<Timing>,
    pub peak_bytes: Option<u64>,
    pub failure: Option<String>,
}

/// All that was measured with one model: for each task, the samples of each candidate.
pub struct Measured {
    pub tasks: Vec<(Task, Vec<Samples>)>,
    pub candidates: Vec<CandidateFacts>,
}

/// What a candidate said of itself.
#[derive(Clone, Debug, Serialize)]
pub struct CandidateFacts {
    pub engine: String,
    pub setting: String,
    pub version: String,
    pub system_info: String,
    pub weight_buffers: Vec<String>,
}

/// One model's run: processes that come and go, and what they said.
struct Run<'a> {
    candidates: &'a [Candidate],
    /// How processes of works are started.
    start: Start,
    /// How those are started whose loading or memory is looked at: with no more room than that takes.
    fresh: Start,
    options: &'a Options,
    model: &'a Model,
    facts: Vec<CandidateFacts>,
    progress: Progress,
}

pub fn measure(model: &Model, candidates: &[Candidate], options: &Options, machine: &Machine) -> Measured {
    let tasks = options.tasks();
    let facts = candidates.iter().map(|candidate| CandidateFacts {
        engine: candidate.engine.clone(),
        setting: candidate.setting.to_owned(),
        version: String::new(),
        system_info: String::new(),
        weight_buffers: Vec::new(),
    });
    let mut run = Run {
        candidates,
        start: start(model, options, machine, &options.works(), GROWTH),
        fresh: start(model, options, machine, &MEMORY_WORKS, 0),
        options,
        model,
        facts: facts.collect(),
        progress: Progress::new(&tasks, candidates.len(), options.samples()),
    };
    let mut measured = Vec::new();
    let mut processes: Vec<Option<Process>> = candidates.iter().map(|_| None).collect();
    for task in tasks {
        let samples = match task {
            // Fresh processes; those of other works are ended, so that memory and page cache are free for these.
            Task::Load | Task::Memory => {
                processes.iter_mut().for_each(|process| *process = None);
                if task == Task::Load { run.load() } else { run.memory() }
            }
            Task::Work(work) => run.work(work, &mut processes),
        };
        run.tell_medians(task, &samples);
        measured.push((task, samples));
    }
    Measured { tasks: measured, candidates: run.facts }
}

/// Threads of OpenMP go on spinning for 200 ms after their work, on cores that the next engine needs.
const SETTLING: Duration = Duration::from_millis(400);

/// `growth` percent more than the longest sequence, for those that are held over several measurements.
fn start(model: &Model, options: &Options, machine: &Machine, works: &[Work], growth: usize) -> Start {
    let tokens = works.iter().map(|work| work.context()).max().unwrap_or(1);
    Start {
        model: model.path.clone(),
        vocabulary: model.vocabulary,
        threads: machine.threads,
        context: (tokens + tokens * growth / 100).next_multiple_of(256),
        sequences: works.iter().map(|work| work.sequences()).max().unwrap_or(1),
        batch_rows: options.batch_rows,
        setting: String::new(),
    }
}

impl Run<'_> {
    fn begin(&mut self, index: usize, start: &Start) -> Result<Process, String> {
        let candidate = &self.candidates[index];
        let start = Start { setting: candidate.setting.to_owned(), ..start.clone() };
        let process = Process::start(candidate, &start, self.options.timeout())?;
        let Ready { version, system_info, .. } = process.ready.clone();
        let facts = &mut self.facts[index];
        (facts.version, facts.system_info, facts.weight_buffers) = (version, system_info, process.buffers());
        Ok(process)
    }

    fn load(&mut self) -> Vec<Samples> {
        self.turns(Task::Load, |run, index| {
            let process = run.begin(index, &run.fresh.clone()).map_err(Failure::Process)?;
            Ok(Timing { tokens: 1, seconds: process.ready.load_s, total_s: None })
        })
    }

    fn work(&mut self, work: Work, processes: &mut [Option<Process>]) -> Vec<Samples> {
        self.turns(Task::Work(work), |run, index| {
            let process = match &mut processes[index] {
                Some(process) => process,
                gone => gone.insert(run.begin(index, &run.start.clone()).map_err(Failure::Process)?),
            };
            let outcome = process.run(work);
            if matches!(outcome, Err(Failure::Process(_))) {
                processes[index] = None;
            }
            outcome
        })
    }

    /// One sample of each candidate after the other, and this again and again; the first round is not counted.
    fn turns(
        &mut self,
        task: Task,
        mut sample: impl FnMut(&mut Self, usize) -> Result<Timing, Failure>,
    ) -> Vec<Samples> {
        let mut all: Vec<Samples> = self.candidates.iter().map(|_| Samples::default()).collect();
        for round in 0..=self.options.samples() {
            for (index, samples) in all.iter_mut().enumerate() {
                if samples.failure.is_none() {
                    self.tell(task, index, round);
                    thread::sleep(SETTLING);
                    match sample(self, index) {
                        Ok(timing) if round > 0 => samples.timings.push(timing),
                        Ok(_) => {}
                        Err(failure) => samples.failure = Some(self.mourn(task, index, failure)),
                    }
                }
                self.progress.add(task);
            }
        }
        all
    }

    fn memory(&mut self) -> Vec<Samples> {
        let mut all = Vec::new();
        for index in 0..self.candidates.len() {
            self.tell(Task::Memory, index, 1);
            let outcome = self.begin(index, &self.fresh.clone()).map_err(Failure::Process).and_then(|mut process| {
                MEMORY_WORKS.iter().try_for_each(|work| process.run(*work).map(|_| ()))?;
                Ok(process.peak_bytes())
            });
            all.push(match outcome {
                Ok(peak_bytes) => Samples { peak_bytes, ..Samples::default() },
                Err(failure) => {
                    Samples { failure: Some(self.mourn(Task::Memory, index, failure)), ..Samples::default() }
                }
            });
            self.progress.add(Task::Memory);
        }
        all
    }

    fn tell(&self, task: Task, index: usize, round: usize) {
        let which = match (task, round) {
            (Task::Memory, _) => String::new(),
            (_, 0) => " warm-up".to_owned(),
            _ => format!(" {round}/{}", self.options.samples()),
        };
        self.progress.say(&format!("{} {task} {}{which}", self.model.name, self.candidates[index].name()));
    }

    /// So that whoever watches sees results before the table, and keeps them if the run is broken off.
    fn tell_medians(&self, task: Task, samples: &[Samples]) {
        let (measure, unit) = (Measure::Of(task), Measure::Of(task).unit());
        let medians = self.candidates.iter().zip(samples).filter_map(|(candidate, samples)| {
            Some(format!("{} {}", candidate.name(), unit.show(measure.spread(samples)?.median)))
        });
        let medians = medians.collect::<Vec<_>>().join(", ");
        self.progress.say(&format!("{} {task}: {medians} {unit}", self.model.name));
    }

    fn mourn(&self, task: Task, index: usize, failure: Failure) -> String {
        let (Failure::Work(why) | Failure::Process(why)) = failure;
        eprintln!("{} failed at {task}: {why}", self.candidates[index].name());
        why
    }
}
