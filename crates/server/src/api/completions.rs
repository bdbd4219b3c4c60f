//! `POST /v1/completions`

pub(crate) mod request;
mod response;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use ruvllm_runtime::Prompt;

use self::request::CompletionRequest;
use self::response::{Completion, CompletionChoice, CompletionLogprobs};
use crate::access::Caller;
use crate::api::chat::response::finish_reason;
use crate::api::generation::{Generation, Part};
use crate::api::sse::{self, Events, Wire};
use crate::api::tokens::text_of;
use crate::api::{Api, FINGERPRINT, ids};
use crate::body::Body;
use crate::error::ApiError;
use crate::openapi::ErrorBody;

/// Continue a text
#[utoipa::path(post, path = "/v1/completions", tag = "inference", request_body = CompletionRequest,
    responses((status = 200, description = "The answer, or with `stream: true` its chunks as server-sent events",
                content((Completion = "application/json"), (String = "text/event-stream"))),
              (status = 400, description = "A field is invalid; `param` names it", body = ErrorBody),
              (status = 404, description = "There is no such model", body = ErrorBody),
              (status = 429, description = "Too many requests", body = ErrorBody)))]
pub(crate) async fn completions(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<CompletionRequest>,
) -> Result<Response, ApiError> {
    let requests = request.requests(caller.ignored())?;
    let adapters = request.adapters()?;
    caller.note_user("user", request.user.as_deref())?;
    let id = ids::new("cmpl-");
    caller.note_response(&id);
    let mut generation =
        api.generate(&request.model, request.keep_alive.as_ref(), &adapters, &caller, requests).await?;
    let tokenizer = generation.tokenizer();
    let echo = |prompt: &Prompt| match prompt {
        Prompt::Text(text) => text.clone(),
        Prompt::Tokens(tokens) => text_of(tokens, tokenizer),
        Prompt::Messages(_) => String::new(),
    };
    let wire = CompletionWire {
        id,
        created: ids::now_unix_s(),
        model: generation.called(&request.model),
        includes_usage: request.includes_usage(),
        wants_logprobs: request.logprobs.is_some(),
        echoes: request.echo.unwrap_or(false).then(|| request.prompt.prompts().iter().map(echo).collect()),
        per_prompt: request.n.unwrap_or(1),
        reported: vec![0; generation.len()],
    };
    if request.stream.unwrap_or(false) {
        return Ok(sse::respond(generation, wire, api.lifecycle.clone()));
    }
    generation.finish().await?;
    let choices = (0..generation.len()).map(|index| wire.choice(index, &generation)).collect();
    let usage = Some(Some(generation.usage().into()));
    Ok(Json(wire.completion(choices, usage)).into_response())
}

struct CompletionWire {
    id: String,
    created: u64,
    model: String,
    includes_usage: bool,
    wants_logprobs: bool,
    /// The prompts, if the answers are to include them, and the number of answers per prompt.
    echoes: Option<Vec<String>>,
    per_prompt: usize,
    /// Number of tokens of each choice whose log probabilities were sent.
    reported: Vec<usize>,
}

impl CompletionWire {
    fn completion(
        &self,
        choices: Vec<CompletionChoice>,
        usage: Option<Option<crate::api::usage::UsageField>>,
    ) -> Completion {
        Completion {
            id: self.id.clone(),
            object: "text_completion",
            created: self.created,
            model: self.model.clone(),
            system_fingerprint: FINGERPRINT,
            choices,
            usage,
        }
    }

    fn echo(&self, choice: usize) -> &str {
        self.echoes.as_ref().map_or("", |echoes| &echoes[choice / self.per_prompt])
    }

    /// Returns a whole answer.
    fn choice(&self, index: usize, generation: &Generation) -> CompletionChoice {
        let response = generation.response(index);
        let tokenizer = generation.tokenizer();
        CompletionChoice {
            text: format!("{}{}", self.echo(index), response.text),
            index,
            logprobs: self.wants_logprobs.then(|| CompletionLogprobs::of(response, 0, tokenizer)),
            finish_reason: Some(finish_reason(response)),
        }
    }

    fn send(&self, choice: CompletionChoice, events: &mut Events) {
        events.data(&self.completion(vec![choice], self.includes_usage.then_some(None)));
    }
}

impl Wire for CompletionWire {
    fn begin(&mut self, generation: &Generation, events: &mut Events) {
        if self.echoes.is_some() {
            for index in 0..generation.len() {
                let text = self.echo(index).to_owned();
                self.send(CompletionChoice { text, index, logprobs: None, finish_reason: None }, events);
            }
        }
    }

    fn part(&mut self, part: Part, generation: &Generation, events: &mut Events) {
        let Part { choice: index, piece } = part;
        let response = generation.response(index);
        let new = self.wants_logprobs && response.logprobs.len() > self.reported[index];
        let tokenizer = generation.tokenizer();
        let logprobs = new.then(|| CompletionLogprobs::of(response, self.reported[index], tokenizer));
        self.reported[index] += logprobs.as_ref().map_or(0, |logprobs| logprobs.tokens.len());
        let finish_reason = piece.is_none().then(|| finish_reason(response));
        let text = piece.map(|piece| piece.text().to_owned()).unwrap_or_default();
        if !text.is_empty() || logprobs.is_some() || finish_reason.is_some() {
            self.send(CompletionChoice { text, index, logprobs, finish_reason }, events);
        }
    }

    fn end(&mut self, generation: &Generation, events: &mut Events) {
        if self.includes_usage {
            events.data(&self.completion(Vec::new(), Some(Some(generation.usage().into()))));
        }
        events.text("[DONE]");
    }

    fn fail(&mut self, error: &ApiError, events: &mut Events) {
        events.data(&error.to_openai());
    }
}
