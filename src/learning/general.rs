//! General texts: what is mixed into a training, and what must not become harder by it.

use std::path::Path;

use anyhow::{Context, Result, bail};
use ruvllm_learning::Shingles;
use ruvllm_runtime::ItemEncoder;
use ruvllm_training::Item;

use super::Divided;

const GENERAL: &str = include_str!("texts/general.txt");
const REPLAY: &str = include_str!("texts/replay.txt");
/// Divides the texts of a file.
const DIVIDER: char = '\u{c}';

/// Shorter windows of a text have too little before their targets.
const WINDOW_MIN: usize = 32;

pub struct GeneralTexts {
    /// What the gate judges by.
    pub judged: Vec<Item>,
    pub replay: Vec<Item>,
    /// Where what is judged comes from, and the digest of it.
    pub source: String,
    pub digest: String,
    /// Windows that share a run of tokens with what is learned from.
    pub left_out: usize,
}

impl GeneralTexts {
    /// Reads both texts. What shares 13 tokens in a row with what is trained on says nothing, and is left out of what
    /// is judged.
    pub fn read(
        (general, replay): (Option<&Path>, Option<&Path>),
        encoder: &ItemEncoder,
        divided: &Divided,
    ) -> Result<Self> {
        let (text, source) = match general {
            Some(path) => (read(path, "--general")?, path.display().to_string()),
            None => (GENERAL.to_owned(), "built in".to_owned()),
        };
        let replay = replay.map_or_else(|| Ok(REPLAY.to_owned()), |path| read(path, "--replay"))?;
        // As long as examples are, so that a share of the items is about that share of the tokens.
        let mean = divided.training.iter().map(|item| item.tokens.len()).sum::<usize>() / divided.training.len().max(1);
        let replay = items(&replay, encoder, mean.max(WINDOW_MIN), "--replay")?;
        let learned = divided.training.iter().chain(&divided.validation).chain(&replay);
        let shingles = Shingles::of(learned.map(|item| &item.tokens[..]));
        let all = items(&text, encoder, usize::MAX, "--general")?;
        let windows = all.len();
        let judged: Vec<Item> = all.into_iter().filter(|item| !shingles.touch(&item.tokens)).collect();
        let left_out = windows - judged.len();
        if judged.is_empty() {
            bail!("all of {source} is also learned from: give another text with --general");
        }
        let digest = blake3::hash(text.as_bytes()).to_hex()[..16].to_owned();
        Ok(Self { judged, replay, source, digest, left_out })
    }

    /// Returns how many predictions the gate judges by.
    pub fn tokens(&self) -> usize {
        self.judged.iter().map(Item::target_count).sum()
    }
}

/// Returns the windows of a text. One that ends with a window of a token or two loses these.
fn items(text: &str, encoder: &ItemEncoder, tokens: usize, flag: &str) -> Result<Vec<Item>> {
    let mut items = Vec::new();
    for (number, part) in text.split(DIVIDER).map(str::trim).filter(|part| !part.is_empty()).enumerate() {
        let windows = encoder.answers(part, tokens, number);
        items.extend(windows.with_context(|| format!("text {} of {flag} cannot be used", number + 1))?);
    }
    items.retain(|item| item.target_count() > 0);
    if items.is_empty() {
        bail!("{flag} has no text");
    }
    Ok(items)
}

fn read(path: &Path, flag: &str) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("{flag} {} cannot be read", path.display()))
}
