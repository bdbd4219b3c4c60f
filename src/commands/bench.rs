//! `ruvllm bench`: speed of a model on this machine, or of a running server.

mod answered;
mod arrival;
mod learning;
mod model;
mod prefix;
mod serve;
mod sessions;
mod speculation;
mod spread;
mod together;
mod works;

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use ruvllm_engine::{Core, StepError};

use self::model::{ModelBench, ModelBenchFlags};
use self::spread::Spread;
use crate::flags::model::ModelFlags;

/// Measure how fast a model runs on this machine, or how a running server performs under load
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Bench {
    #[command(subcommand)]
    other: Option<Other>,
    /// Name from the catalogue, hf:OWNER/REPO[/FILE.gguf], or path of a GGUF file or of a folder of safetensors
    #[arg(required = true)]
    model: Option<String>,
    #[command(flatten)]
    flags: ModelBenchFlags,
}

/// Other measurements.
#[derive(Debug, Subcommand)]
enum Other {
    Serve(serve::Serve),
    Together(together::Together),
    Learning(Box<learning::LearningBench>),
}

impl Bench {
    pub fn execute(self) -> Result<()> {
        match (self.other, self.model) {
            (Some(Other::Serve(serve)), _) => serve.execute(),
            (Some(Other::Together(together)), _) => together.execute(),
            (Some(Other::Learning(learning)), _) => learning.execute(),
            (None, Some(model)) => {
                let model = ModelFlags { model, engine: self.flags.engine.clone() };
                ModelBench { model, flags: self.flags }.execute()
            }
            (None, None) => bail!("name a model, or measure a server with `ruvllm bench serve URL`"),
        }
    }
}

/// Runs a step and returns the number of its tokens.
fn step_tokens(core: &mut Core) -> Result<usize> {
    let events = core.step().into_iter().collect::<Result<Vec<_>, StepError>>()?;
    Ok(events.len())
}

/// Returns ordinary tokens in a fixed order; speed does not depend on their meaning.
fn filler(core: &Core, count: usize, offset: usize) -> Vec<u32> {
    let vocabulary = core.limits().vocabulary;
    (0..count).map(|i| ((i * 37 + offset * 101 + 1000) % vocabulary) as u32).collect()
}
