//! What is known of a model without loading it.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use ruvllm_store::{Manifest, ModelFile, ModelSettings};
use serde_json::{Map, Value};

use super::known_adapters::KnownAdapter;
use super::{ModelError, Models, RunnerKind};

/// Files whose descriptions are kept.
const DESCRIPTIONS_MAX: usize = 256;

/// A model that can be requested.
#[derive(Clone, Debug)]
pub struct KnownModel {
    pub name: String,
    pub file: PathBuf,
    /// Of all of its files.
    pub bytes: u64,
    /// Of the file that is opened, if it is known.
    pub sha256: Option<String>,
    pub modified: SystemTime,
    pub licence: Option<String>,
    pub settings: ModelSettings,
    /// The model that it is made from, or an alias of.
    pub base: Option<String>,
    /// What makes it differ from its base, of an adapter.
    pub adapter: Option<KnownAdapter>,
}

/// What a file says of its model.
#[derive(Clone, Debug, Default)]
pub struct ModelDescription {
    /// `gguf` or `safetensors`
    pub format: &'static str,
    pub architecture: String,
    pub parameters: u64,
    /// Such as `Q4_K_M`.
    pub quantization: String,
    pub context: Option<u64>,
    pub license: Option<String>,
    pub chat_template: Option<String>,
    pub reasons: bool,
    pub kind: RunnerKind,
    /// Metadata of the file, by name; lists are `null`.
    pub metadata: Map<String, Value>,
}

impl ModelDescription {
    /// Returns what the model can do: `completion`, `tools`, `thinking`, `embedding` or `rerank`.
    pub fn capabilities(&self) -> Vec<&'static str> {
        match self.kind {
            RunnerKind::Encoder => return vec!["embedding"],
            RunnerKind::Reranker => return vec!["rerank"],
            RunnerKind::Generator => {}
        }
        // Calls follow a grammar, whatever the model was trained for; but they need a conversation.
        let has_template = self.chat_template.is_some();
        let all = [("completion", true), ("tools", has_template), ("thinking", self.reasons)];
        all.into_iter().filter_map(|(name, is_there)| is_there.then_some(name)).collect()
    }
}

type Described = (SystemTime, u64, Arc<ModelDescription>);

/// Descriptions by path, with the time and size of the file that they are of.
#[derive(Debug, Default)]
pub(super) struct Descriptions(Mutex<HashMap<PathBuf, Described>>);

impl Models {
    /// Returns all models that can be requested, by name.
    pub fn known(&self) -> Vec<KnownModel> {
        let mut known: BTreeMap<String, KnownModel> = BTreeMap::new();
        for model in self.all_loaded() {
            known.insert(
                model.name.to_string(),
                KnownModel::of_file(&model.name, &model.file, (*model.settings).clone()),
            );
        }
        for file in self.stored() {
            known.insert(file.name.clone(), KnownModel::of_stored(file));
        }
        for (alias, name) in &self.options.aliases {
            if let Some(model) = known.get(name) {
                let alias_of = KnownModel { name: alias.clone(), base: Some(name.clone()), ..model.clone() };
                known.insert(alias.clone(), alias_of);
            }
        }
        known.into_values().collect()
    }

    /// Returns the model of this name. `NAME:latest` is Ollama's long form of `NAME`.
    pub fn find_known(&self, name: &str) -> Result<KnownModel, ModelError> {
        let mut known = self.known();
        let names = [Some(name), name.strip_suffix(":latest")];
        let found = names.into_iter().flatten().find_map(|name| known.iter().position(|model| model.name == name));
        found.map(|index| known.swap_remove(index)).ok_or_else(|| self.unknown(name))
    }

    /// Returns what a file says of its model. Reading it takes milliseconds: call this from a thread that may block.
    pub fn description(&self, name: &str, file: &Path) -> Result<Arc<ModelDescription>, ModelError> {
        let failed = |error| ModelError::Load { name: name.to_owned(), error };
        let metadata = std::fs::metadata(file).map_err(|error| failed(error.into()))?;
        let (modified, bytes) = (metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH), metadata.len());
        let kept = |descriptions: &Descriptions| {
            let known = descriptions.0.lock().unwrap_or_else(PoisonError::into_inner);
            known
                .get(file)
                .filter(|(time, size, _)| (*time, *size) == (modified, bytes))
                .map(|(.., kept)| Arc::clone(kept))
        };
        if let Some(kept) = kept(&self.descriptions) {
            return Ok(kept);
        }
        let read = Arc::new(self.loader.describe(file).map_err(failed)?);
        let mut known = self.descriptions.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= DESCRIPTIONS_MAX {
            known.clear();
        }
        known.insert(file.to_owned(), (modified, bytes, Arc::clone(&read)));
        Ok(read)
    }
}

impl KnownModel {
    fn of_stored(stored: ModelFile) -> Self {
        let manifest = stored.manifest.as_ref();
        let (bytes, sha256) = (manifest.map(Manifest::bytes), manifest.map(|manifest| manifest.main.sha256.clone()));
        let licence = manifest.and_then(|manifest| manifest.licence.clone());
        let file = Self::of_file(&stored.name, &stored.path, *stored.settings);
        Self { bytes: bytes.unwrap_or(file.bytes), sha256, licence, base: stored.base, ..file }
    }

    fn of_file(name: &str, file: &Path, settings: ModelSettings) -> Self {
        let metadata = std::fs::metadata(file).ok();
        Self {
            name: name.to_owned(),
            file: file.to_owned(),
            bytes: metadata.as_ref().map_or(0, std::fs::Metadata::len),
            sha256: None,
            modified: metadata.and_then(|facts| facts.modified().ok()).unwrap_or(SystemTime::UNIX_EPOCH),
            licence: None,
            settings,
            base: None,
            adapter: None,
        }
    }
}
