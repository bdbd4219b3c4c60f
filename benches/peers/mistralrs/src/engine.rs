//! mistral.rs: requests in, answers out. It has no steps that one could time from outside, so the times are its own.

use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use mistralrs::{GgufModelBuilder, Model, NormalRequest, Request, RequestMessage, ResponseOk, SamplingParams, Usage};
use peers_protocol::{About, Engine, Start, Timing, Work, prompt};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::{Receiver, channel};

pub struct MistralRs {
    runtime: Runtime,
    model: Model,
    vocabulary: usize,
    /// Texts given so far. Every prompt is another text, or it would be found in the prefix cache.
    texts: usize,
}

pub fn load(start: &Start) -> Result<(MistralRs, About)> {
    let runtime = Runtime::new()?;
    let folder = start.model.parent().context("a model's path has a folder")?;
    let file = start.model.file_name().context("a model's path has a name")?;
    let builder = GgufModelBuilder::new(folder.display(), vec![file.display()]).with_force_cpu();
    let model = runtime.block_on(builder.with_max_num_seqs(start.sequences).build())?;
    let about = About { version: locked_version(), system_info: "CPU, times are its own".to_owned() };
    Ok((MistralRs { runtime, model, vocabulary: start.vocabulary, texts: 0 }, about))
}

impl Engine for MistralRs {
    fn run(&mut self, work: Work) -> Result<Timing> {
        match work {
            Work::Prefill { tokens, depth: 0 } => self.prefill(tokens),
            Work::Prefill { .. } => bail!("mistral.rs does not time a part of a prompt"),
            Work::Decode { tokens, depth } => self.decode(tokens, depth.max(1)),
            Work::NextTurn { .. } => bail!("mistral.rs is not asked for a second turn"),
            Work::Sequences { count, prompt, tokens } => self.sequences(count, prompt, tokens),
        }
    }

    fn logits_after(&mut self, _: &[u32]) -> Result<Vec<f32>> {
        bail!("mistral.rs is not asked for its logits")
    }
}

impl MistralRs {
    fn prefill(&mut self, tokens: usize) -> Result<Timing> {
        let usage = &self.answer(1, tokens, 1)?[0];
        Ok(Timing { tokens, seconds: f64::from(usage.total_prompt_time_sec), total_s: None })
    }

    fn decode(&mut self, tokens: usize, depth: usize) -> Result<Timing> {
        let usage = &self.answer(1, depth, tokens + 1)?[0];
        decoded(std::slice::from_ref(usage), None)
    }

    fn sequences(&mut self, count: usize, prompt: usize, tokens: usize) -> Result<Timing> {
        let began = Instant::now();
        let usages = self.answer(count, prompt, tokens + 1)?;
        decoded(&usages, Some(began.elapsed().as_secs_f64()))
    }

    /// Answers of at most `max_tokens` to `count` new prompts at once.
    fn answer(&mut self, count: usize, length: usize, max_tokens: usize) -> Result<Vec<Usage>> {
        let (first, vocabulary) = (self.texts, self.vocabulary);
        self.texts += count;
        let sender = self.model.inner().get_sender(None)?;
        self.runtime.block_on(async {
            let mut waiting: Vec<Receiver<_>> = Vec::new();
            for text in first..first + count {
                let (tx, rx) = channel(1);
                let tokens = RequestMessage::CompletionTokens(prompt(vocabulary, text, length));
                let sampling = SamplingParams { max_len: Some(max_tokens), ..SamplingParams::deterministic() };
                let request = NormalRequest::new_simple(tokens, sampling, tx, text, None, None);
                sender.send(Request::Normal(Box::new(request))).await?;
                waiting.push(rx);
            }
            let mut usages = Vec::new();
            for mut answer in waiting {
                let answer = answer.recv().await.context("mistral.rs dropped a request")?;
                match answer.as_result().map_err(|error| anyhow::anyhow!("{error}"))? {
                    ResponseOk::CompletionDone(done) => usages.push(done.usage),
                    _ => bail!("mistral.rs answered with something else than a completion"),
                }
            }
            Ok(usages)
        })
    }
}

/// The time of the slowest, since all ran together. An end token may have stopped some early; what counts is what they
/// generated after their first token.
fn decoded(usages: &[Usage], total_s: Option<f64>) -> Result<Timing> {
    let tokens = usages.iter().map(|usage| usage.completion_tokens.saturating_sub(1)).sum();
    let seconds = usages.iter().map(|usage| f64::from(usage.total_completion_time_sec)).fold(0.0, f64::max);
    ensure!(tokens > 0 && seconds > 0.0, "mistral.rs stopped at its first token");
    Ok(Timing { tokens, seconds, total_s })
}

/// From the lock file that this program was built with.
fn locked_version() -> String {
    let lock = include_str!("../Cargo.lock");
    let version = lock.split_once("name = \"mistralrs\"\nversion = \"").and_then(|(_, rest)| rest.split('"').next());
    format!("mistralrs {}", version.unwrap_or("of unknown version"))
}
