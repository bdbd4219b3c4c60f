//! Addresses of files in the Hugging Face hub.

use std::fmt;

use super::http;
use crate::error::StoreError;
use crate::name::{self, ModelName, is_safe_file_name};

pub(super) const SCHEME: &str = "hf:";

/// One file in a repository of the hub, written `hf:owner/repo/file.gguf@revision`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubFile {
    /// `owner/name`.
    pub repo: String,
    /// A branch, tag or commit.
    pub revision: String,
    /// The path within the repository.
    pub file: String,
}

impl HubFile {
    /// `None` when `spec` is not a hub address at all.
    pub fn parse(spec: &str) -> Option<Result<HubFile, StoreError>> {
        let address = spec.strip_prefix(SCHEME)?;
        Some(parse_address(address).map_err(|why| StoreError::BadHubAddress {
            spec: spec.chars().take(200).collect::<String>().escape_debug().to_string(),
            why,
        }))
    }

    /// The name under which the file is kept unless the user gives another: `owner/file`, with the revision if it is
    /// not the usual one.
    pub fn default_name(&self) -> Result<ModelName, StoreError> {
        let owner = self.repo.split('/').next().unwrap_or_default();
        let stem = self.file_name();
        let stem = stem.strip_suffix(".gguf").unwrap_or(stem);
        let revision = match self.revision.as_str() {
            "main" => String::new(),
            other => format!("@{other}"),
        };
        let (owner, file) = (name::plain(owner), name::plain(&format!("{stem}{revision}")));
        ModelName::parse(&format!("{owner}/{file}"))
    }

    pub(crate) fn file_name(&self) -> &str {
        self.file.rsplit('/').next().unwrap_or_default()
    }

    pub(super) fn url(&self, endpoint: &str) -> String {
        let endpoint = endpoint.trim_end_matches('/');
        // In a revision such as refs/pr/1 the slashes belong to the one path segment.
        let revision = http::escape_path(&self.revision).replace('/', "%2F");
        let file = http::escape_path(&self.file);
        format!("{endpoint}/{}/resolve/{revision}/{file}", self.repo)
    }
}

impl fmt::Display for HubFile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{SCHEME}{}/{}", self.repo, self.file)?;
        match self.revision.as_str() {
            "main" => Ok(()),
            other => write!(formatter, "@{other}"),
        }
    }
}

fn parse_address(address: &str) -> Result<HubFile, &'static str> {
    if address.len() > 500 || address.chars().any(char::is_control) {
        return Err("it is too long or contains control characters");
    }
    let (path, revision) = address.rsplit_once('@').unwrap_or((address, "main"));
    let mut parts = path.splitn(3, '/');
    let (Some(owner), Some(repo), Some(file)) = (parts.next(), parts.next(), parts.next()) else {
        return Err("owner, repository and file are needed");
    };
    let plain = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    if !plain(owner) || !plain(repo) {
        return Err("owner and repository consist of letters, digits and . _ -");
    }
    if !file.split('/').all(is_safe_file_name) {
        return Err("the file's path is not allowed");
    }
    if !revision.split('/').all(plain) {
        return Err("the revision is not a branch, tag or commit");
    }
    Ok(HubFile { repo: format!("{owner}/{repo}"), revision: revision.to_owned(), file: file.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_round_trip_and_name_their_model() {
        for (spec, name) in [
            ("hf:Qwen/Some-GGUF/some-q4.gguf", "qwen/some-q4"),
            ("hf:a/b/sub/dir/x.gguf@v1.0", "a/x@v1.0"),
            ("hf:a/b/x.gguf@refs/pr/1", "a/x@refs-pr-1"),
        ] {
            let file = HubFile::parse(spec).unwrap().unwrap();
            assert_eq!(file.to_string(), spec);
            assert_eq!(file.default_name().unwrap().as_str(), name);
        }
    }

    #[test]
    fn hostile_addresses_are_refused() {
        for spec in [
            "hf:",
            "hf:a",
            "hf:a/b",
            "hf:a/b/",
            "hf:../b/c",
            "hf:a/../c/d",
            "hf:a/b/../c",
            "hf:a/b/c@",
            "hf:a/b/c@../x",
            "hf:a/b/manifest.json",
            "hf:a b/c/d",
            "hf:a/b/c\nd",
            "hf:a?x/b/c",
        ] {
            assert!(HubFile::parse(spec).unwrap().is_err(), "{spec:?}");
        }
        assert!(HubFile::parse("smollm2").is_none());
    }

    #[test]
    fn urls_are_escaped() {
        let file = HubFile { repo: "a/b".to_owned(), revision: "refs/pr/1".to_owned(), file: "x y.gguf".to_owned() };
        assert_eq!(file.url("https://hub.example/"), "https://hub.example/a/b/resolve/refs%2Fpr%2F1/x%20y.gguf");
    }
}
