//! `ruvllm rerank`: documents sorted by how well they answer a query.

use std::fs;
use std::io::{IsTerminal, Read, stdin};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use ruvllm_backends::{CrossEncoder, is_encoder};
use ruvllm_runtime::{CancellationToken, RerankError, RerankRequest, RerankScores, Reranker, TooLong, relevance};
use serde_json::{Value, json};

use crate::exit::Interrupted;
use crate::loading::model_file;
use crate::output;
use crate::output::progress::{count_bar, interrupt_flag};

/// Number of documents that are scored between two updates of the progress bar.
const TOGETHER: usize = 64;
/// Characters of a document in the table.
const SHOWN_MAX: usize = 100;

/// Sort documents by how well they answer a query
///
/// The model reads the query together with each document, which is slower and more exact than comparing embeddings: find
/// candidates with `ruvllm embed`, then sort the best of them. Scores are between 0 and 1.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ruvllm rerank ./ms-marco-minilm/model.safetensors \"How do I reset my password?\" docs/*.md    \
                        each file is a document\n  grep -i password faq.txt | ruvllm rerank MODEL \"How do I reset it?\" \
                        --top 3             each line is a document"
)]
pub struct Rerank {
    /// Reranking model: its name in the store, or the path of its model.safetensors
    model: String,
    /// What is asked or searched for
    query: String,
    /// The documents; without any, each line of standard input is a document
    file: Vec<PathBuf>,
    /// Show only the best N documents
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    top: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A document, and what it is called in the output.
struct Document {
    name: String,
    text: String,
}

impl Rerank {
    pub fn execute(self) -> Result<()> {
        let documents = self.documents()?;
        let interrupted = interrupt_flag();
        let model = self.open(Arc::clone(&interrupted))?;
        let scores = self.scores(&model, &documents, &CancellationToken::from_flag(interrupted))?;
        let cut = scores.cut_tokens.iter().filter(|cut| **cut > 0).count();
        if cut > 0 {
            output::remark(&format!(
                "{cut} documents were too long and were cut: the model reads {} tokens, with the query",
                model.context()
            ));
        }
        if scores.query_cut_tokens > 0 {
            output::remark("the query was too long and was cut");
        }
        let top = self.top.map_or(usize::MAX, |top| usize::try_from(top).unwrap_or(usize::MAX));
        let ranking: Vec<usize> = scores.ranking().into_iter().take(top).collect();
        if self.json { self.print_json(&documents, &scores, &ranking) } else { print(&documents, &scores, &ranking) }
    }

    fn open(&self, interrupted: Arc<AtomicBool>) -> Result<CrossEncoder> {
        let file = model_file(&self.model, interrupted)?;
        if !is_encoder(&file.path) {
            bail!("{} generates text; use a reranking model (a cross-encoder)", self.model);
        }
        CrossEncoder::open(&file.path).with_context(|| format!("cannot rerank with {}", file.path.display()))
    }

    fn documents(&self) -> Result<Vec<Document>> {
        if !self.file.is_empty() {
            let read = |path: &PathBuf| {
                let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
                Ok(Document { name: path.display().to_string(), text })
            };
            return self.file.iter().map(read).collect();
        }
        if stdin().is_terminal() {
            bail!("no documents: name files, or give a document per line on standard input");
        }
        let mut text = String::new();
        stdin().read_to_string(&mut text).context("standard input is not UTF-8 text")?;
        let line = |line: &str| Document { name: line.chars().take(SHOWN_MAX).collect(), text: line.to_owned() };
        let documents: Vec<Document> = text.lines().map(line).collect();
        if documents.is_empty() { bail!("there are no documents") } else { Ok(documents) }
    }

    fn scores(
        &self,
        model: &CrossEncoder,
        documents: &[Document],
        patience: &CancellationToken,
    ) -> Result<RerankScores> {
        let bar = count_bar(documents.len(), "reranking");
        let mut all = RerankScores::default();
        for (index, some) in documents.chunks(TOGETHER).enumerate() {
            let request = RerankRequest {
                query: self.query.clone(),
                documents: some.iter().map(|document| document.text.clone()).collect(),
                too_long: TooLong::CutEnd,
                cancellation: patience.clone(),
                ..RerankRequest::default()
            };
            let scores = model.rerank(&request).map_err(|error| explain(error, &documents[index * TOGETHER..]))?;
            bar.inc(some.len() as u64);
            all.logits.extend(scores.logits);
            all.tokens.extend(scores.tokens);
            all.cut_tokens.extend(scores.cut_tokens);
            all.query_cut_tokens = all.query_cut_tokens.max(scores.query_cut_tokens);
        }
        bar.finish_and_clear();
        Ok(all)
    }

    fn print_json(&self, documents: &[Document], scores: &RerankScores, ranking: &[usize]) -> Result<()> {
        let result = |&index: &usize| {
            let logit = scores.logits[index];
            let mut result = json!({ "index": index, "relevance_score": relevance(logit), "logit": logit,
                                     "tokens": scores.tokens[index], "truncated_tokens": scores.cut_tokens[index] });
            let (field, value) =
                if self.file.is_empty() { ("text", &documents[index].text) } else { ("file", &documents[index].name) };
            result[field] = json!(value);
            result
        };
        let results: Vec<Value> = ranking.iter().map(result).collect();
        let tokens: usize = scores.tokens.iter().sum();
        output::json(&json!({ "model": self.model, "query": self.query, "results": results, "tokens": tokens }))
    }
}

fn print(documents: &[Document], scores: &RerankScores, ranking: &[usize]) -> Result<()> {
    let row = |&index: &usize| {
        let name = output::printable(&documents[index].name).replace(['\n', '\t'], " ");
        vec![format!("{:.4}", relevance(scores.logits[index])), name]
    };
    output::table(&ranking.iter().map(row).collect::<Vec<_>>())
}

/// `documents` are those of the failed request and after.
fn explain(error: RerankError, documents: &[Document]) -> anyhow::Error {
    match error {
        RerankError::Abandoned { .. } => Interrupted.into(),
        RerankError::EmptyDocument { index } => match documents.get(index) {
            Some(document) if !document.name.is_empty() => anyhow!("{} is empty", document.name),
            _ => anyhow!("a line is empty; every line is a document"),
        },
        error @ (RerankError::EmptyQuery | RerankError::TooLong { .. } | RerankError::Failed { .. }) => error.into(),
    }
}
