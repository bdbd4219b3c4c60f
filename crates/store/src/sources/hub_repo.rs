//! A repository of the hub, given without a file: what it holds, and what of that makes a model.

use std::fmt;

use serde::Deserialize;

use super::http::{Client, NoAnswer, escape_path};
use super::hub::{HubFile, SCHEME};
use super::{MODEL_CONFIG, Source};
use crate::config::HubConfig;
use crate::digest::is_sha256_hex;
use crate::error::{SourceError, StoreError};
use crate::name::{self, ModelName, is_safe_file_name};

/// Far above the listing of any repository of a model.
const LISTING_BYTES_MAX: u64 = 8 << 20;
/// Types of GGUF files by the end of their names, the best first for its size.
const TYPES: [&str; 17] = [
    "q4_k_m", "q5_k_m", "q4_k_s", "q5_k_s", "iq4_xs", "iq4_nl", "q4_0", "q4_1", "q5_0", "q5_1", "q6_k", "q8_0",
    "q3_k_m", "q3_k_l", "q3_k_s", "bf16", "f16",
];
/// What belongs to safetensors, where it is there.
const BESIDE: [&str; 7] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
    INDEX,
];
const INDEX: &str = "model.safetensors.index.json";

/// A repository of the hub, written `hf:owner/repo@revision`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HubRepo {
    /// `owner/name`.
    repo: String,
    /// A branch, tag or commit.
    revision: String,
}

/// A file of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HubEntry {
    pub(crate) file: String,
    pub(crate) bytes: u64,
    /// The hub knows those of large files.
    pub(crate) sha256: Option<String>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    lfs: Option<Large>,
}

#[derive(Deserialize)]
struct Large {
    oid: String,
}

impl HubRepo {
    /// `None` when `spec` is no address of a whole repository.
    pub(crate) fn parse(spec: &str) -> Option<HubRepo> {
        let address = spec.strip_prefix(SCHEME)?;
        let path = address.rsplit_once('@').map_or(address, |(path, _)| path);
        if path.matches('/').count() != 1 {
            return None;
        }
        // The rules for addresses are those of a file's.
        let with_file = match address.rsplit_once('@') {
            Some((path, revision)) => format!("{SCHEME}{path}/{MODEL_CONFIG}@{revision}"),
            None => format!("{SCHEME}{path}/{MODEL_CONFIG}"),
        };
        let HubFile { repo, revision, .. } = HubFile::parse(&with_file)?.ok()?;
        Some(HubRepo { repo, revision })
    }

    /// The name under which its model is kept unless the user gives another.
    pub(crate) fn default_name(&self) -> Result<ModelName, StoreError> {
        let (owner, repo) = self.repo.split_once('/').unwrap_or_default();
        let revision = if self.revision == "main" { String::new() } else { format!("@{}", self.revision) };
        ModelName::parse(&format!("{}/{}", name::plain(owner), name::plain(&format!("{repo}{revision}"))))
    }

    pub(crate) fn file(&self, file: &str) -> HubFile {
        HubFile { repo: self.repo.clone(), revision: self.revision.clone(), file: file.to_owned() }
    }

    /// Whether a source is a file of this repository.
    pub(crate) fn has(&self, source: &str) -> bool {
        let file = HubFile::parse(source).and_then(Result::ok);
        file.is_some_and(|file| file.repo == self.repo && file.revision == self.revision)
    }

    /// Asks the hub which files there are.
    pub(crate) fn list(&self, hub: &HubConfig) -> Result<Vec<HubEntry>, SourceError> {
        let endpoint = hub.endpoint.trim_end_matches('/');
        let revision = escape_path(&self.revision).replace('/', "%2F");
        let url = format!("{endpoint}/api/models/{}/tree/{revision}", self.repo);
        let answer = Client::new(hub)?.get(&url, None).map_err(|error| match error {
            NoAnswer::Final(error) => error,
            NoAnswer::Lost { why } => SourceError::Unreachable { host: hub.endpoint.clone(), why },
        })?;
        let mut response = answer.response;
        match response.status().as_u16() {
            200 => {}
            status @ (401 | 403) => return Err(SourceError::Forbidden { url, status }),
            status @ (404 | 410) => return Err(SourceError::NotFound { url, status }),
            status => return Err(SourceError::Status { url, status }),
        }
        let text = response.body_mut().with_config().limit(LISTING_BYTES_MAX).read_to_vec();
        let unusable = |why: String| SourceError::BadAddress { url: url.clone(), why };
        let text = text.map_err(|error| unusable(format!("its listing cannot be read: {error}")))?;
        let entries: Vec<Entry> =
            serde_json::from_slice(&text).map_err(|error| unusable(format!("it is no listing of files: {error}")))?;
        let files = entries.into_iter().filter(|entry| entry.kind == "file" && is_safe_file_name(&entry.path));
        Ok(files
            .map(|entry| HubEntry {
                file: entry.path,
                bytes: entry.size,
                sha256: entry.lfs.map(|large| large.oid).filter(|oid| is_sha256_hex(oid)),
            })
            .collect())
    }
}

impl fmt::Display for HubRepo {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{SCHEME}{}", self.repo)?;
        if self.revision == "main" { Ok(()) } else { write!(formatter, "@{}", self.revision) }
    }
}

