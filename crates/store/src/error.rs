//! What can go wrong, each with what to do about it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why an operation of the store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    #[error("`{name}` cannot name a model: {why}; choose another name")]
    BadName { name: String, why: &'static str },

    #[error(
        "`{spec}` is not a hub address: {why}; write hf:owner/repo or hf:owner/repo/file.gguf, optionally with @revision"
    )]
    BadHubAddress { spec: String, why: &'static str },

    #[error("no model is called `{name}`{}; known models: {}", did_you_mean(.suggestion), .known.join(", "))]
    Unknown { name: String, suggestion: Option<String>, known: Vec<String> },

    #[error("model `{name}` is not on this machine yet; fetch it with `ruvllm pull {spec}`")]
    NotPulled { name: String, spec: String },

    #[error("there is no file {}; check the path, or give the name of a model", .path.display())]
    NoSuchFile { path: PathBuf },

    #[error(
        "{} is a folder, which is used where it lies; to keep a copy, write one file with `ruvllm quantize {} FILE --to bf16` \
         and pull that",
        .path.display(), .path.display()
    )]
    IsFolder { path: PathBuf },

    #[error("model `{name}` could not be fetched from any of its sources:{}", listed(.failures))]
    AllSourcesFailed { name: String, failures: Vec<SourceFailure> },

    #[error(
        "model `{name}` is damaged: {} should have {expected} but has {got}; \
         fetch it anew with `ruvllm pull {name}`, or delete it with `ruvllm rm {name}`",
        .path.display()
    )]
    Damaged { name: String, path: PathBuf, expected: String, got: String },

    #[error(
        "the manifest {} is unusable: {why}; fetch the model anew with `ruvllm pull`, or delete that folder",
        .path.display()
    )]
    BadManifest { path: PathBuf, why: String },

    #[error(
        "the name `{name}` is already taken by {by}; choose another (`ruvllm pull --name`), or remove that one first"
    )]
    NameTaken { name: String, by: String },

    #[error(
        "{} is not used: it says what this program does, but {why}; if you trust what is in it: {command} {}",
        .path.display(), .path.display()
    )]
    OthersCanWrite { path: PathBuf, why: String, command: &'static str },

    #[error("`{name}` is in {}, a folder of RUVLLM_MODELS, which is only read; remove it there", .folder.display())]
    Shared { name: String, folder: PathBuf },

    #[error("`{name}` belongs to Ollama ({}), whose models are only read; remove it with `ollama rm`", .folder.display())]
    OfOllama { name: String, folder: PathBuf },

    #[error("the manifest {} of Ollama cannot be used: {why}; pull the model again with Ollama, or remove it there", .path.display())]
    BadOllama { path: PathBuf, why: String },

    #[error("{} cannot be used: {why}; create the model again, or delete that file", .path.display())]
    BadDerived { path: PathBuf, why: String },

    #[error("`{by}` is made from `{name}` and would be lost with it; remove that first")]
    IsBase { name: String, by: String },

    #[error(
        "the settings of `{name}` are longer than {bytes_max} bytes; shorten its system message, messages or licence"
    )]
    TooLong { name: String, bytes_max: u64 },

    #[error("`{spec}` is a file; over the network only models of the catalogue and of the hub can be pulled")]
    NotRemote { spec: String },

    #[error(
        "no adapter is called `{name}`{}; {}", did_you_mean(.suggestion),
        if .known.is_empty() { "there are none: fetch one with `ruvllm adapters pull`".to_owned() }
        else { format!("there are: {}", .known.join(", ")) }
    )]
    UnknownAdapter { name: String, suggestion: Option<String>, known: Vec<String> },

    #[error(
        "`{spec}` is no adapter: {why}; give a folder with adapter_config.json and adapter_model.safetensors, a GGUF file, or \
         hf:owner/repo"
    )]
    NoAdapter { spec: String, why: String },

    #[error(
        "adapter `{name}` is damaged: {why}; fetch it anew with `ruvllm adapters pull`, or delete it with \
         `ruvllm adapters rm {name}`"
    )]
    AdapterDamaged { name: String, why: String },

    #[error("RUVLLM_MODELS names {}, which has no folder `models`; mount it, or take it out of RUVLLM_MODELS", .folder.display())]
    NoSharedFolder { folder: PathBuf },

    #[error("another process is working on model `{name}`; wait until it has finished and try again")]
    Busy { name: String },

    #[error(
        "not enough space for model files in {}: {needed_bytes} bytes are needed, {} are free; \
         free some space, or set RUVLLM_HOME to a folder on a larger disk",
        .path.display(), or_unknown(.free_bytes)
    )]
    DiskFull { path: PathBuf, needed_bytes: u64, free_bytes: Option<u64> },

    #[error("the home folder is unknown; set RUVLLM_HOME to the folder where models shall be kept")]
    NoHome,

    #[error("cancelled; a later pull goes on where this one stopped")]
    Cancelled,

    #[error("cannot {action} {}: {source}", .path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
}

