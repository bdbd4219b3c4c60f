//! HTTP client for a running server.

pub mod listener;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use ureq::http::Response;
use ureq::{Agent, Body};

/// Maximum time for a whole response.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Maximum length of a server's error text in a message.
const ERROR_CHARS_MAX: usize = 300;

#[derive(Debug)]
pub struct Client {
    agent: Agent,
    url: String,
    key: Option<String>,
}

impl Client {
    /// Accepts the URL with or without the `/v1` that other programs expect.
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
        serde_json::from_str(&response.into_body().read_to_string()?).context("the response is not JSON")
    }

    /// Returns only the status code of a GET request, whatever it is.
    pub fn status(&self, path: &str) -> Result<u16> {
        let response = self.agent.get(format!("{}{path}", self.url)).call();
        let response = response.with_context(|| format!("no server answers at {}", self.url))?;
        Ok(response.status().as_u16())
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
        let text = response.into_body().read_to_string().unwrap_or_default();
        let message = serde_json::from_str::<Value>(&text)
            .ok()
            .and_then(|value| value["error"]["message"].as_str().map(str::to_owned));
        let message: String = message.unwrap_or(text).chars().take(ERROR_CHARS_MAX).collect();
        bail!("the server answered {status}: {message}")
    }
}
