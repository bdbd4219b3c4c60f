//! `serve --ollama`: takes the place of Ollama, with the variables that its users have set.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use ruvllm_server::parse_go_duration;

const PORT: u16 = 11434;
const HOST: &str = "127.0.0.1";

#[derive(Debug, Args)]
#[command(next_help_heading = "Ollama")]
pub struct OllamaFlags {
    /// Take Ollama's place: listen on its address as well (127.0.0.1:11434, or OLLAMA_HOST), and let programs on this machine
    /// pull, create and remove models by its API while there are no keys. OLLAMA_KEEP_ALIVE and OLLAMA_CONTEXT_LENGTH are
    /// then defaults of --keep-alive and --context. Its API itself is always on
    #[arg(long)]
    pub ollama: bool,
}

/// What Ollama's variables say.
#[derive(Debug, Default, PartialEq)]
pub struct OllamaEnvironment {
    pub host: String,
    pub port: u16,
    /// `Some(None)` keeps models loaded.
    pub keep_alive: Option<Option<Duration>>,
    pub context: Option<usize>,
}

impl OllamaFlags {
    /// Reads the variables, if they are to be used.
    pub fn environment(&self) -> Result<Option<OllamaEnvironment>> {
        if !self.ollama {
            return Ok(None);
        }
        if std::env::var_os("OLLAMA_ORIGINS").is_some_and(|value| !value.is_empty()) {
            tracing::warn!("OLLAMA_ORIGINS is ignored: name the origins of web pages with --cors-origin");
        }
        OllamaEnvironment::read(|name| std::env::var(name).ok().filter(|value| !value.trim().is_empty())).map(Some)
    }
}

impl OllamaEnvironment {
    fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let (host, port) = match variable("OLLAMA_HOST") {
            Some(text) => parse_host(text.trim()).with_context(|| format!("OLLAMA_HOST is {text:?}"))?,
            None => (HOST.to_owned(), PORT),
        };
        let keep_alive = variable("OLLAMA_KEEP_ALIVE").map(|text| parse_keep_alive(&text)).transpose()?;
        let context = variable("OLLAMA_CONTEXT_LENGTH").map(|text| parse_context(&text)).transpose()?.flatten();
        Ok(Self { host, port, keep_alive, context })
    }
}

/// `HOST`, `HOST:PORT`, `:PORT`, or an address that begins with `http://`.
fn parse_host(text: &str) -> Result<(String, u16)> {
    let (text, port) = match text.split_once("://") {
        Some(("http", rest)) => (rest, 80),
        Some(("https", rest)) => (rest, 443),
        Some(_) => bail!("expected an address such as 127.0.0.1:11434"),
        None => (text, PORT),
    };
    let text = text.split('/').next().unwrap_or_default();
    let (host, port) = match text.rsplit_once(':') {
        // An IPv6 address without a port has more of them.
        Some((host, after)) if !host.contains(':') || host.ends_with(']') => {
            (host, after.parse().context("the port is not a number up to 65535")?)
        }
        _ => (text, port),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Ok((if host.is_empty() { HOST.to_owned() } else { host.to_owned() }, port))
}

/// A negative time keeps models.
fn parse_keep_alive(text: &str) -> Result<Option<Duration>> {
    let seconds = parse_go_duration(text);
    let seconds = seconds.with_context(|| format!("OLLAMA_KEEP_ALIVE is {text:?}; expected a time such as 5m"))?;
    Ok(Duration::try_from_secs_f64(seconds).ok())
}

/// 0 is Ollama's own default.
fn parse_context(text: &str) -> Result<Option<usize>> {
    let tokens: usize =
        text.trim().parse().with_context(|| format!("OLLAMA_CONTEXT_LENGTH is {text:?}; expected a number"))?;
    Ok(Some(tokens).filter(|tokens| *tokens > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_ollama_reads_them() {
        for (text, host, port) in [
            ("0.0.0.0", "0.0.0.0", 11434),
            ("127.0.0.1:9000", "127.0.0.1", 9000),
            (":9000", "127.0.0.1", 9000),
            ("http://localhost", "localhost", 80),
            ("http://localhost:11434/", "localhost", 11434),
            ("[::1]:9000", "::1", 9000),
            ("::1", "::1", 11434),
            ("127.0.0.1:0", "127.0.0.1", 0),
        ] {
            assert_eq!(parse_host(text).unwrap(), (host.to_owned(), port), "{text}");
        }
        for wrong in ["ftp://x", "x:port", "x:99999"] {
            assert!(parse_host(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn variables_are_defaults_and_wrong_ones_are_told() {
        let read = |name: &'static str, value: &'static str| {
            OllamaEnvironment::read(move |asked| (asked == name).then(|| value.to_owned()))
        };
        assert_eq!(read("", "").unwrap(), OllamaEnvironment { host: HOST.into(), port: PORT, ..Default::default() });
        assert_eq!(read("OLLAMA_KEEP_ALIVE", "10m").unwrap().keep_alive, Some(Some(Duration::from_secs(600))));
        assert_eq!(read("OLLAMA_KEEP_ALIVE", "-1").unwrap().keep_alive, Some(None));
        assert_eq!(read("OLLAMA_CONTEXT_LENGTH", "8192").unwrap().context, Some(8192));
        for (name, value) in [("OLLAMA_KEEP_ALIVE", "soon"), ("OLLAMA_CONTEXT_LENGTH", "-5"), ("OLLAMA_HOST", "x:y")] {
            let said = read(name, value).unwrap_err().to_string();
            assert!(said.contains(name), "{said}");
        }
    }
}
