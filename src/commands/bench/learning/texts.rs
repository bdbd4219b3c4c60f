//! Texts of several domains, cut into items and divided by document.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use ruvllm_learning::{Repeats, Shingles};
use ruvllm_runtime::ItemEncoder;
use ruvllm_training::Item;

use crate::learning::Divided;

/// Tokens of an item, and those of them that are its prompt.
pub const ITEM_TOKENS: usize = 192;
pub const PROMPT_TOKENS: usize = 64;
/// Items of a document, at most.
const OF_DOCUMENT: usize = 4;
const OF_HELD_OUT_DOCUMENT: usize = 2;
const HELD_OUT: usize = 64;
const VALIDATION: usize = 24;
/// Larger files are data rather than text, and more of them than these would only take time.
const FILE_BYTES_MAX: u64 = 4 << 20;
const FILES_MAX: usize = 20_000;

/// The items of each document of a domain.
pub struct Domain {
    pub name: String,
    documents: Vec<Vec<Item>>,
    /// Of everything that is used.
    pub digest: blake3::Hash,
}

/// Reads the domains in a folder: each folder in it is one, each file of text a document.
pub fn read(folder: &Path, encoder: &ItemEncoder) -> Result<Vec<Domain>> {
    let cannot = || format!("--texts {} cannot be read", folder.display());
    let mut folders = Vec::new();
    for entry in fs::read_dir(folder).with_context(cannot)? {
        let entry = entry.with_context(cannot)?;
        if entry.path().is_dir() {
            folders.push(entry.path());
        }
    }
    folders.sort();
    if folders.is_empty() {
        bail!("--texts {} has no folders: there must be one for each domain, with files of text", folder.display());
    }
    folders.iter().map(|folder| Domain::read(folder, encoder)).collect()
}

impl Domain {
    fn read(folder: &Path, encoder: &ItemEncoder) -> Result<Self> {
        let name = folder.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let mut hasher = blake3::Hasher::new();
        let mut documents = Vec::new();
        for path in files(folder)? {
            let text = fs::read(&path).with_context(|| format!("{} cannot be read", path.display()))?;
            // Pictures and the like are no documents.
            let Some(text) = String::from_utf8(text).ok().filter(|text| !text.contains('\0')) else { continue };
            let Ok(windows) = encoder.answers(&text, ITEM_TOKENS, documents.len()) else { continue };
            let items = windows.into_iter().filter(|item| item.tokens.len() == ITEM_TOKENS);
            // Beginnings are licences and lists of imports.
            let items = items.skip(1).take(OF_DOCUMENT);
            let items: Vec<Item> =
                items.map(|item| Item::new(item.tokens, PROMPT_TOKENS..ITEM_TOKENS, documents.len())).collect();
            if !items.is_empty() {
                hasher.update(text.as_bytes());
                documents.push(items);
            }
        }
        Ok(Self { name, documents, digest: hasher.finalize() })
    }

    /// Divides the documents, in an order that follows from the seed: what is held out does not depend on `count`, and what
    /// is learned from begins with the same items for each.
    ///
    /// No item of one side shares a run of tokens with another side, and none repeats others: `learn now` would leave it out.
    pub fn divide(&self, seed: u64, count: usize) -> Result<Divided> {
        let mut order: Vec<usize> = (0..self.documents.len()).collect();
        order.sort_by_key(|document| Reverse(drawn(seed, &self.name, *document)));
        let mut documents = order.into_iter().map(|document| &self.documents[document]);
        let mut repeats = Repeats::default();
        let mut collect = |count, of_document, seen: &Shingles| {
            collect(&mut documents, (count, of_document), |item| {
                !seen.touch(&item.tokens) && repeats.take(item.document as u64, item.answer())
            })
        };
        let held_out = collect(HELD_OUT, OF_HELD_OUT_DOCUMENT, &Shingles::default());
        let seen = Shingles::of(held_out.iter().map(|item| &item.tokens[..]));
        let validation = collect(VALIDATION, OF_HELD_OUT_DOCUMENT, &seen);
        let seen = Shingles::of(held_out.iter().chain(&validation).map(|item| &item.tokens[..]));
        let training = collect(count, OF_DOCUMENT, &seen);
        if held_out.len() < HELD_OUT || validation.len() < VALIDATION || training.len() < count {
            let all: usize = self.documents.iter().map(Vec::len).sum();
            bail!(
                "the domain {} has {all} items of {ITEM_TOKENS} tokens in {} documents; {HELD_OUT} are held out, {VALIDATION} \
                 say when to stop, and {} of {count} are left to learn from: give it more files, or ask for fewer --items",
                self.name,
                self.documents.len(),
                training.len()
            );
        }
        Ok(Divided { training, validation, held_out })
    }
}

/// Takes items of documents until there are enough.
fn collect<'d>(
    documents: &mut impl Iterator<Item = &'d Vec<Item>>,
    (count, of_document): (usize, usize),
    mut is_wanted: impl FnMut(&Item) -> bool,
) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    while items.len() < count {
        let Some(document) = documents.next() else { break };
        let most = of_document.min(count - items.len());
        items.extend(document.iter().filter(|item| is_wanted(item)).take(most).cloned());
    }
    items
}

/// Returns the files below a folder in a fixed order.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let cannot = || format!("{} cannot be read", folder.display());
        for entry in fs::read_dir(&folder).with_context(cannot)? {
            let entry = entry.with_context(cannot)?;
            let kind = entry.metadata().with_context(cannot)?;
            match kind {
                kind if kind.is_dir() => folders.push(entry.path()),
                kind if kind.is_file() && kind.len() <= FILE_BYTES_MAX => found.push(entry.path()),
                _ => {}
            }
            if found.len() > FILES_MAX {
                bail!("{} has more than {FILES_MAX} files: give a smaller folder", folder.display());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Returns a number that follows from a seed and a place, like a die.
pub fn drawn(seed: u64, what: &str, place: usize) -> u64 {
    let mut hasher = blake3::Hasher::new_derive_key("ruvllm bench learning 1");
    hasher.update(&seed.to_le_bytes());
    hasher.update(&(place as u64).to_le_bytes());
    hasher.update(what.as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&hasher.finalize().as_bytes()[..8]);
    u64::from_le_bytes(first)
}

/// Returns the documents of several domains as numbers of their own.
pub fn renumbered(items: &[Item], numbers: &mut HashMap<(usize, usize), usize>, domain: usize) -> Vec<Item> {
    let of = |item: &Item| {
        let next = numbers.len();
        let document = *numbers.entry((domain, item.document)).or_insert(next);
        Item { document, ..item.clone() }
    };
    items.iter().map(of).collect()
}
