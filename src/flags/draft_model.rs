//! Which model drafts tokens for another.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::{fmt, fs};

use anyhow::Result;
use ruvllm_runtime::{can_draft_for, open_tokenizer};
use ruvllm_store::Listed;

use crate::loading;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DraftModelFlag {
    #[default]
    Off,
    /// One that is in the store and fits.
    Auto,
    Named(String),
}

impl FromStr for DraftModelFlag {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "off" => Self::Off,
            "auto" => Self::Auto,
            name => Self::Named(name.to_owned()),
        })
    }
}

impl fmt::Display for DraftModelFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Off => "off",
            Self::Auto => "auto",
            Self::Named(name) => name,
        })
    }
}

impl DraftModelFlag {
    /// Returns the file of the draft model for the model in `large`, fetched if it was named.
    pub fn find(&self, large: &Path) -> Result<Option<PathBuf>> {
        match self {
            Self::Off => Ok(None),
            Self::Auto => found(large),
            Self::Named(name) => Ok(Some(loading::model_file(name, Arc::new(AtomicBool::new(false)))?.path)),
        }
    }

    /// The same for one of several models, which cannot all have the vocabulary of the draft model.
    pub fn find_if_fitting(&self, large: &Path) -> Result<Option<PathBuf>> {
        let Some(path) = self.find(large)? else { return Ok(None) };
        let fits = path != large && can_draft_for(&path, &open_tokenizer(large)?);
        if !fits {
            tracing::info!("{} does not draft for {}: it has other tokens", path.display(), large.display());
        }
        Ok(fits.then_some(path))
    }
}

/// Returns the largest model of the store that can draft for another: larger ones are right more often.
fn found(large: &Path) -> Result<Option<PathBuf>> {
    let large_bytes = fs::metadata(large)?.len();
    let sizes = large_bytes / 10..=large_bytes / 3;
    let path = |listed: Listed| match listed {
        Listed::Model(model) => Some(model.path),
        Listed::Unusable { .. } => None,
    };
    let mut candidates: Vec<(u64, PathBuf)> = (loading::store()?.list()?.into_iter().filter_map(path))
        .filter(|path| path != large && path.extension().is_some_and(|extension| extension == "gguf"))
        .filter_map(|path| Some((fs::metadata(&path).ok()?.len(), path)))
        .filter(|(bytes, _)| sizes.contains(bytes))
        .collect();
    candidates.sort();
    let tokenizer = open_tokenizer(large)?;
    let found = candidates.into_iter().rev().map(|(_, path)| path).find(|path| can_draft_for(path, &tokenizer));
    match &found {
        Some(path) => tracing::info!("{} drafts for {}", path.display(), large.display()),
        None => tracing::info!("no model in the store can draft for {}", large.display()),
    }
    Ok(found)
}
