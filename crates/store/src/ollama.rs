//! Models of an Ollama installation, used where they lie and only read.
//!
//! `manifests/HOST/NAMESPACE/MODEL/TAG` are small JSON files that name layers by their SHA-256; the layers are files in
//! `blobs/`. The layer of the model is a GGUF file. Whoever can write there can write anything: digests are checked to be
//! digests, files must lie in `blobs/`, sizes are bounded, and a model's bytes are hashed before they are first used.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::catalogue::Catalogue;
use crate::digest::is_sha256_hex;
use crate::error::StoreError;
use crate::manifest::{self, Manifest, StoredFile};
use crate::name::ModelName;
use crate::progress::Progress;
use crate::settings::{FirstMessage, ModelSettings};
use crate::store::{Listed, ModelFile, Store, sha256_of};

/// Host and namespace of names without either.
const HOST: &str = "registry.ollama.ai";
const NAMESPACE: &str = "library";
const TAG: &str = "latest";
const LAYER: &str = "application/vnd.ollama.image.";

const MANIFEST_BYTES_MAX: u64 = 256 << 10;
/// Of a layer that is not the model: a template, a licence.
const SMALL_LAYER_BYTES_MAX: u64 = 1 << 20;
const LAYERS_MAX: usize = 256;
/// Manifests and folders that are looked at.
const ENTRIES_MAX: usize = 20_000;

/// A manifest, and where it stands.
#[derive(Debug)]
struct Found {
    path: PathBuf,
    /// Host, namespace, model and tag.
    parts: [String; 4],
}

#[derive(Debug, Deserialize)]
struct OllamaManifest {
    layers: Vec<Layer>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
    size: u64,
}

impl Store {
    /// Adds the models of the installation, under names that are not listed yet.
    pub(crate) fn add_ollama(&self, listed: &mut Vec<Listed>) {
        let Some(root) = &self.config.ollama else { return };
        for found in find_manifests(root) {
            let is_free = |name: &ModelName| !listed.iter().any(|item| item.is_model(name.as_str()).is_some());
            let Some(name) = found.names(&self.config.catalogue).into_iter().find(is_free) else { continue };
            listed.push(match found.open(root, &name) {
                Ok(model) => Listed::Model(model),
                Err(why) => Listed::Unusable { folder: found.path, why },
            });
        }
    }

    /// `None` when the installation has no such model. Its bytes are hashed unless that was done before.
    pub(crate) fn find_ollama(
        &self,
        name: &ModelName,
        progress: &mut dyn Progress,
    ) -> Result<Option<ModelFile>, StoreError> {
        let Some(root) = &self.config.ollama else { return Ok(None) };
        let is_it = |found: &Found| found.names(&self.config.catalogue).contains(name);
        let Some(found) = find_manifests(root).into_iter().find(is_it) else { return Ok(None) };
        let model = found.open(root, name)?;
        let Some(manifest) = &model.manifest else { return Ok(None) };
        for adapter in &model.settings.adapters {
            require_named_by_hash(Path::new(adapter), progress)
                .map_err(|why| StoreError::BadOllama { path: found.path.clone(), why })?;
        }
        let checked = self.checked_in_place(name, root.join("blobs"), manifest.clone(), progress)?;
        Ok(Some(ModelFile { path: checked.path, manifest: checked.manifest, ..model }))
    }

    /// The installation, if it has a model of this name.
    pub(crate) fn ollama_with(&self, name: &ModelName) -> Option<&Path> {
        let root = self.config.ollama.as_deref()?;
        find_manifests(root).iter().any(|found| found.names(&self.config.catalogue).contains(name)).then_some(root)
    }
}

