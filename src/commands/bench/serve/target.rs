//! The server that is measured: any that speaks OpenAI's API.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::client::Client;

#[derive(Debug)]
pub struct Target {
    client: Client,
    pub model: String,
}

/// One request as its client saw it. Times are in milliseconds.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub ttft_ms: f64,
    /// Between pieces, on average: a step may bring several tokens.
    pub inter_token_ms: f64,
    pub total_ms: f64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub generated_tokens: u64,
}

impl Sample {
    fn count(&mut self, usage: &Value) {
        let count = |value: &Value| value.as_u64().unwrap_or(0);
        self.prompt_tokens = count(&usage["prompt_tokens"]);
        self.generated_tokens = count(&usage["completion_tokens"]);
        self.cached_tokens = count(&usage["prompt_tokens_details"]["cached_tokens"]);
    }
}

impl Target {
    /// Finds the server and, if none is named, its model.
    pub fn find(url: &str, key: Option<String>, model: Option<String>) -> Result<Self> {
        let mut target = Self { client: Client::new(url, key), model: model.unwrap_or_default() };
        let models = target.client.get("/v1/models")?;
        let names = || models["data"].as_array().into_iter().flatten();
        if target.model.is_empty() {
            let is_loaded = |card: &&Value| card["loaded"] != json!(false);
            let first = names().find(is_loaded).or_else(|| names().next()).and_then(|card| card["id"].as_str());
            target.model = first.context("the server has no model; name one with --model")?.to_owned();
        }
        Ok(target)
    }

    /// Sends one conversation and reads its answer as it comes.
    pub fn ask(&self, messages: &Value, max_tokens: usize) -> Result<Sample> {
        let body = json!({
            "model": self.model, "messages": messages, "max_tokens": max_tokens, "temperature": 0,
            "stream": true, "stream_options": { "include_usage": true },
        });
        let started = Instant::now();
        let response = self.client.post("/v1/chat/completions", &body)?;
        let (mut sample, mut first, mut last, mut pieces) = (Sample::default(), None, started, 0u64);
        for line in BufReader::new(response.into_body().into_reader()).lines() {
            let line = line.context("the answer was broken off")?;
            let Some(data) = line.strip_prefix("data: ").filter(|data| *data != "[DONE]") else { continue };
            let chunk: Value = serde_json::from_str(data).context("a chunk is not JSON")?;
            if !chunk["error"].is_null() {
                bail!("the server ended the answer with an error: {}", chunk["error"]);
            }
            if chunk["choices"][0]["delta"]["content"].as_str().is_some_and(|text| !text.is_empty()) {
                last = Instant::now();
                first.get_or_insert(last);
                pieces += 1;
            }
            let usage = &chunk["usage"];
            if usage.is_object() {
                sample.count(usage);
            }
        }
        let first = first.unwrap_or_else(Instant::now);
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        sample.ttft_ms = ms(first - started);
        sample.inter_token_ms = ms(last.saturating_duration_since(first)) / (pieces.max(2) - 1) as f64;
        sample.total_ms = ms(started.elapsed());
        Ok(sample)
    }

    /// The same without streaming: all tokens come at the end.
    pub fn ask_whole(&self, messages: &Value, max_tokens: usize) -> Result<Sample> {
        let body = json!({ "model": self.model, "messages": messages, "max_tokens": max_tokens, "temperature": 0 });
        let started = Instant::now();
        let text = self.client.post("/v1/chat/completions", &body)?.into_body().read_to_string()?;
        let total_ms = started.elapsed().as_secs_f64() * 1e3;
        let answer: Value = serde_json::from_str(&text).context("the answer is not JSON")?;
        let mut sample = Sample { ttft_ms: total_ms, total_ms, ..Sample::default() };
        sample.count(&answer["usage"]);
        Ok(sample)
    }

    /// One token of a short conversation, not streamed.
    pub fn round_trip(&self, messages: &Value) -> Result<RoundTrip> {
        let body = json!({ "model": self.model, "messages": messages, "max_tokens": 1, "temperature": 0 });
        let started = Instant::now();
        let response = self.client.post("/v1/chat/completions", &body)?;
        let timing = response.headers().get("server-timing").and_then(|value| value.to_str().ok()).map(str::to_owned);
        let text = response.into_body().read_to_string()?;
        let took_ms = started.elapsed().as_secs_f64() * 1e3;
        let answer: Value = serde_json::from_str(&text).context("the answer is not JSON")?;
        let in_server_ms = timing.and_then(|timing| timing.strip_prefix("total;dur=")?.parse().ok());
        Ok(RoundTrip { took_ms, in_server_ms, in_engine_ms: answer["timings"]["engine_ms"].as_f64() })
    }
}

/// How long a request took here, and of that in the server and its engine, for servers that tell.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrip {
    pub took_ms: f64,
    pub in_server_ms: Option<f64>,
    pub in_engine_ms: Option<f64>,
}
