//! What is compared: engines, each in one or several settings.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::options::Options;
use crate::peers_build::{build_engines, build_mistral_rs};

pub const RUVLLM: &str = "ruvllm";
pub const LLAMA_CPP: &str = "llama.cpp";
pub const MISTRAL_RS: &str = "mistralrs";
pub const ENGINES: [&str; 4] = [RUVLLM, LLAMA_CPP, "candle", MISTRAL_RS];

/// An engine in one setting, and the program that runs it.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub engine: String,
    /// Empty where an engine has only one.
    pub setting: &'static str,
    pub program: PathBuf,
}

impl Candidate {
    pub fn name(&self) -> String {
        if self.setting.is_empty() { self.engine.clone() } else { format!("{} {}", self.engine, self.setting) }
    }
}

/// The candidates that `options` ask for; their programs are built if need be.
pub fn prepare(options: &Options) -> Result<Vec<Candidate>> {
    let mut candidates = Vec::new();
    let mut engines_program = None;
    for engine in &options.engines {
        let program = match engine.as_str() {
            RUVLLM => std::env::current_exe().context("this program does not know its own path")?,
            MISTRAL_RS => build_mistral_rs()?,
            _ => match &engines_program {
                Some(built) => PathBuf::clone(built),
                None => engines_program.insert(build_engines(&options.engines, options.without_openmp)?).clone(),
            },
        };
        for setting in settings(engine) {
            candidates.push(Candidate { engine: engine.clone(), setting, program: program.clone() });
        }
    }
    Ok(candidates)
}

/// Attention differs so much with these that none is the best for all works: kernels and the format of keys and values. Ours
/// with prompts computed exactly and fast.
fn settings(engine: &str) -> &'static [&'static str] {
    match engine {
        RUVLLM => &["f16", "q8", "f16-fast", "q8-fast"],
        LLAMA_CPP => &["no-fa", "fa", "fa-q8"],
        _ => &[""],
    }
}
