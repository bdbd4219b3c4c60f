//! `Generate`: the same as `/v1/completions`, streamed, with text and tokens.

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use ruvllm_runtime::{Response as Answer, TokenLogprob as Likely};

use super::given;
use super::messages::{Format, GenerateRequest, GenerateResponse, PromptOf, TokenLogprob, TokenLogprobs, Usage};
use crate::access::Caller;
use crate::api::adapter_fields::AdapterField;
use crate::api::chat::response::finish_reason;
use crate::api::completions::request::{CompletionRequest, PromptField};
use crate::api::failure;
use crate::api::fields::{GrammarField, Stop};
use crate::api::generation::{Generation, Part};
use crate::api::grpc::{Grpc, json_schema, small};
use crate::api::ids;
use crate::api::sse::{self, Events, Wire};
use crate::error::ApiError;
use crate::grpc::{self, Call};

/// Names of fields, where errors come from those of completions.
const NAMES: [(&str, &str); 2] = [("response_format", "json_schema"), ("grammar", "gbnf")];

pub(in crate::api::grpc) async fn generate(
    State(state): State<Grpc>,
    Extension(caller): Extension<Caller>,
    Call(call): Call<GenerateRequest>,
) -> Result<Response, ApiError> {
    let body = call.into_completion(&state)?;
    let requests = body.requests(caller.ignored()).map_err(|error| failure::renamed(error, &NAMES))?;
    caller.note_user("user", body.user.as_deref())?;
    let id = ids::new("cmpl-");
    caller.note_response(&id);
    let started = state.api.generate(&body.model, None, &body.adapters()?, &caller, requests).await;
    let generation = started.map_err(|error| failure::renamed(error, &NAMES))?;
    let wire =
        PieceWire { id, wants_logprobs: body.logprobs.is_some(), reported: vec![0; generation.len()], failure: None };
    Ok(sse::respond(generation, wire, state.api.lifecycle.clone()))
}

impl GenerateRequest {
    fn into_completion(self, state: &Grpc) -> Result<CompletionRequest, ApiError> {
        let prompt = match self.prompt {
            Some(PromptOf::Text(text)) => PromptField::Text(text),
            Some(PromptOf::Tokens(tokens)) => PromptField::Tokens(tokens.ids),
            None => return Err(ApiError::invalid_param("text", "there is no prompt; give text or tokens")),
        };
        let count = |count: Option<u32>| count.map(|count| usize::try_from(count).unwrap_or(usize::MAX));
        let body = CompletionRequest {
            model: given(self.model).map_or_else(|| state.generating(), Ok)?,
            prompt,
            max_tokens: count(self.max_tokens),
            n: count(self.n),
            stop: Some(Stop::Several(self.stop)),
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: count(self.top_k),
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            seed: self.seed,
            logit_bias: Some(self.logit_bias),
            logprobs: count(self.logprobs),
            adapter: self.adapter.map(AdapterField::Name),
            user: given(self.user),
            ..CompletionRequest::default()
        };
        Ok(match self.format {
            None => body,
            Some(Format::Regex(regex)) => CompletionRequest { regex: Some(regex), ..body },
            Some(Format::Gbnf(gbnf)) => CompletionRequest { grammar: Some(GrammarField::Gbnf(gbnf)), ..body },
            Some(Format::JsonSchema(schema)) => {
                CompletionRequest { response_format: Some(json_schema("json_schema", &schema)?), ..body }
            }
        })
    }
}

struct PieceWire {
    id: String,
    wants_logprobs: bool,
    /// Number of tokens of each choice that were sent.
    reported: Vec<usize>,
    failure: Option<ApiError>,
}

impl Wire for PieceWire {
    const CONTENT_TYPE: &'static str = grpc::CONTENT;

    fn begin(&mut self, _: &Generation, _: &mut Events) {}

    fn part(&mut self, Part { choice, piece }: Part, generation: &Generation, events: &mut Events) {
        let answer = generation.response(choice);
        let first = std::mem::replace(&mut self.reported[choice], answer.tokens.len());
        let is_complete = piece.is_none();
        let said = GenerateResponse {
            id: self.id.clone(),
            index: small(choice, u32::MAX),
            text: piece.map(|piece| piece.text().to_owned()).unwrap_or_default(),
            tokens: answer.tokens[first..].to_vec(),
            logprobs: if self.wants_logprobs { TokenLogprobs::of(answer, first) } else { Vec::new() },
            finish_reason: if is_complete { finish_reason(answer).to_owned() } else { String::new() },
            usage: is_complete.then(|| Usage {
                prompt_tokens: small(answer.usage.prompt_tokens, u32::MAX),
                completion_tokens: small(answer.usage.completion_tokens, u32::MAX),
                cached_tokens: small(answer.usage.cached_tokens, u32::MAX),
            }),
        };
        if is_complete || !said.text.is_empty() || !said.tokens.is_empty() {
            events.message(&said);
        }
    }

    fn end(&mut self, _: &Generation, _: &mut Events) {}

    fn fail(&mut self, error: &ApiError, _: &mut Events) {
        self.failure = Some(error.clone());
    }

    // HTTP/2 keeps its connections open itself.
    fn silence(&mut self, _: &mut Events) {}

    fn trailers(&mut self) -> Option<HeaderMap> {
        Some(self.failure.as_ref().map_or_else(grpc::ok, grpc::trailers))
    }
}

impl TokenLogprobs {
    fn of(answer: &Answer, first: usize) -> Vec<Self> {
        let likely = |other: &Likely| TokenLogprob { token: other.token, logprob: other.logprob };
        let tokens = answer.tokens.iter().zip(&answer.logprobs).skip(first);
        let all = tokens.map(|(token, (logprob, top))| Self {
            token: Some(TokenLogprob { token: *token, logprob: *logprob }),
            top: top.iter().map(likely).collect(),
        });
        all.collect()
    }
}
