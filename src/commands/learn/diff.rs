//! `ruvllm learn diff`

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use clap::Args;
use ruvllm_memory::LearnedVersion;
use serde_json::{Value, json};

use super::history::{change, gate_of};
use crate::flags::memory::MemoryLocationFlags;
use crate::flags::scope::{ScopeFlags, describe};
use crate::output;

/// Compare two versions: what they were learned from, how, and their figures
#[derive(Debug, Args)]
pub struct Diff {
    /// The model
    model: String,
    /// Numbers of the versions, as in `ruvllm learn history`
    one: i64,
    other: i64,
    #[command(flatten)]
    scope: ScopeFlags,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

impl Diff {
    pub fn execute(self) -> Result<()> {
        let scope = self.scope.of_named(&self.model)?;
        let versions = self.memory.open()?.learning().versions(&scope)?;
        let find = |number: i64| {
            let found = versions.iter().find(|version| version.version == number);
            found.with_context(|| format!("there is no version {number} of {}", describe(&scope)))
        };
        let both = [find(self.one)?, find(self.other)?];
        let [one, other] = both.map(|version| version.body.items.iter().collect::<BTreeSet<_>>());
        let (added, removed) = (other.difference(&one).count(), one.difference(&other).count());
        let common = one.intersection(&other).count();
        let is_same = both[0].body.adapter == both[1].body.adapter;
        if self.json {
            return output::json(&json!({
                "versions": both,
                "items": { "common": common, "added": added, "removed": removed },
                "same_adapter": is_same,
            }));
        }
        let heading = vec![String::new(), self.one.to_string(), self.other.to_string()];
        let rows = FIGURES.iter().map(|(name, value)| {
            let [one, other] = both.map(value);
            vec![(*name).to_owned(), one, other]
        });
        output::table(&std::iter::once(heading).chain(rows).collect::<Vec<_>>())?;
        output::line(&format!(
            "items: {common} in both, {added} only in {}, {removed} only in {}",
            self.other, self.one
        ))?;
        if is_same {
            output::line("both are the same adapter, byte for byte")?;
        }
        Ok(())
    }
}

type Figure = (&'static str, fn(&LearnedVersion) -> String);

const FIGURES: [Figure; 14] = [
    ("state", |version| version.state.name().to_owned()),
    ("adapter", |version| version.body.adapter.chars().take(12).collect()),
    ("judged against version", |version| version.body.parent.to_string()),
    ("model's file", |version| version.body.model_digest.chars().take(12).collect()),
    ("rank", |version| text(&version.body.report["training"]["options"]["rank"])),
    ("learning rate", |version| text(&version.body.report["training"]["options"]["learning_rate"])),
    ("seed", |version| text(&version.body.report["training"]["options"]["seed"])),
    ("steps", |version| text(&version.body.report["training"]["steps"])),
    ("loss", |version| gate_of(version).map_or_else(dash, |report| format!("{:.4}", report.loss))),
    ("against base", |version| against(version, "base")),
    ("against served", |version| against(version, "served")),
    ("against ngram", |version| against(version, "ngram")),
    ("against examples", |version| against(version, "examples")),
    ("general texts", |version| {
        gate_of(version).map_or_else(dash, |report| format!("{:+.2} %", 100.0 * report.general.rise))
    }),
];

fn dash() -> String {
    "-".to_owned()
}

fn text(value: &Value) -> String {
    if value.is_null() { dash() } else { value.to_string() }
}

fn against(version: &LearnedVersion, name: &str) -> String {
    gate_of(version).and_then(|report| change(&report, name)).unwrap_or_else(dash)
}
