//! What was measured, kept line by line so that a measurement of hours can be interrupted.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;

use anyhow::{Context, Result};
use clap::ValueEnum;
use ruvllm_learning::{Report, Verdict};
use serde::{Deserialize, Serialize};

/// What is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Items that are looked up while an answer is drawn, as feedback is at once
    Instant,
    /// An adapter that was trained on the items, as `learn now` does
    Background,
    /// The same with the tokens of every answer in a random order: there is nothing to learn
    Shuffled,
    /// The same with answers that are all made from one template: what would ruin other texts
    Template,
    /// The same with a text of an attacker's in place of 30 % of the answers
    Poisoned,
    /// An adapter that was trained on this domain and the next one
    Both,
}

/// Names a measurement.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Name {
    pub kind: Kind,
    pub domain: String,
    pub items: usize,
    pub seed: u64,
}

/// A measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    #[serde(flatten)]
    pub name: Name,
    /// A digest of the model, the texts and the settings: others cannot be compared.
    pub setup: String,
    /// Relative change of the loss on what is held out of each domain.
    pub changes: BTreeMap<String, f64>,
    /// Items that nothing was learned from, because their answers repeat others.
    pub left_out: usize,
    /// What the gate says of an adapter.
    pub gate: Option<Report>,
    /// Of the training.
    pub tokens_per_second: Option<f64>,
    /// Of a look-up.
    pub microseconds: Option<f64>,
    /// What the measurement took.
    pub seconds: f64,
}

impl Record {
    pub fn of(name: &Name, changes: BTreeMap<String, f64>) -> Self {
        Self {
            name: name.clone(),
            setup: String::new(),
            changes,
            left_out: 0,
            gate: None,
            tokens_per_second: None,
            microseconds: None,
            seconds: 0.0,
        }
    }

    /// Whether nothing of it would be served: the gate has refused it, or too few items were left.
    pub fn is_refused(&self) -> bool {
        self.gate.as_ref().is_none_or(|gate| gate.verdict == Verdict::Refused)
    }
}

/// All measurements of a setup, and the file that new ones are added to.
pub struct Records {
    pub all: Vec<Record>,
    file: Option<File>,
    setup: String,
}

impl Records {
    /// Opens a file of measurements, or begins one. Those of other setups stay in it.
    pub fn open(path: Option<&Path>, setup: String) -> Result<Self> {
        let Some(path) = path else { return Ok(Self { all: Vec::new(), file: None, setup }) };
        let cannot = || format!("--results {} cannot be used", path.display());
        let file = OpenOptions::new().read(true).append(true).create(true).open(path).with_context(cannot)?;
        let mut all = Vec::new();
        for (number, line) in BufReader::new(&file).lines().enumerate() {
            let line = line.with_context(cannot)?;
            let record: Record = serde_json::from_str(&line)
                .with_context(|| format!("line {} of {} is no measurement", number + 1, path.display()))?;
            all.extend((record.setup == setup).then_some(record));
        }
        Ok(Self { all, file: Some(file), setup })
    }

    /// Returns whether a measurement was made.
    pub fn has(&self, name: &Name) -> bool {
        self.all.iter().any(|record| record.name == *name)
    }

    /// Adds a measurement and writes it to the file.
    pub fn add(&mut self, mut record: Record) -> Result<()> {
        record.setup.clone_from(&self.setup);
        if let Some(file) = &mut self.file {
            let line = format!("{}\n", serde_json::to_string(&record)?);
            file.write_all(line.as_bytes()).context("the measurement cannot be written")?;
        }
        self.all.push(record);
        Ok(())
    }

    /// Returns the measurements of a kind with so many items.
    pub fn of(&self, kind: Kind, items: usize) -> impl Iterator<Item = &Record> {
        self.all.iter().filter(move |record| record.name.kind == kind && record.name.items == items)
    }
}
