//! Telling routers which prefixes are cached.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use anyhow::Result;
use clap::{Args, ValueEnum};
use ruvllm_runtime::{PrefixEvent, PrefixListener};
use ruvllm_server::kv_events::{AdapterNames, EventLayout, KvEvents};
use ruvllm_server::listen::Bound;
use tokio::sync::mpsc::Receiver;

use crate::output;

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Behind a router")]
pub struct KvEventFlags {
    /// Publish at this address which prefixes of the first generating model are cached, over ZeroMQ in vLLM's format,
    /// such as tcp://127.0.0.1:5557 (tcp://*:5557 is all addresses of this machine). Whoever can reach it reads the
    /// tokens of all prompts
    #[arg(long, value_name = "ADDRESS", value_parser = parse_endpoint)]
    kv_events: Option<Endpoint>,
    /// Send again at this address what a subscriber has missed, as far as the last 10,000 messages reach
    #[arg(long, value_name = "ADDRESS", value_parser = parse_endpoint, requires = "kv_events")]
    kv_events_replay: Option<Endpoint>,
    /// Topic of the messages [default: kv@, the server's address, @ and the first model]
    #[arg(long, value_name = "TOPIC", requires = "kv_events")]
    kv_events_topic: Option<String>,
    /// Events as maps, or as arrays for consumers that only know vLLM before June 2026
    #[arg(long, value_name = "LAYOUT", default_value = "maps", requires = "kv_events")]
    kv_events_layout: LayoutFlag,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LayoutFlag {
    Maps,
    Arrays,
}

/// A host and a port.
#[derive(Clone, Debug)]
struct Endpoint {
    host: String,
    port: u16,
}

/// The engine's end: the first generating model that is loaded is listened to, whenever it is loaded again.
#[derive(Clone, Debug)]
pub struct ListenedTo {
    listener: PrefixListener,
    file: Arc<OnceLock<PathBuf>>,
}

/// What the listener hears.
pub struct Heard(Receiver<Vec<PrefixEvent>>);

impl ListenedTo {
    /// Returns the listener, if the model in this file is the one.
    pub fn listener_of(&self, file: &Path) -> Option<PrefixListener> {
        (self.file.get_or_init(|| file.to_owned()) == file).then(|| self.listener.clone())
    }
}

impl KvEventFlags {
    /// Makes what is listened with, if that is wanted.
    pub fn listen(&self) -> Option<(ListenedTo, Heard)> {
        self.kv_events.as_ref()?;
        let (listener, heard) = PrefixListener::new();
        Some((ListenedTo { listener, file: Arc::default() }, Heard(heard)))
    }

    /// Begins to publish, and says where.
    pub async fn publish(
        &self,
        Heard(heard): Heard,
        names: AdapterNames,
        (api, model): (&str, Option<&str>),
    ) -> Result<()> {
        let Some(endpoint) = &self.kv_events else { return Ok(()) };
        let default = || {
            format!("kv@{}@{}", api.split_once("://").map_or(api, |(_, address)| address), model.unwrap_or_default())
        };
        let topic = self.kv_events_topic.clone().unwrap_or_else(default);
        let layout = match self.kv_events_layout {
            LayoutFlag::Maps => EventLayout::Maps,
            LayoutFlag::Arrays => EventLayout::Arrays,
        };
        let events = KvEvents::new(topic, layout);
        let bound = endpoint.bind("--kv-events").await?;
        output::remark(&format!("KV events on tcp://{}", bound.address()));
        tokio::spawn(events.clone().serve_subscribers(bound.into_socket()));
        if let Some(endpoint) = &self.kv_events_replay {
            let bound = endpoint.bind("--kv-events-replay").await?;
            output::remark(&format!("KV events once more on tcp://{}", bound.address()));
            tokio::spawn(events.clone().serve_replays(bound.into_socket()));
        }
        tokio::spawn(events.publish(heard, names));
        Ok(())
    }
}

impl Endpoint {
    async fn bind(&self, flag: &'static str) -> Result<Bound> {
        let bound = Bound::bind(&self.host, self.port, flag).await?;
        if bound.is_public() {
            let address = bound.address();
            tracing::warn!(%address, "{flag} can be reached from other machines, without keys or encryption: whoever connects reads \
                                      the tokens of all prompts");
        }
        Ok(bound)
    }
}

/// Reads an address as ZeroMQ's users write it, with or without tcp://.
fn parse_endpoint(text: &str) -> Result<Endpoint, String> {
    let expected = || format!("expected an address and a port, such as tcp://127.0.0.1:5557, and not {text}");
    let address = text.strip_prefix("tcp://").unwrap_or(text);
    let (host, port) = address.rsplit_once(':').ok_or_else(expected)?;
    let port = port.parse().map_err(|_| expected())?;
    let host = match host.trim_start_matches('[').trim_end_matches(']') {
        "" => return Err(expected()),
        "*" => "0.0.0.0",
        host if host.contains('/') => return Err(expected()),
        host => host,
    };
    Ok(Endpoint { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_zeromq_writes_them() {
        for (text, host, port) in
            [("tcp://*:5557", "0.0.0.0", 5557), ("127.0.0.1:0", "127.0.0.1", 0), ("tcp://[::1]:5558", "::1", 5558)]
        {
            let endpoint = parse_endpoint(text).unwrap();
            assert_eq!((endpoint.host.as_str(), endpoint.port), (host, port), "{text}");
        }
        for text in ["", "5557", "tcp://:5557", "ipc:///tmp/events", "tcp://host:99999", "host"] {
            assert!(parse_endpoint(text).is_err(), "{text}");
        }
    }
}
