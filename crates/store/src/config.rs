//! Everything the store takes from its surroundings, as values, so that tests need not change the environment.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::catalogue::Catalogue;

/// What a store works with. [`Store::open`](crate::Store::open) takes [`StoreConfig::from_env`].
#[derive(Debug, Clone)]
pub struct StoreConfig {
    pub home: PathBuf,
    /// Folders of others, made by [`Store::push`](crate::Store::push), in which models are looked for that `home` does not have.
    /// Nothing but models is read there, and nothing is written.
    pub shared: Vec<PathBuf>,
    /// The folder `models` of an Ollama installation, whose models are used where they lie. Only read.
    pub ollama: Option<PathBuf>,
    pub catalogue: Catalogue,
    /// Size of the largest model file that fits into memory, for a choice among several; `None` where it is not known.
    pub file_bytes_max: Option<u64>,
    pub hub: HubConfig,
    pub pip: PipConfig,
}

impl StoreConfig {
    /// With the folders in `RUVLLM_MODELS`, which are separated as in `PATH`, and Ollama's: `OLLAMA_MODELS`, or
    /// `.ollama/models` in the user's home folder.
    pub fn from_env(home: &Path) -> StoreConfig {
        let shared = std::env::var_os("RUVLLM_MODELS").unwrap_or_default();
        StoreConfig {
            home: home.to_owned(),
            shared: std::env::split_paths(&shared).filter(|folder| !folder.as_os_str().is_empty()).collect(),
            ollama: ollama_models(std::env::var_os("OLLAMA_MODELS"), std::env::home_dir()),
            catalogue: Catalogue::built_in(),
            file_bytes_max: None,
            hub: HubConfig::from_env(),
            pip: PipConfig::default(),
        }
    }
}

fn ollama_models(variable: Option<OsString>, user_home: Option<PathBuf>) -> Option<PathBuf> {
    match variable.filter(|value| !value.is_empty()) {
        Some(folder) => Some(PathBuf::from(folder)),
        None => user_home.filter(|home| !home.as_os_str().is_empty()).map(|home| home.join(".ollama/models")),
    }
}

/// How to reach the Hugging Face hub or a mirror of it.
#[derive(Clone)]
pub struct HubConfig {
    pub endpoint: String,
    /// Sent to the endpoint's own host only, never to where it redirects.
    pub token: Option<String>,
    /// For name look-up and for the connection, each. Short, since another source may be waiting.
    pub connect_timeout: Duration,
    /// The longest silence within an answer.
    pub read_timeout: Duration,
    /// How many connections share a large transfer.
    pub connections_max: usize,
    /// What each of them fetches at a time; a transfer holds up to three times this per connection in memory.
    pub piece_bytes: u64,
    /// How often in a row a transfer may break without having moved a byte further.
    pub retries_max: u32,
    /// The wait before the first retry; it doubles with each further one, up to 16 times this.
    pub retry_wait: Duration,
}

impl HubConfig {
    /// `HF_ENDPOINT` and `HF_TOKEN`, where they are set and not empty.
    pub fn from_env() -> HubConfig {
        let set = |name| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        HubConfig {
            endpoint: set("HF_ENDPOINT").unwrap_or_else(|| HubConfig::default().endpoint),
            token: set("HF_TOKEN").map(|token| token.trim().to_owned()),
            ..HubConfig::default()
        }
    }
}

impl Default for HubConfig {
    fn default() -> HubConfig {
        HubConfig {
            endpoint: "https://huggingface.co".to_owned(),
            token: None,
            connect_timeout: Duration::from_secs(5),
            read_timeout: Duration::from_secs(30),
            connections_max: 4,
            piece_bytes: 4 << 20,
            retries_max: 5,
            retry_wait: Duration::from_millis(500),
        }
    }
}

// Configurations end up in logs; tokens must not.
impl fmt::Debug for HubConfig {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("HubConfig")
            .field("endpoint", &self.endpoint)
            .field("token", &self.token.as_ref().map(|_| "<hidden>"))
            .field("connect_timeout", &self.connect_timeout)
            .field("read_timeout", &self.read_timeout)
            .field("connections_max", &self.connections_max)
            .field("piece_bytes", &self.piece_bytes)
            .field("retries_max", &self.retries_max)
            .field("retry_wait", &self.retry_wait)
            .finish()
    }
}

/// How to run the user's pip.
#[derive(Debug, Clone)]
pub struct PipConfig {
    /// Tried in order until one is there: program and leading arguments.
    pub commands: Vec<Vec<String>>,
    /// Set for the child on top of our own environment.
    pub environment: Vec<(OsString, OsString)>,
}

impl Default for PipConfig {
    fn default() -> PipConfig {
        // Isolated: no variable and no folder but Python's own says what `pip` is.
        let commands: [&[&str]; 3] = [&["python3", "-I", "-m", "pip"], &["pip3"], &["pip"]];
        PipConfig {
            commands: commands.iter().map(|words| words.iter().map(|word| word.to_string()).collect()).collect(),
            environment: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_hides_the_token() {
        let config = HubConfig { token: Some("hf_secret".to_owned()), ..HubConfig::default() };
        assert!(!format!("{config:?}").contains("hf_secret"));
    }
}
