//! Talking to a running server.

mod listener;

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use ruvllm_server::access::LocalToken;
use ruvllm_store::default_home;
use serde_json::Value;
use ureq::http::{Response, Uri};
use ureq::{Agent, Body};

/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Of an error, in a message.
const SHOWN_MAX: usize = 300;

/// Which server to ask.
#[derive(Debug, Args)]
pub struct ServerFlags {
    /// Where the server is
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// The API key, if the server wants one; for servers of this machine, the token of its operator by default
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
}

impl ServerFlags {
    /// With the operator's token, where it is for a server of this machine and of this user: no other is to see it.
    pub fn client(self) -> Client {
        let key = self.key.or_else(|| {
            let port = local_port(&self.url)?;
            if listener::is_ours(port) {
                return local_token();
            }
            eprintln!("note: another user's program listens on port {port}: it is not given the operator's token");
            None
        });
        Client::new(&self.url, key)
    }
}

/// None if it cannot be read: then the server tells what it needs.
fn local_token() -> Option<String> {
    let token = LocalToken::read(&default_home().ok()?).ok()?;
    Some(token.text().to_owned())
}

/// The port of a server of this machine.
fn local_port(url: &str) -> Option<u16> {
    let uri = url.parse::<Uri>().ok()?;
    let host = uri.host()?.trim_start_matches('[').trim_end_matches(']');
    let is_local = host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    let usual = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    is_local.then(|| uri.port_u16().unwrap_or(usual))
}

#[derive(Debug)]
pub struct Client {
    agent: Agent,
    url: String,
    key: Option<String>,
}

impl Client {
    /// `url` with or without the `/v1` that other programs want.
    pub fn new(url: &str, key: Option<String>) -> Self {
        let config = Agent::config_builder().timeout_global(Some(TIMEOUT)).http_status_as_error(false);
        let url = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        Self { agent: Agent::new_with_config(config.build()), url, key }
    }

    pub fn get(&self, path: &str) -> Result<Value> {
        let request = self.agent.get(format!("{}{path}", self.url));
        let request = match self.authorization() {
            Some(value) => request.header("authorization", value),
            None => request,
        };
        let response = self.checked(request.call())?;
        serde_json::from_str(&response.into_body().read_to_string()?).context("the answer is not JSON")
    }

    pub fn post(&self, path: &str, body: &Value) -> Result<Response<Body>> {
        let request = self.agent.post(format!("{}{path}", self.url)).header("content-type", "application/json");
        let request = match self.authorization() {
            Some(value) => request.header("authorization", value),
            None => request,
        };
        self.checked(request.send(body.to_string()))
    }

    fn authorization(&self) -> Option<String> {
        self.key.as_ref().map(|key| format!("Bearer {key}"))
    }

    fn checked(&self, response: Result<Response<Body>, ureq::Error>) -> Result<Response<Body>> {
        let response = response.with_context(|| format!("no server answers at {}", self.url))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let said = response.into_body().read_to_string().unwrap_or_default();
        let message = serde_json::from_str::<Value>(&said)
            .ok()
            .and_then(|value| value["error"]["message"].as_str().map(str::to_owned));
        let message: String = message.unwrap_or(said).chars().take(SHOWN_MAX).collect();
        bail!("the server answered {status}: {message}")
    }
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