/// Chooses the files of a model: a GGUF file that fits into memory, the best first, or else safetensors with all that
/// belongs to them. The main file comes first. The error says why nothing can be chosen.
pub(crate) fn choose(files: &[HubEntry], memory_bytes: Option<u64>) -> Result<Vec<HubEntry>, String> {
    let ggufs = files.iter().filter(|listed| {
        let name = listed.file.to_ascii_lowercase();
        // Parts of files, and what goes with a model for images, are no models.
        name.ends_with(".gguf") && !name.contains("-of-") && !name.contains("mmproj")
    });
    // Room for keys and values, and for what else runs.
    let fits = |bytes: u64| memory_bytes.is_none_or(|memory| bytes.saturating_add(bytes / 8) <= memory);
    let rank = |listed: &HubEntry| {
        let stem = listed.file.to_ascii_lowercase().trim_end_matches(".gguf").to_owned();
        TYPES.iter().position(|kind| stem.ends_with(kind))
    };
    let mut ranked: Vec<(usize, &HubEntry)> =
        ggufs.map(|listed| (rank(listed).unwrap_or(TYPES.len()), listed)).collect();
    ranked.sort_by_key(|(rank, listed)| (*rank, listed.bytes));
    if let Some((_, listed)) = ranked.iter().find(|(_, listed)| fits(listed.bytes)) {
        return Ok(vec![(*listed).clone()]);
    }
    let named = |name: &str| files.iter().find(|listed| listed.file == name);
    let is_weights = |listed: &&HubEntry| listed.file.starts_with("model") && listed.file.ends_with(".safetensors");
    let weights: Vec<&HubEntry> = match (named("model.safetensors"), named(INDEX)) {
        (Some(single), None) => vec![single],
        (_, Some(_)) => files.iter().filter(is_weights).filter(|listed| listed.file != "model.safetensors").collect(),
        (None, None) => Vec::new(),
    };
    match (named(MODEL_CONFIG), weights.is_empty()) {
        (Some(config), false) => {
            let beside = BESIDE.iter().filter_map(|name| named(name));
            Ok([config].into_iter().chain(beside).chain(weights).cloned().collect())
        }
        _ if ranked.is_empty() => Err("it has neither GGUF files nor config.json with safetensors".to_owned()),
        _ => {
            let smallest = ranked.iter().map(|(_, listed)| listed.bytes).min().unwrap_or(0);
            Err(format!(
                "none of its GGUF files fits into memory (the smallest has {smallest} bytes); name one to fetch it"
            ))
        }
    }
}

/// The places of files.
pub(crate) fn offer(repo: &HubRepo, files: &[HubEntry]) -> Vec<Source> {
    files.iter().map(|listed| Source::Hub(repo.file(&listed.file))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(files: &[(&str, u64)]) -> Vec<HubEntry> {
        files.iter().map(|(file, bytes)| HubEntry { file: (*file).to_owned(), bytes: *bytes, sha256: None }).collect()
    }

    fn chosen(files: &[(&str, u64)], memory: Option<u64>) -> Result<Vec<String>, String> {
        choose(&listed(files), memory).map(|files| files.into_iter().map(|listed| listed.file).collect())
    }

    #[test]
    fn the_best_gguf_that_fits_is_chosen_and_otherwise_safetensors() {
        let ggufs = [
            ("m-F16.gguf", 160),
            ("m-Q8_0.gguf", 80),
            ("m.Q4_K_M.gguf", 45),
            ("m-Q3_K_S.gguf", 30),
            ("mmproj-F16.gguf", 9),
        ];
        assert_eq!(chosen(&ggufs, None).unwrap(), ["m.Q4_K_M.gguf"]);
        assert_eq!(chosen(&ggufs, Some(51)).unwrap(), ["m.Q4_K_M.gguf"]);
        assert_eq!(chosen(&ggufs, Some(40)).unwrap(), ["m-Q3_K_S.gguf"]);
        assert!(chosen(&ggufs, Some(20)).unwrap_err().contains("the smallest has 30 bytes"));
        assert_eq!(chosen(&[("a-q8_0-00001-of-00002.gguf", 1), ("odd.gguf", 5)], None).unwrap(), ["odd.gguf"]);
        let folder = [
            ("README.md", 1),
            ("config.json", 1),
            ("tokenizer.json", 2),
            ("model-00001-of-00002.safetensors", 9),
            ("model-00002-of-00002.safetensors", 9),
            (INDEX, 1),
            ("consolidated.safetensors", 18),
        ];
        let expected = [
            "config.json",
            "tokenizer.json",
            INDEX,
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
        ];
        assert_eq!(chosen(&folder, None).unwrap(), expected);
        assert_eq!(
            chosen(&[("model.safetensors", 9), ("config.json", 1), ("generation_config.json", 1)], None).unwrap(),
            ["config.json", "generation_config.json", "model.safetensors"]
        );
        assert!(chosen(&[("model.safetensors", 9)], None).unwrap_err().contains("neither GGUF"));
    }

    #[test]
    fn addresses_of_repositories_name_their_model() {
        for (spec, name) in [("hf:Qwen/Some-Model", "qwen/some-model"), ("hf:a/b.c@v1", "a/b.c@v1")] {
            let repo = HubRepo::parse(spec).unwrap();
            assert_eq!((repo.to_string().as_str(), repo.default_name().unwrap().as_str()), (spec, name));
            assert!(repo.has(&repo.file("x.gguf").to_string()));
        }
        for other in ["smollm2", "hf:", "hf:a", "hf:a/b/c.gguf", "hf:../b", "hf:a/..", "hf:a b/c", "hf:a/b@../x"] {
            assert_eq!(HubRepo::parse(other), None, "{other}");
        }
    }
}
