//! `ruvllm perplexity`: how well a model predicts a text.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::json;

use crate::flags::adapter::AdapterFlags;
use crate::flags::model::ModelFlags;
use crate::output;
use crate::output::progress::{byte_bar, interrupt_flag};

/// Measure how well a model predicts a text (lower is better)
///
/// The text is split into chunks of --context tokens and the second half of each is scored, as llama-perplexity does,
/// so that results can be compared.
#[derive(Debug, Args)]
pub struct Perplexity {
    #[command(flatten)]
    model: ModelFlags,
    /// A UTF-8 text file
    file: PathBuf,
    #[command(flatten)]
    adapters: AdapterFlags,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Default chunk length, the same as llama.cpp's.
const CONTEXT_DEFAULT: usize = 512;

impl Perplexity {
    pub fn execute(self) -> Result<()> {
        let text = fs::read(&self.file).with_context(|| format!("cannot read {}", self.file.display()))?;
        let text = String::from_utf8(text).with_context(|| format!("{} is not UTF-8 text", self.file.display()))?;
        let context = self.model.engine.context.unwrap_or(CONTEXT_DEFAULT);
        let interrupted = interrupt_flag();
        let model = self.model.file(interrupted.clone())?;
        let engine = self.model.load_with_context(interrupted, 1, Some(context))?;
        let adapter = self.adapters.hold(&engine, &model.name)?;
        let bar = byte_bar(0, "chunks");
        bar.set_style(indicatif::ProgressStyle::with_template("{wide_bar} {pos}/{len} chunks, {msg}, {eta} left")?);
        let result = engine.perplexity_with(adapter.as_ref(), &text, context, |done, chunks, so_far| {
            bar.set_length(chunks as u64);
            bar.set_message(format!("perplexity {so_far:.4}"));
            bar.set_position(done as u64);
        });
        bar.finish_and_clear();
        let result = result?;
        if self.json {
            return output::json(&json!({
                "perplexity": result.value,
                "uncertainty": result.uncertainty,
                "context": context,
                "chunks": result.chunks,
                "scored_tokens": result.scored_tokens,
                "text_tokens": result.text_tokens,
            }));
        }
        output::line(&format!(
            "perplexity {:.4} +/- {:.4} ({} chunks of {context}, {} tokens scored)",
            result.value, result.uncertainty, result.chunks, result.scored_tokens
        ))
    }
}
