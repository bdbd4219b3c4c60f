//! What the peers benchmark asks of a measured process, and what that answers.
//!
//! A process measures one engine in one setting. It is started with a [`Start`], loads the model, writes a [`Ready`], and
//! from then on answers each [`Order`] on a line of standard input with an [`Answer`] on a line of standard output, until
//! its input ends. All are JSON. It knows nothing of repetitions, medians or the other engines.

mod prompt;
mod serve;
mod work;

pub use prompt::{next_turn, prompt};
pub use serve::serve;
pub use work::{DECODE_TOKENS, SEQUENCE_PROMPT, SEQUENCE_TOKENS, TURN_ANSWER, TURN_CHANGED, TURN_NEW, Work};

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// How a process is to load its model: its one argument after the engine's name.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Start {
    pub model: PathBuf,
    /// Tokens of the model's vocabulary, which prompts are made of.
    pub vocabulary: usize,
    pub threads: usize,
    /// Tokens of the longest sequence among the works to come.
    pub context: usize,
    /// Sequences at once at most among the works to come.
    pub sequences: usize,
    /// Prompt tokens that are computed together at most, for engines that let one choose.
    pub batch_rows: usize,
    /// One of the engine's settings, such as `fa`; empty for the only one.
    pub setting: String,
}

/// The first line of a process: the model is loaded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ready {
    /// From the start of loading until the first prompt could be taken.
    pub load_s: f64,
    /// The engine's version and how it was built.
    pub version: String,
    /// What the engine says of the instructions it uses.
    pub system_info: String,
}

/// The outcome of one piece of work.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Timing {
    /// Tokens that were computed in `seconds`.
    pub tokens: usize,
    pub seconds: f64,
    /// With the prompts, where `seconds` leaves them out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_s: Option<f64>,
}

/// What a process is asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// To be timed.
    Time(Work),
    /// The logits after a text of these tokens, with nothing before it.
    LogitsAfter(Vec<u32>),
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Ready(Ready),
    Timing(Timing),
    Logits(Vec<f32>),
    /// The engine cannot do this work; it can do others.
    Failed(String),
}

/// A loaded model that can be measured.
pub trait Engine {
    fn run(&mut self, work: Work) -> anyhow::Result<Timing>;

    fn logits_after(&mut self, tokens: &[u32]) -> anyhow::Result<Vec<f32>>;
}

/// What a loaded engine says of itself.
#[derive(Clone, Debug)]
pub struct About {
    pub version: String,
    pub system_info: String,
}