impl StoreError {
    pub(crate) fn io<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> StoreError + use<'a> {
        move |source| StoreError::Io { action, path: path.to_owned(), source }
    }
}

/// One source and the reason why it did not deliver.
#[derive(Debug)]
pub struct SourceFailure {
    pub source: String,
    pub why: SourceError,
}

impl fmt::Display for SourceFailure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.source, self.why)
    }
}

/// Why one source did not deliver; another one may.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    #[error("{host} cannot be reached ({why}); check the network, a proxy, or HF_ENDPOINT")]
    Unreachable { host: String, why: String },

    #[error(
        "{url} may not be read (status {status}); set HF_TOKEN to a token with access, and accept the model's terms on its page"
    )]
    Forbidden { url: String, status: u16 },

    #[error("{url} does not exist (status {status}); check the repository, file and revision")]
    NotFound { url: String, status: u16 },

    #[error("{url} answered with status {status}; try again later")]
    Status { url: String, status: u16 },

    #[error("{url} cannot be used: {why}")]
    BadAddress { url: String, why: String },

    #[error("{url} does not say how large the file is, so neither space nor completeness can be checked")]
    SizeNotStated { url: String },

    #[error(
        "the transfer broke at byte {done_bytes} after {attempts} attempts ({why}); pull again to go on from there"
    )]
    Broken { done_bytes: u64, attempts: u32, why: String },

    #[error("expected {expected_bytes} bytes, got {got_bytes}")]
    WrongSize { expected_bytes: u64, got_bytes: u64 },

    #[error("expected SHA-256 {expected}, got {got}; the bytes were discarded")]
    WrongHash { expected: String, got: String },

    #[error("the file does not begin like a GGUF file; it may be an error page or a pointer")]
    NotGguf,

    #[error("the file does not begin like JSON; it may be an error page")]
    NotJson,

    #[error("nothing in it can be run: {why}")]
    NothingToRun { why: String },

    #[error("pip is needed for this source but was not found (tried {}); install Python 3 with pip", .tried.join(", "))]
    PipMissing { tried: Vec<String> },

    #[error("`{command}` failed ({status}): {last_lines}")]
    PipFailed { command: String, status: String, last_lines: String },

    #[error("the package {package} cannot be used: {why}")]
    BadWheel { package: String, why: String },

    #[error("cannot read {}: {source}", .path.display())]
    Local { path: PathBuf, source: io::Error },
}

fn did_you_mean(suggestion: &Option<String>) -> String {
    suggestion.as_ref().map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

fn listed(failures: &[SourceFailure]) -> String {
    failures.iter().map(|failure| format!("\n  - {failure}")).collect()
}

fn or_unknown(bytes: &Option<u64>) -> String {
    bytes.map_or("an unknown number".to_owned(), |bytes| bytes.to_string())
}
