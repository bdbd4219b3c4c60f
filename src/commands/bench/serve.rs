//! `ruvllm bench serve`: how a running server performs under load.

mod report;
mod summary;
mod target;
mod workloads;

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::{Value, json};

use self::summary::{Percentiles, Slo, Summary};
use self::target::{RoundTrip, Sample, Target};
use self::workloads::Workload;
use crate::exit::Interrupted;
use crate::output;
use crate::output::progress::{count_bar, interrupt_flag};

/// Number of round trips that measure the server's own overhead.
const ROUND_TRIPS: usize = 50;

/// Measure a running server: throughput and latency by the number of clients
///
/// Works with every server that implements OpenAI's chat completions, and waits until it is ready. Each combination starts
/// with prompts that the server has not seen.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ruvllm bench serve http://127.0.0.1:8080\n  \
                        ruvllm bench serve http://127.0.0.1:8080 -w rag -w mixed --clients 1,8,32 --report load.html")]
pub struct Serve {
    /// URL of the server, such as http://127.0.0.1:8080
    url: String,
    /// Model to measure [default: the loaded one, if there is only one]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// API key, if the server requires one
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Workload; can be repeated [default: all]
    #[arg(long, short = 'w', value_enum, value_name = "KIND")]
    workload: Vec<Workload>,
    /// Numbers of concurrent clients, measured one after the other
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8], value_name = "N,…")]
    clients: Vec<usize>,
    /// Number of requests per client
    #[arg(long, short = 'r', default_value_t = 4, value_name = "N")]
    requests: usize,
    /// Maximum number of tokens per answer
    #[arg(long, short = 'n', default_value_t = 64, value_name = "N")]
    max_tokens: usize,
    /// An answer meets the goal if its first token arrives within this many milliseconds …
    #[arg(long, default_value_t = 1000.0, value_name = "MS")]
    slo_ttft: f64,
    /// … and the average time between its tokens is at most this many
    #[arg(long, default_value_t = 50.0, value_name = "MS")]
    slo_token: f64,
    /// Let requests use the server's LoRA adapters in turn (llama-server's field `lora`)
    #[arg(long)]
    adapters: bool,
    /// Request whole answers instead of streams, to measure the cost of streaming
    #[arg(long)]
    no_stream: bool,
    /// Also write an HTML page with plots
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Serve {
    pub fn execute(self) -> Result<()> {
        if self.clients.contains(&0) || self.requests == 0 || self.max_tokens == 0 {
            bail!("--clients, --requests and --max-tokens must be at least 1");
        }
        let interrupted = interrupt_flag();
        let mut target = Target::find(&self.url, self.key.clone(), self.model.clone(), &interrupted)?;
        if self.adapters {
            target.use_adapters()?;
        }
        let with = match target.adapters.len() {
            0 => String::new(),
            count => format!(" with {count} adapters in turn"),
        };
        output::remark(&format!("measuring {}{with} at {}", target.model, self.url));
        let workloads = match &self.workload[..] {
            [] => &[Workload::Chat, Workload::Rag, Workload::Batch, Workload::Mixed, Workload::Unique],
            given => given,
        };
        let overhead = Overhead::measure(&target)?;
        let bar = count_bar(workloads.len() * self.clients.len(), "measuring");
        let mut summaries = Vec::new();
        for workload in workloads {
            for clients in &self.clients {
                summaries.push(self.run(&target, *workload, *clients, &interrupted)?);
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        if let Some(file) = &self.report {
            std::fs::write(file, report::page(&self.about(&target), &summaries))
                .with_context(|| format!("cannot write {}", file.display()))?;
        }
        self.show(&target, &summaries, &overhead)
    }

    /// Runs one workload with this many clients.
    fn run(&self, target: &Target, workload: Workload, clients: usize, interrupted: &AtomicBool) -> Result<Summary> {
        let salt = RandomState::new().hash_one(0u8);
        let (next, count) = (AtomicUsize::new(0), clients * self.requests);
        let results: Mutex<Vec<Result<Sample>>> = Mutex::default();
        let started = Instant::now();
        thread::scope(|scope| {
            for _ in 0..clients {
                scope.spawn(|| {
                    while !interrupted.load(Ordering::Relaxed) {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= count {
                            break;
                        }
                        let messages = workload.messages(salt, number);
                        let sample = if self.no_stream {
                            target.ask_whole(number, &messages, self.max_tokens)
                        } else {
                            target.ask(number, &messages, self.max_tokens)
                        };
                        results.lock().expect("no client panics").push(sample);
                    }
                });
            }
        });
        let seconds = started.elapsed().as_secs_f64();
        if interrupted.load(Ordering::Relaxed) {
            return Err(Interrupted.into());
        }
        let (mut samples, mut errors) = (Vec::new(), Vec::new());
        for result in results.into_inner().expect("no client panics") {
            match result {
                Ok(sample) => samples.push(sample),
                Err(error) => errors.push(format!("{error:#}")),
            }
        }
        let slo = Slo { ttft_ms: self.slo_ttft, inter_token_ms: self.slo_token };
        Ok(Summary::of(workload.name(), clients, &samples, &errors, seconds, slo))
    }

    fn about(&self, target: &Target) -> String {
        format!(
            "{} at {}; {} requests per client, answers of up to {} tokens; goal: first token within {} ms, then {} ms per token",
            target.model, self.url, self.requests, self.max_tokens, self.slo_ttft, self.slo_token
        )
    }

    fn show(&self, target: &Target, summaries: &[Summary], overhead: &Overhead) -> Result<()> {
        if self.json {
            let runs: Vec<Value> = summaries.iter().map(Summary::to_json).collect();
            return output::json(&json!({
                "url": self.url, "model": target.model, "adapters": target.adapters.len(), "max_tokens": self.max_tokens,
                "slo": { "ttft_ms": self.slo_ttft, "inter_token_ms": self.slo_token },
                "round_trip_ms": overhead.round_trip.to_json(),
                "beside_model_ms": overhead.beside_engine.map(Percentiles::to_json),
                "overhead_ms": overhead.of_server.map(Percentiles::to_json), "runs": runs,
            }));
        }
        let heading = Summary::HEADING.map(str::to_owned).to_vec();
        let rows: Vec<Vec<String>> = [heading].into_iter().chain(summaries.iter().map(Summary::row)).collect();
        output::table(&rows)?;
        output::remark(&self.about(target));
        output::remark(&overhead.to_string());
        for summary in summaries.iter().filter(|summary| summary.errors > 0) {
            let (errors, all) = (summary.errors, summary.requests);
            let error = summary.error.as_deref().unwrap_or_default();
            output::remark(&format!(
                "{} with {}: {errors} of {all} requests failed: {error}",
                summary.workload, summary.concurrency
            ));
        }
        Ok(())
    }
}

/// What a request costs besides the model.
struct Overhead {
    round_trip: Percentiles,
    /// Without the time in the engine, if the server reports it.
    beside_engine: Option<Percentiles>,
    /// The part of it that is spent in the server, without the network.
    of_server: Option<Percentiles>,
}

impl Overhead {
    /// Requests one token again and again: the prompt is cached, so little more than the round trip is left.
    fn measure(target: &Target) -> Result<Self> {
        let messages = Workload::Batch.messages(RandomState::new().hash_one(0u8), 0);
        target.round_trip(&messages)?;
        let trips = (0..ROUND_TRIPS).map(|_| target.round_trip(&messages)).collect::<Result<Vec<_>>>()?;
        let beside_engine = |of: fn(&RoundTrip) -> Option<f64>| {
            let times = trips.iter().map(|trip| Some(of(trip)? - trip.in_engine_ms?)).collect::<Option<Vec<f64>>>();
            times.map(Percentiles::of)
        };
        Ok(Self {
            round_trip: Percentiles::of(trips.iter().map(|trip| trip.took_ms).collect()),
            beside_engine: beside_engine(|trip| Some(trip.took_ms)),
            of_server: beside_engine(|trip| trip.in_server_ms),
        })
    }
}

impl std::fmt::Display for Overhead {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Percentiles { p50, p99, .. } = self.round_trip;
        write!(f, "one token of a cached prompt: {p50:.2} ms (p99: {p99:.2})")?;
        if let Some(Percentiles { p50, p99, .. }) = self.beside_engine {
            write!(f, ", of which outside the model {p50:.2} ms (p99: {p99:.2})")?;
        }
        if let Some(Percentiles { p50, p99, .. }) = self.of_server {
            write!(f, ", {p50:.2} ms (p99: {p99:.2}) of it in the server")?;
        }
        Ok(())
    }
}
