//! The measured server: any with the OpenAI API.

use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::client::Client;
use crate::exit::Interrupted;

const SERVICE_UNAVAILABLE: u16 = 503;
/// Interval between looks at `/ready`, and how long to wait for it.
const READY_INTERVAL: Duration = Duration::from_millis(200);
const READY_WAIT_MAX: Duration = Duration::from_secs(600);

#[derive(Debug)]
pub struct Target {
    client: Client,
    pub model: String,
    /// Numbers of the adapters that requests use in turn.
    pub adapters: Vec<u64>,
}

/// One request as seen by its client.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub ttft_ms: f64,
    /// Average time between pieces; one piece can be several tokens.
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
    /// Waits until the server is ready, and chooses its only model if none is named.
    pub fn find(url: &str, key: Option<String>, model: Option<String>, interrupted: &AtomicBool) -> Result<Self> {
        let client = Client::new(url, key);
        wait_until_ready(&client, interrupted)?;
        let model = match model {
            Some(model) => model,
            None => only_model(&client.get("/v1/models")?)?,
        };
        Ok(Self { client, model, adapters: Vec::new() })
    }

    /// Lets requests use the server's adapters in turn. Names them by their numbers, as llama-server does too.
    pub fn use_adapters(&mut self) -> Result<()> {
        let list = self.client.get("/lora-adapters").context("the server does not list its adapters")?;
        self.adapters = list.as_array().into_iter().flatten().filter_map(|one| one["id"].as_u64()).collect();
        if self.adapters.is_empty() {
            bail!("the server has no adapters: start it with --adapter NAME=PATH (llama-server: --lora FILE.gguf)");
        }
        Ok(())
    }

    /// The `number`-th request of a run.
    fn body(&self, number: usize, messages: &Value, max_tokens: usize) -> Value {
        let mut body = json!({ "model": self.model, "messages": messages, "max_tokens": max_tokens, "temperature": 0 });
        if !self.adapters.is_empty() {
            body["lora"] = json!([{ "id": self.adapters[number % self.adapters.len()], "scale": 1.0 }]);
        }
        body
    }

    /// Sends one conversation and reads the streamed answer.
    pub fn ask(&self, number: usize, messages: &Value, max_tokens: usize) -> Result<Sample> {
        let mut body = self.body(number, messages, max_tokens);
        body["stream"] = json!(true);
        body["stream_options"] = json!({ "include_usage": true });
        let started = Instant::now();
        let response = self.client.post("/v1/chat/completions", &body)?;
        let (mut sample, mut first, mut last, mut pieces) = (Sample::default(), None, started, 0u64);
        for line in BufReader::new(response.into_body().into_reader()).lines() {
            let line = line.context("the response was interrupted")?;
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

    /// Does the same without streaming: all tokens arrive at the end.
    pub fn ask_whole(&self, number: usize, messages: &Value, max_tokens: usize) -> Result<Sample> {
        let body = self.body(number, messages, max_tokens);
        let started = Instant::now();
        let text = self.client.post("/v1/chat/completions", &body)?.into_body().read_to_string()?;
        let total_ms = started.elapsed().as_secs_f64() * 1e3;
        let answer: Value = serde_json::from_str(&text).context("the response is not JSON")?;
        let mut sample = Sample { ttft_ms: total_ms, total_ms, ..Sample::default() };
        sample.count(&answer["usage"]);
        Ok(sample)
    }

    /// Requests one token of a short conversation, not streamed.
    pub fn round_trip(&self, messages: &Value) -> Result<RoundTrip> {
        let body = self.body(0, messages, 1);
        let started = Instant::now();
        let response = self.client.post("/v1/chat/completions", &body)?;
        let timing = response.headers().get("server-timing").and_then(|value| value.to_str().ok()).map(str::to_owned);
        let text = response.into_body().read_to_string()?;
        let took_ms = started.elapsed().as_secs_f64() * 1e3;
        let answer: Value = serde_json::from_str(&text).context("the response is not JSON")?;
        let in_server_ms = timing.and_then(|timing| timing.strip_prefix("total;dur=")?.parse().ok());
        Ok(RoundTrip { took_ms, in_server_ms, in_engine_ms: answer["timings"]["engine_ms"].as_f64() })
    }
}

/// How long a request took, in all and, if the server reports it, in the server and in its engine.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrip {
    pub took_ms: f64,
    pub in_server_ms: Option<f64>,
    pub in_engine_ms: Option<f64>,
}

/// Waits while models are being loaded. Servers without `/ready` count as ready.
fn wait_until_ready(client: &Client, interrupted: &AtomicBool) -> Result<()> {
    let started = Instant::now();
    while client.status("/ready")? == SERVICE_UNAVAILABLE {
        if interrupted.load(Ordering::Relaxed) {
            return Err(Interrupted.into());
        }
        if started.elapsed() > READY_WAIT_MAX {
            bail!("the server is not ready after {} s", READY_WAIT_MAX.as_secs());
        }
        thread::sleep(READY_INTERVAL);
    }
    Ok(())
}

/// Returns the only loaded model, or the only model. Several are an error: it must be clear which one is measured.
fn only_model(list: &Value) -> Result<String> {
    let cards = || list["data"].as_array().into_iter().flatten().filter(|card| card["parent"].is_null());
    let names = |cards: &mut dyn Iterator<Item = &Value>| -> Vec<String> {
        cards.filter_map(|card| card["id"].as_str()).map(str::to_owned).collect()
    };
    let loaded = names(&mut cards().filter(|card| card["loaded"] != json!(false)));
    let candidates = if loaded.is_empty() { names(&mut cards()) } else { loaded };
    match &candidates[..] {
        [] => bail!("the server has no models"),
        [model] => Ok(model.clone()),
        several => bail!("the server has several models: {}; name one with --model", several.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_loaded_model_is_chosen_and_several_are_an_error() {
        let card = |id: &str, loaded: bool| json!({ "id": id, "loaded": loaded });
        let choose = |cards: &[Value]| only_model(&json!({ "data": cards })).map_err(|error| error.to_string());
        assert_eq!(choose(&[card("a", false), card("b", true)]), Ok("b".to_owned()));
        assert_eq!(choose(&[card("a", false)]), Ok("a".to_owned()));
        let alias = json!({ "id": "gpt", "loaded": true, "parent": "b" });
        assert_eq!(choose(&[card("b", true), alias]), Ok("b".to_owned()));
        for several in [[card("a", true), card("b", true)], [card("a", false), card("b", false)]] {
            let error = choose(&several).expect_err("it is not clear which");
            assert!(error.contains("a, b") && error.contains("--model"), "{error}");
        }
        assert!(choose(&[]).is_err());
        // Other servers do not say what is loaded.
        assert_eq!(choose(&[json!({ "id": "c" })]), Ok("c".to_owned()));
    }
}
