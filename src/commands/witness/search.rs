//! `ruvllm witness search`

use anyhow::Result;
use clap::Args;
use ruvllm_memory::{Found, WitnessQuery};
use serde_json::{Value, json};

use crate::flags::memory::MemoryLocationFlags;
use crate::flags::witness::WitnessFlags;
use crate::loading::embedding;
use crate::output::{self, times};

/// Characters of a text that a row shows.
const TEXT_CHARS: usize = 48;

/// Search requests by meaning, time and figures
///
/// With a text, the most similar come first; it is compared with prompts and answers, by the model whose embeddings are
/// stored. Without one, the newest come first.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ruvllm witness search \"timeouts while summarising contracts\" --since 2d --quality '<0.5'\n  \
                        ruvllm witness search --error any --since 1h\n  \
                        ruvllm witness search --latency '>2000' --model smollm2 --json"
)]
pub struct Search {
    /// Search text
    text: Option<String>,
    #[command(flatten)]
    which: WitnessFlags,
    /// Maximum number of results
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    /// Compare with prompts only, not with answers
    #[arg(long, requires = "text")]
    asked: bool,
    /// Print one JSON object per entry
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

impl Search {
    pub fn execute(self) -> Result<()> {
        let query = self.which.query()?;
        let memory = self.memory.open()?;
        let like = self.text.as_deref().map(|text| embedding::embed_text(&memory, text)).transpose()?;
        let query = WitnessQuery { like, is_answer_searched: !self.asked, count_max: self.limit as usize, ..query };
        let found = memory.witness().search(&query)?;
        if self.json {
            return found.iter().try_for_each(|found| output::json(&to_json(found)));
        }
        if found.is_empty() {
            output::remark("no results");
            return Ok(());
        }
        output::table(&table(&found, self.text.is_some()))
    }
}

fn table(found: &[Found], by_meaning: bool) -> Vec<Vec<String>> {
    let has_text = found.iter().any(|found| found.entry.texts.is_some());
    let mut heading = vec!["TIME", "REQUEST", "MODEL", "QUALITY", "TOTAL", "TOKENS", "ERROR"];
    if by_meaning {
        heading.insert(0, "LIKE");
    }
    if has_text {
        heading.push("ASKED");
    }
    let row = |found: &Found| {
        let entry = &found.entry;
        let mut row = vec![
            times::moment(entry.at_ms),
            output::printable(&entry.request),
            entry.model.clone(),
            entry.quality.as_ref().map_or_else(String::new, |quality| format!("{:.2}", quality.score)),
            format!("{:.0} ms", entry.latency.total_ms),
            format!("{}+{}", entry.tokens.prompt, entry.tokens.answer),
            entry.error.as_ref().map_or_else(String::new, |error| error.kind.clone()),
        ];
        if by_meaning {
            row.insert(0, format!("{:.2}", found.similarity.unwrap_or_default()));
        }
        if has_text {
            let asked = entry.texts.as_ref().map_or("", |texts| texts.prompt.as_str());
            let line = output::printable(asked).replace(['\n', '\t'], " ");
            row.push(line.chars().take(TEXT_CHARS).collect());
        }
        row
    };
    std::iter::once(heading.into_iter().map(str::to_owned).collect()).chain(found.iter().map(row)).collect()
}

fn to_json(found: &Found) -> Value {
    let mut object = json!(found.entry);
    object["id"] = json!(found.id);
    if let Some(similarity) = found.similarity {
        object["similarity"] = json!(similarity);
    }
    object
}
