//! The command line.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Parser;
use peers_protocol::Work;

use crate::candidates::ENGINES;
use crate::models::Model;
use crate::schedule::Task;

/// Measure RuvLLM beside llama.cpp, candle and mistral.rs on the same files and prompts.
///
/// Every engine runs in a process of its own, one for each of its settings, and they take turns (A B A B ...), so that
/// whatever the machine does meanwhile falls on all of them. The table shows medians, and how RuvLLM compares with the best
/// setting of each peer; the JSON file holds every sample.
#[derive(Debug, Parser)]
#[command(
    name = "peers",
    max_term_width = 100,
    after_long_help = "WORKS\n  \
        load                 from the start of loading to the first prompt, file in the page cache, fresh processes\n  \
        prefill:N[@DEPTH]    N prompt tokens, after DEPTH tokens that are computed already\n  \
        decode[:N][@DEPTH]   N generated tokens (64), one after the other\n  \
        turn@DEPTH           the second turn of a chat after DEPTH prompt tokens: its prompt tokens by the time to its first\n  \
                             token, to be compared with a cold prefill of as many\n  \
        sequences:N          N texts at once, each 128 prompt tokens and 64 generated: all generated tokens per second\n  \
        memory               the most that a fresh process held after loading, 2048 prompt tokens and 64 generated\n\n\
        PEERS\n  \
        They are built when first needed (minutes; needs cmake, clang-19, libclang-19-dev and libomp-19-dev) for this very\n  \
        processor. llama.cpp is measured without flash attention (no-fa), with it (fa), and with it and 8-bit KV (fa-q8).\n  \
        A llama.cpp that does not use what the processor has (AMX, AVX-512, repacking) gets a loud warning.\n\n\
        EXAMPLES\n  \
        cargo run --release -p peers -- --quick\n  \
        cargo run --release -p peers -- --synthetic /tmp/synthetic --engines ruvllm,llama.cpp\n  \
        cargo run --release -p peers -- --models smollm2,qwen2.5-coder:0.5b --engines ruvllm,llama.cpp\n  \
        cargo run --release -p peers -- --models model.gguf --works decode@0,decode@2048 --repetitions 9\n  \
        cargo run --release -p peers -- --models model.gguf --engines ruvllm,llama.cpp --agree\n\n\
        Other programs that run at the same time spoil the figures."
)]
pub struct Options {
    /// Names from the catalogue or paths of GGUF files
    #[arg(long, value_delimiter = ',', default_value = "smollm2", value_name = "MODEL,...")]
    pub models: Vec<String>,
    /// Measure also on models of real shapes with made-up weights, which are made in this folder if they are not there: a
    /// small model hides what memory bandwidth does
    #[arg(long, value_name = "FOLDER")]
    pub synthetic: Option<PathBuf>,
    /// Their shapes: tinyllama-1.1b (2.5 GB), llama-7b (8 GB), qwen3moe-3b (1.7 GB), qwen35-0.8b (0.5 GB)
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "tinyllama-1.1b",
        value_name = "SHAPE,...",
        requires = "synthetic"
    )]
    pub shapes: Vec<String>,
    /// What to measure; `--help` explains
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "WORK,...",
        default_value = "load,prefill:128,prefill:512,prefill:2048,prefill:128@2048,decode@0,decode@2048,\
                         sequences:1,sequences:4,sequences:8,memory"
    )]
    pub works: Vec<Task>,
    /// Engines to compare: ruvllm, llama.cpp, candle, mistralrs
    #[arg(long, value_delimiter = ',', default_value = "ruvllm,llama.cpp,candle", value_name = "ENGINE,...")]
    pub engines: Vec<String>,
    /// Threads of every engine [default: physical cores that this process may use]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Samples of each work and setting, after one that is not counted
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub repetitions: usize,
    /// Prompt tokens that RuvLLM computes at once; llama.cpp's default is 512 as well
    #[arg(long, default_value_t = 512, value_name = "N")]
    pub batch_rows: usize,
    /// Do not measure: compare the logits of all engines after the same texts
    #[arg(long, conflicts_with_all = ["works", "quick", "repetitions"])]
    pub agree: bool,
    /// A smoke test: few works, two samples
    #[arg(long)]
    pub quick: bool,
    /// Where the samples go [default: benches/results/DATE-MODEL.json]
    #[arg(long, value_name = "PATH")]
    pub json: Option<PathBuf>,
    /// Build llama.cpp with its own threads instead of OpenMP
    #[arg(long)]
    pub without_openmp: bool,
    /// The longest time that one piece of work may take before its process is given up
    #[arg(long, default_value_t = 900, value_name = "SECONDS")]
    pub timeout: u64,
}

impl Options {
    pub fn check(&self) -> Result<()> {
        ensure!(self.repetitions > 0, "--repetitions is 0; it must be at least 1");
        ensure!(self.threads != Some(0), "--threads is 0; it must be at least 1");
        for engine in &self.engines {
            let known = ENGINES.iter().any(|known| known == engine);
            ensure!(known, "'{engine}' is no engine; these are known: {}", ENGINES.join(", "));
        }
        Ok(())
    }

    pub fn tasks(&self) -> Vec<Task> {
        let quick = |text: &str| text.parse().expect("a task");
        if self.quick {
            ["load", "prefill:128", "decode@0", "sequences:4"].map(quick).to_vec()
        } else {
            self.works.clone()
        }
    }

    pub fn samples(&self) -> usize {
        if self.quick { 2 } else { self.repetitions }
    }

    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// Works that a process is given one after the other, without those that need a fresh one.
    pub fn works(&self) -> Vec<Work> {
        let work = |task| if let Task::Work(work) = task { Some(work) } else { None };
        self.tasks().into_iter().filter_map(work).collect()
    }

    pub fn report_path(&self, date: &str, models: &[Model]) -> PathBuf {
        self.json.clone().unwrap_or_else(|| {
            let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
            let file = format!("{date}-{}.json", names.join("+").replace(':', "-"));
            Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("results").join(file)
        })
    }
}
