//! Validates request bodies as their endpoints do, as far as no model is needed. Used by the fuzzer and its corpora.

use ruvllm_memory::{Policy, PolicySource};
use ruvllm_runtime::{Prompt, Request, check_policy};
use ruvllm_store::ModelSettings;

use super::adapter_fields::{LoraScale, numbered};
use super::adapters::{LoadLoraRequest, UnloadLoraRequest};
use super::admin::ModelName;
use super::chat::request::{ChatRequest, messages};
use super::completions::request::CompletionRequest;
use super::embeddings::request::EmbeddingRequest;
use super::memory::policies::PolicyBody;
use super::messages::request::{CountTokensRequest, MessagesRequest};
use super::ollama::request::{GenerateRequest, OllamaChatRequest};
use super::ollama::{CopyRequest, CreateRequest, DeleteRequest, EmbedBody, OldEmbedBody, PullRequest, ShowRequest};
use super::rerank::request::{RerankBody, Returned};
use super::responses::{request::ResponsesRequest, store::ResponseStore};
use super::tokens::{DetokenizeRequest, TokenizeRequest};
use super::tools::tools;
use crate::body::{parse, parse_list};
use crate::error::ApiError;
use crate::ignored::IgnoredParams;

/// The endpoints with a body.
pub const PATHS: [&str; 25] = [
    "/v1/chat/completions",
    "/v1/chat/completions/render",
    "/v1/completions",
    "/v1/completions/render",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/tokenize",
    "/v1/detokenize",
    "/v1/policies",
    "/admin/models/load",
    "/v1/rerank",
    "/api/chat",
    "/api/generate",
    "/api/embed",
    "/api/embeddings",
    "/api/show",
    "/api/pull",
    "/api/create",
    "/api/copy",
    "/api/delete",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/lora-adapters",
];

/// What the engine would be asked, if the endpoint generates.
pub fn requests(path: &str, body: &[u8]) -> Result<Vec<Request>, ApiError> {
    ignoring(path, body, &IgnoredParams::default())
}

/// The same, with the parameters that have no effect.
pub fn requests_and_ignored(path: &str, body: &[u8]) -> Result<(Vec<Request>, Vec<String>), ApiError> {
    let ignored = IgnoredParams::default();
    Ok((ignoring(path, body, &ignored)?, ignored.all()))
}

fn ignoring(path: &str, body: &[u8], ignored: &IgnoredParams) -> Result<Vec<Request>, ApiError> {
    match path {
        "/v1/chat/completions" | "/v1/chat/completions/render" => {
            let request = parse::<ChatRequest>(body, ignored)?;
            request.adapters()?;
            Ok(vec![request.request(ignored)?])
        }
        "/v1/completions" | "/v1/completions/render" => {
            let request = parse::<CompletionRequest>(body, ignored)?;
            request.adapters()?;
            request.requests(ignored)
        }
        "/v1/responses" => {
            let request = parse::<ResponsesRequest>(body, ignored)?;
            request.adapters()?;
            Ok(vec![request.ask(&ResponseStore::default(), "", ignored)?.request])
        }
        "/v1/messages" => {
            let request = parse::<MessagesRequest>(body, ignored)?;
            request.adapters()?;
            Ok(vec![request.request(ignored)?])
        }
        "/v1/load_lora_adapter" => parse::<LoadLoraRequest>(body, ignored)?.check().map(|()| Vec::new()),
        "/v1/unload_lora_adapter" => parse::<UnloadLoraRequest>(body, ignored).map(|_| Vec::new()),
        "/lora-adapters" => numbered("scale", &parse_list::<LoraScale>(body, ignored)?).map(|_| Vec::new()),
        "/v1/messages/count_tokens" => {
            let (prompt, tools) = parse::<CountTokensRequest>(body, ignored)?.prompt(ignored)?;
            Ok(vec![Request { tools, ..Request::new(prompt) }])
        }
        "/v1/embeddings" => parse::<EmbeddingRequest>(body, ignored)?.work().map(|_| Vec::new()),
        "/v1/rerank" => parse::<RerankBody>(body, ignored)?.check(Returned::Documents, ignored).map(|_| Vec::new()),
        "/v1/tokenize" => tokenize(&parse(body, ignored)?),
        "/v1/detokenize" => parse::<DetokenizeRequest>(body, ignored).map(|_| Vec::new()),
        "/v1/policies" => policy(parse(body, ignored)?),
        path if path.starts_with("/api/") => ollama(path, body, ignored),
        _ => parse::<ModelName>(body, ignored).map(|_| Vec::new()),
    }
}

/// Without a model, so without the settings of one.
fn ollama(path: &str, body: &[u8], ignored: &IgnoredParams) -> Result<Vec<Request>, ApiError> {
    let settings = ModelSettings::default();
    match path {
        "/api/chat" => {
            let request = parse::<OllamaChatRequest>(body, ignored)?;
            request.adapters()?;
            Ok(vec![request.request(&settings, ignored)?])
        }
        "/api/generate" => {
            let request = parse::<GenerateRequest>(body, ignored)?;
            request.adapters()?;
            Ok(vec![request.request(&settings, ignored)?])
        }
        "/api/embed" => parse::<EmbedBody>(body, ignored)?.work(ignored).map(|_| Vec::new()),
        "/api/embeddings" => parse::<OldEmbedBody>(body, ignored)?.into_new().work(ignored).map(|_| Vec::new()),
        "/api/show" => parse::<ShowRequest>(body, ignored).map(|_| Vec::new()),
        "/api/pull" => parse::<PullRequest>(body, ignored).map(|_| Vec::new()),
        "/api/create" => parse::<CreateRequest>(body, ignored)?.wanted(ignored).map(|_| Vec::new()),
        "/api/copy" => parse::<CopyRequest>(body, ignored).map(|_| Vec::new()),
        _ => parse::<DeleteRequest>(body, ignored).map(|_| Vec::new()),
    }
}

fn tokenize(request: &TokenizeRequest) -> Result<Vec<Request>, ApiError> {
    let prompt = match &request.messages {
        Some(given) => Prompt::Messages(messages(given)?),
        None => Prompt::Text(request.prompt.clone().unwrap_or_default()),
    };
    Ok(vec![Request { tools: tools(request.tools.as_deref(), None, None)?, ..Request::new(prompt) }])
}

fn policy(body: PolicyBody) -> Result<Vec<Request>, ApiError> {
    let source = PolicySource::Manual;
    let confidence = body.confidence.unwrap_or(1.0);
    check_policy(&Policy { source, confidence, ..Policy::new("router", "default", body.parameters) })?;
    Ok(Vec::new())
}