/// All manifests, by path. Links are not followed.
fn find_manifests(root: &Path) -> Vec<Found> {
    let mut found = Vec::new();
    let mut left = ENTRIES_MAX;
    let mut waiting = vec![(root.join("manifests"), Vec::new())];
    while let Some((folder, parts)) = waiting.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            let (Some(rest), Ok(kind), Ok(name)) =
                (left.checked_sub(1), entry.file_type(), entry.file_name().into_string())
            else {
                continue;
            };
            left = rest;
            let parts: Vec<String> = parts.iter().cloned().chain([name]).collect();
            match <[String; 4]>::try_from(parts) {
                Ok(parts) if kind.is_file() => found.push(Found { path: entry.path(), parts }),
                Err(parts) if kind.is_dir() && parts.len() < 4 => waiting.push((entry.path(), parts)),
                _ => {}
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

impl Found {
    /// The names that mean it, the best first. A name of the catalogue means the catalogue's model.
    fn names(&self, catalogue: &Catalogue) -> Vec<ModelName> {
        let [host, namespace, model, tag] = &self.parts;
        let model = if tag == TAG { model.clone() } else { format!("{model}:{tag}") };
        let names = match (host.as_str(), namespace.as_str()) {
            (HOST, NAMESPACE) => vec![model.clone(), format!("{NAMESPACE}/{model}")],
            (HOST, namespace) => vec![format!("{namespace}/{model}")],
            (host, namespace) => vec![format!("{host}/{namespace}/{model}")],
        };
        let usable = names.iter().filter(|name| catalogue.find(name).is_none());
        usable.filter_map(|name| ModelName::parse(name).ok()).collect()
    }

    fn open(&self, root: &Path, name: &ModelName) -> Result<ModelFile, StoreError> {
        self.try_open(root, name).map_err(|why| StoreError::BadOllama { path: self.path.clone(), why })
    }

    fn try_open(&self, root: &Path, name: &ModelName) -> Result<ModelFile, String> {
        let text = read_small(&self.path, MANIFEST_BYTES_MAX)?;
        let manifest: OllamaManifest = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
        if manifest.layers.len() > LAYERS_MAX {
            return Err(format!("it has more than {LAYERS_MAX} layers"));
        }
        let mut models = manifest.layers.iter().filter(|layer| layer.kind() == Some("model"));
        let (Some(model), None) = (models.next(), models.next()) else {
            return Err("it does not have one layer with a model".to_owned());
        };
        let blobs = root.join("blobs");
        let path = model.file_in(&blobs)?;
        let metadata = fs::metadata(&path).map_err(|error| error.to_string())?;
        let main = StoredFile {
            file: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            bytes: model.size,
            sha256: model.sha256()?.to_owned(),
            mtime_unix_ns: manifest::mtime_unix_ns(&metadata),
        };
        let manifest_of_ours = Manifest {
            name: name.to_string(),
            main,
            beside: Vec::new(),
            source: format!("ollama:{}", self.parts.join("/")),
            licence: None,
            pulled_at_unix_s: manifest::mtime_unix_ns(&metadata) / 1_000_000_000,
        };
        let settings = Box::new(settings_of(&manifest.layers, &blobs)?);
        Ok(ModelFile { path, name: name.to_string(), manifest: Some(manifest_of_ours), settings, base: None })
    }
}

impl Layer {
    fn kind(&self) -> Option<&str> {
        self.media_type.strip_prefix(LAYER)
    }

    fn sha256(&self) -> Result<&str, String> {
        let hex = self.digest.strip_prefix("sha256:").filter(|hex| is_sha256_hex(hex));
        hex.ok_or_else(|| "a digest is not sha256: and 64 lower-case hex digits".to_owned())
    }

    /// The file, which lies in the folder also if it is a link, and has the size that the manifest says.
    fn file_in(&self, blobs: &Path) -> Result<PathBuf, String> {
        let path = blobs.join(format!("sha256-{}", self.sha256()?));
        let shown = |error: std::io::Error| format!("{} cannot be read: {error}", path.display());
        let folder = blobs.canonicalize().map_err(shown)?;
        if !path.canonicalize().map_err(shown)?.starts_with(folder) {
            return Err(format!("{} leads out of its folder", path.display()));
        }
        let metadata = fs::metadata(&path).map_err(shown)?;
        if !metadata.is_file() || metadata.len() != self.size {
            return Err(format!("{} is not a file of {} bytes", path.display(), self.size));
        }
        Ok(path)
    }

    fn text_in(&self, blobs: &Path) -> Result<String, String> {
        if self.size > SMALL_LAYER_BYTES_MAX {
            return Err(format!("the layer {} is larger than {SMALL_LAYER_BYTES_MAX} bytes", self.media_type));
        }
        let bytes = read_small(&self.file_in(blobs)?, SMALL_LAYER_BYTES_MAX)?;
        String::from_utf8(bytes).map_err(|_| format!("the layer {} is not text", self.media_type))
    }
}

fn settings_of(layers: &[Layer], blobs: &Path) -> Result<ModelSettings, String> {
    let mut settings = ModelSettings::default();
    for layer in layers {
        let json = |error: serde_json::Error| format!("the layer {} is not valid: {error}", layer.media_type);
        match layer.kind() {
            Some("params") => {
                let parameters: Map<String, Value> = serde_json::from_str(&layer.text_in(blobs)?).map_err(json)?;
                settings.parameters.extend(parameters);
            }
            Some("messages") => {
                let messages: Vec<FirstMessage> = serde_json::from_str(&layer.text_in(blobs)?).map_err(json)?;
                settings.messages.extend(messages);
            }
            Some("system") => settings.system = Some(layer.text_in(blobs)?),
            Some("template" | "prompt") => settings.template = Some(layer.text_in(blobs)?),
            Some("license") => settings.license.push(layer.text_in(blobs)?),
            Some("adapter") => settings.adapters.push(layer.file_in(blobs)?.to_string_lossy().into_owned()),
            _ => {}
        }
    }
    Ok(settings)
}

/// Hashes a blob, whose name says what its hash has to be.
fn require_named_by_hash(path: &Path, progress: &mut dyn Progress) -> Result<(), String> {
    let bytes = fs::metadata(path).map_err(|error| error.to_string())?.len();
    let got = sha256_of(path, bytes, progress).map_err(|error| error.to_string())?;
    let expected = path.file_name().and_then(|name| name.to_str()?.strip_prefix("sha256-"));
    if expected == Some(got.as_str()) { Ok(()) } else { Err(format!("{} has the SHA-256 {got}", path.display())) }
}

fn read_small(path: &Path, bytes_max: u64) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(bytes_max + 1).read_to_end(&mut bytes));
    read.map_err(|error| error.to_string())?;
    if bytes.len() as u64 > bytes_max { Err(format!("it is larger than {bytes_max} bytes")) } else { Ok(bytes) }
}
