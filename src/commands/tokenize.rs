//! `ruvllm tokenize`: the token ids of a text.

use std::io::{IsTerminal, Read, stdin};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use ruvllm_backends::is_encoder;
use ruvllm_text::SpecialTokens;
use serde_json::{Value, json};

use crate::loading::store;
use crate::output;
use crate::output::progress::{PullProgress, interrupt_flag};

/// Show the tokens of a text
#[derive(Debug, Args)]
pub struct Tokenize {
    /// Name from the catalogue, or path of a GGUF file, of a folder of safetensors, or of a tokenizer.json
    model: String,
    /// The text; without it, standard input
    text: Option<String>,
    /// Parse special tokens such as <|im_start|> instead of treating them as text
    #[arg(long)]
    special: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl Tokenize {
    pub fn execute(self) -> Result<()> {
        let text = match self.text {
            Some(text) => text,
            None if stdin().is_terminal() => bail!("no text: give one as an argument or on standard input"),
            None => {
                let mut text = String::new();
                stdin().read_to_string(&mut text).context("standard input is not UTF-8 text")?;
                text
            }
        };
        let path = if self.model.ends_with(".json") {
            PathBuf::from(&self.model)
        } else {
            let path = store()?.ensure(&self.model, &mut PullProgress::new(interrupt_flag()))?.path;
            if is_encoder(&path) { path.with_file_name("tokenizer.json") } else { path }
        };
        let tokenizer =
            ruvllm_runtime::open_tokenizer(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let special = if self.special { SpecialTokens::Parse } else { SpecialTokens::AsText };
        let tokens = tokenizer.encode(&text, special);
        let shown = |id: u32| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned();
        if self.json {
            let pieces: Vec<Value> = tokens.iter().map(|id| json!({ "id": id, "text": shown(*id) })).collect();
            return output::json(&json!({ "count": tokens.len(), "tokens": pieces }));
        }
        let mut rows = vec![vec!["ID".to_owned(), "TEXT".to_owned()]];
        rows.extend(tokens.iter().map(|id| vec![id.to_string(), format!("{:?}", shown(*id))]));
        output::table(&rows)?;
        output::remark(&format!("{} tokens", tokens.len()));
        Ok(())
    }
}
