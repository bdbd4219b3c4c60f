//! `ruvllm embed`: embeddings of texts.

use std::fs;
use std::io::{IsTerminal, Read, stdin};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use ruvllm_backends::{Encoder, is_encoder};
use ruvllm_runtime::{CancellationToken, EmbedError, EmbedInput, EmbedRequest, Embedder, TooLong};
use serde_json::{Value, json};

use crate::exit::Interrupted;
use crate::loading::model_file;
use crate::output;
use crate::output::progress::{count_bar, interrupt_flag};

/// Number of texts that are embedded before the first result is printed.
const TOGETHER: usize = 256;
/// A table of more pairs is of no use.
const COMPARED_MAX: usize = 1000;
/// Characters of a text in the table.
const SHOWN_MAX: usize = 40;

/// Compute embeddings of texts, for search and comparison
///
/// Texts with similar meanings have vectors that point in similar directions. The similarity of two texts is the dot
/// product of their vectors: 1 is the same, 0 is unrelated. All vectors have length 1.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ruvllm embed minilm \"A cat sits on the mat\"                   one vector, as a \
                        JSON array\n  ruvllm embed minilm --file notes.txt > vectors.jsonl          one vector per \
                        line\n  cat notes.txt | ruvllm embed minilm                           the same\n  ruvllm \
                        embed minilm --similarity \"a cat\" \"a kitten\" \"a car\"   how similar they are"
)]
pub struct Embed {
    /// Embedding model from the catalogue (minilm, mpnet), or the path of its model.safetensors
    model: String,
    /// The texts; without any, each line of standard input is a text
    text: Vec<String>,
    /// Embed each line of this file
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    file: Option<PathBuf>,
    /// Truncate texts that are too long for the model instead of refusing them
    #[arg(long)]
    truncate: bool,
    /// Show how similar the texts are to each other instead of their vectors
    #[arg(long)]
    similarity: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Embed {
    pub fn execute(self) -> Result<()> {
        let texts = self.texts()?;
        if self.similarity && texts.len() > COMPARED_MAX {
            bail!("--similarity compares up to {COMPARED_MAX} texts; there are {}", texts.len());
        }
        let interrupted = interrupt_flag();
        let encoder = self.open(std::sync::Arc::clone(&interrupted))?;
        let patience = CancellationToken::from_flag(interrupted);
        let collects = self.json || self.similarity;
        let bar = count_bar(if collects { texts.len() } else { 0 }, "embedding");
        let (mut vectors, mut tokens, mut cut_tokens) = (Vec::new(), Vec::new(), 0);
        for (index, some) in texts.chunks(TOGETHER).enumerate() {
            let embeddings = encoder.embed(&self.request(some, &patience));
            let embeddings = embeddings.map_err(|error| explain(error, index * TOGETHER))?;
            bar.inc(some.len() as u64);
            cut_tokens += embeddings.cut_tokens;
            if collects {
                vectors.extend(embeddings.vectors);
                tokens.extend(embeddings.tokens);
            } else {
                embeddings.vectors.iter().try_for_each(|vector| output::json(&json!(vector)))?;
            }
        }
        bar.finish_and_clear();
        if cut_tokens > 0 {
            output::remark(&format!("{cut_tokens} tokens were dropped from texts that were too long"));
        }
        match (self.similarity, self.json) {
            (true, true) => output::json(&json!({ "model": self.model, "similarity": similarities(&vectors) })),
            (true, false) => output::table(&table(&texts, &similarities(&vectors))),
            (false, true) => {
                let item = |(vector, tokens)| json!({ "tokens": tokens, "embedding": vector });
                let items: Vec<Value> = vectors.iter().zip(&tokens).map(item).collect();
                output::json(&json!({ "model": self.model, "dimensions": encoder.dimensions(), "embeddings": items,
                                      "tokens": tokens.iter().sum::<usize>(), "truncated_tokens": cut_tokens }))
            }
            (false, false) => Ok(()),
        }
    }

    fn open(&self, interrupted: std::sync::Arc<std::sync::atomic::AtomicBool>) -> Result<Encoder> {
        let file = model_file(&self.model, interrupted)?;
        if !is_encoder(&file.path) {
            bail!("{} generates text; use an embedding model, such as minilm", self.model);
        }
        Encoder::open(&file.path).with_context(|| format!("cannot run {}", file.path.display()))
    }

    fn texts(&self) -> Result<Vec<String>> {
        if !self.text.is_empty() {
            return Ok(self.text.clone());
        }
        let text = match &self.file {
            Some(path) => fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?,
            None if stdin().is_terminal() => bail!("no text: give some as arguments, with --file or on standard input"),
            None => {
                let mut text = String::new();
                stdin().read_to_string(&mut text).context("standard input is not UTF-8 text")?;
                text
            }
        };
        let texts: Vec<String> = text.lines().map(str::to_owned).collect();
        if texts.is_empty() { bail!("there is no text") } else { Ok(texts) }
    }

    fn request(&self, texts: &[String], patience: &CancellationToken) -> EmbedRequest {
        EmbedRequest {
            inputs: texts.iter().cloned().map(EmbedInput::Text).collect(),
            too_long: if self.truncate { TooLong::CutEnd } else { TooLong::Refuse },
            cancellation: patience.clone(),
        }
    }
}

/// `before` is the number of texts in earlier requests; users count from 1.
fn explain(error: EmbedError, before: usize) -> anyhow::Error {
    match error {
        EmbedError::Abandoned { .. } => Interrupted.into(),
        EmbedError::Empty { index } => anyhow::anyhow!("text {} is empty", before + index + 1),
        EmbedError::TooLong { index, tokens, tokens_max } => anyhow::anyhow!(
            "text {} has {tokens} tokens and the model takes up to {tokens_max}; shorten it, or truncate it with \
             --truncate",
            before + index + 1
        ),
        error @ (EmbedError::NoSuchToken { .. } | EmbedError::Failed { .. }) => error.into(),
    }
}

/// Returns the similarities of all pairs. Vectors have length 1, so the dot product is the cosine.
fn similarities(vectors: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    vectors.iter().map(|a| vectors.iter().map(|b| product(a, b)).collect()).collect()
}

fn table(texts: &[String], similarities: &[Vec<f32>]) -> Vec<Vec<String>> {
    let heading = std::iter::once(String::new()).chain((1..=texts.len()).map(|number| number.to_string()));
    let row = |(number, (text, row)): (usize, (&String, &Vec<f32>))| {
        let shown: String = output::printable(text).replace(['\n', '\t'], " ").chars().take(SHOWN_MAX).collect();
        let name = std::iter::once(format!("{} {shown}", number + 1));
        name.chain(row.iter().map(|value| format!("{value:.3}"))).collect()
    };
    let rows = texts.iter().zip(similarities).enumerate().map(row);
    std::iter::once(heading.collect()).chain(rows).collect()
}
