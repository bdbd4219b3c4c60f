//! Which server a command talks to.

use std::net::IpAddr;

use clap::Args;
use ruvllm_server::access::LocalToken;
use ruvllm_store::default_home;
use ureq::http::Uri;

use crate::client::{Client, listener};

#[derive(Debug, Args)]
pub struct ServerFlags {
    /// URL of the server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// API key, if the server requires one [default for servers on this machine: the operator's token]
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
}

impl ServerFlags {
    /// Returns a client. The operator's token is sent only to a server that this user runs on this machine.
    pub fn client(self) -> Client {
        let key = self.key.or_else(|| {
            let port = local_port(&self.url)?;
            if listener::is_ours(port) {
                return local_token();
            }
            eprintln!("note: another user's program listens on port {port}; the operator's token is not sent to it");
            None
        });
        Client::new(&self.url, key)
    }
}

/// Reads the operator's token. `None` if that fails: the server then says what it needs.
fn local_token() -> Option<String> {
    let token = LocalToken::read(&default_home().ok()?).ok()?;
    Some(token.text().to_owned())
}

/// Returns the port, if the URL names this machine.
fn local_port(url: &str) -> Option<u16> {
    let uri = url.parse::<Uri>().ok()?;
    let host = uri.host()?.trim_start_matches('[').trim_end_matches(']');
    let is_local = host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    let default = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    is_local.then(|| uri.port_u16().unwrap_or(default))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operators_token_goes_to_this_machine_only() {
        for url in ["http://127.0.0.1:8080", "http://localhost:1/v1", "https://LOCALHOST", "http://[::1]:8080/"] {
            assert!(local_port(url).is_some(), "{url}");
        }
        for url in [
            "http://192.168.1.7:8080",
            "http://localhost.evil.example",
            "http://127.0.0.1@evil.example/",
            "http://evil.example/127.0.0.1",
            "http://127.0.0.1.evil.example",
            "evil.example",
            "",
        ] {
            assert!(local_port(url).is_none(), "{url}");
        }
    }
}
