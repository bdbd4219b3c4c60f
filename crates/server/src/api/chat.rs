//! `POST /v1/chat/completions`

pub(crate) mod request;
pub(crate) mod response;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};

use self::request::ChatRequest;
use self::response::{
    ChatChoice, ChatChunk, ChatCompletion, ChatLogprobs, ChunkChoice, Delta, Envelope, finish_reason,
};
use crate::access::Caller;
use crate::api::generation::{Generation, Part};
use crate::api::logprobs::TokenLogprobs;
use crate::api::sse::{self, Events, Wire};
use crate::api::{Api, FINGERPRINT, ids};
use crate::body::Body;
use crate::error::ApiError;
use crate::openapi::ErrorBody;

/// Continue a conversation
#[utoipa::path(post, path = "/v1/chat/completions", tag = "inference", request_body = ChatRequest,
    responses((status = 200, description = "The answer, or with `stream: true` its chunks as server-sent events",
                content((ChatCompletion = "application/json"), (String = "text/event-stream"))),
              (status = 400, description = "A field is invalid; `param` names it", body = ErrorBody),
              (status = 404, description = "There is no such model", body = ErrorBody),
              (status = 429, description = "Too many requests", body = ErrorBody)))]
pub(crate) async fn chat_completions(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<ChatRequest>,
) -> Result<Response, ApiError> {
    let asked = request.request(caller.ignored())?;
    let adapters = request.adapters()?;
    caller.note_user("user", request.user.as_deref())?;
    caller.note_user("safety_identifier", request.safety_identifier.as_deref())?;
    let id = ids::new("chatcmpl-");
    caller.note_response(&id);
    let mut generation =
        api.generate(&request.model, request.keep_alive.as_ref(), &adapters, &caller, vec![asked]).await?;
    request.reasoning()?.note(&generation, caller.ignored())?;
    let wants_logprobs = request.logprobs.unwrap_or(false);
    let mut envelope = Envelope {
        id,
        object: "chat.completion",
        created: ids::now_unix_s(),
        model: generation.called(&request.model),
        system_fingerprint: FINGERPRINT,
    };
    if request.streams() {
        envelope.object = "chat.completion.chunk";
        let wire = ChatWire {
            envelope,
            includes_usage: request.includes_usage(),
            wants_logprobs,
            reported: vec![0; generation.len()],
        };
        return Ok(sse::respond(generation, wire, api.lifecycle.clone()));
    }
    generation.finish().await?;
    let tokenizer = generation.tokenizer();
    let choice = |index| ChatChoice::new(index, generation.response(index), tokenizer, wants_logprobs);
    let choices = (0..generation.len()).map(choice).collect();
    let (usage, timings) = (generation.usage().into(), generation.response(0).timings.into());
    Ok(Json(ChatCompletion { envelope, choices, usage, timings }).into_response())
}

/// An answer in chunks.
struct ChatWire {
    envelope: Envelope,
    includes_usage: bool,
    wants_logprobs: bool,
    /// Number of tokens of each choice whose log probabilities were sent.
    reported: Vec<usize>,
}

impl ChatWire {
    fn send(&self, choice: ChunkChoice, events: &mut Events) {
        let usage = self.includes_usage.then_some(None);
        events.data(&ChatChunk { envelope: &self.envelope, choices: vec![choice], usage });
    }

    /// Returns the log probabilities of new tokens.
    fn logprobs(&mut self, choice: usize, generation: &Generation) -> Option<ChatLogprobs> {
        if !self.wants_logprobs {
            return None;
        }
        let response = generation.response(choice);
        let content = TokenLogprobs::of(response, self.reported[choice], generation.tokenizer());
        self.reported[choice] += content.len();
        (!content.is_empty()).then_some(ChatLogprobs { content, refusal: None })
    }
}

impl Wire for ChatWire {
    fn begin(&mut self, generation: &Generation, events: &mut Events) {
        for index in 0..generation.len() {
            self.send(ChunkChoice { index, delta: Delta::first(), logprobs: None, finish_reason: None }, events);
        }
    }

    fn part(&mut self, part: Part, generation: &Generation, events: &mut Events) {
        let Part { choice: index, piece } = part;
        let logprobs = self.logprobs(index, generation);
        let finish_reason = piece.is_none().then(|| finish_reason(generation.response(index)));
        let delta = piece.map(Delta::of).unwrap_or_default();
        if delta != Delta::default() || logprobs.is_some() || finish_reason.is_some() {
            self.send(ChunkChoice { index, delta, logprobs, finish_reason }, events);
        }
    }

    fn end(&mut self, generation: &Generation, events: &mut Events) {
        if self.includes_usage {
            let usage = Some(Some(generation.usage().into()));
            events.data(&ChatChunk { envelope: &self.envelope, choices: Vec::new(), usage });
        }
        events.text("[DONE]");
    }

    fn fail(&mut self, error: &ApiError, events: &mut Events) {
        events.data(&error.to_openai());
    }
}
