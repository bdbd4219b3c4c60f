//! A repository of the hub, given without a file, and what it holds.

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

    /// The repository of a file.
    pub(crate) fn of(file: &HubFile) -> HubRepo {
        HubRepo { repo: file.repo.clone(), revision: file.revision.clone() }
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

/// The places of files.
pub(crate) fn offer(repo: &HubRepo, files: &[HubEntry]) -> Vec<Source> {
    files.iter().map(|listed| Source::Hub(repo.file(&listed.file))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

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
