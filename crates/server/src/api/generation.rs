//! A request while it is answered: one or several choices, what they cost, and their metrics.
//!
//! The same for all endpoints; each endpoint defines the format on the wire.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use ruvllm_runtime::{
    Engine, FinishReason, GenerateError, Piece, Request, RequestError, RequestIdentity, Response, Stream, Tenant,
    Tokenizer, Usage,
};

use crate::access::{Caller, Reservation};
use crate::api::Api;
use crate::api::charges;
use crate::api::failure::{failure, forgotten};
use crate::api::keep_alive::AfterAnswer;
use crate::api::preparing;
use crate::error::ApiError;
use crate::metrics::{Finished, FinishedReason, ModelMetrics};
use crate::models::{ModelError, ModelInUse, Models};
use crate::observe::Notes;

/// Answers being generated. Dropping it ends them; what they used is charged in any case.
#[derive(Debug)]
pub(crate) struct Generation {
    choices: Vec<Choice>,
    model: ModelInUse,
    engine: Engine,
    models: Arc<Models>,
    /// Choices per prompt.
    per_prompt: usize,
    /// The choice that is polled first, so that none starves.
    next: usize,
    /// Dropped last: fields are dropped in order.
    _after: AfterAnswer,
}

/// A piece of a choice, or the end of that choice.
#[derive(Debug)]
pub(crate) struct Part {
    pub choice: usize,
    /// `None` when the choice is complete.
    pub piece: Option<Piece>,
}

/// Why a request is not answered.
enum NotStarted {
    Adapter(ModelError),
    Request(RequestError),
}

impl Generation {
    /// Starts answering all requests together; each has the same number of choices. Rendering, tokenizing and compiling
    /// take time, so they run in the background, and are cancelled when the client disconnects.
    pub(crate) async fn start(
        api: &Api,
        model: ModelInUse,
        caller: &Caller,
        requests: Vec<Request>,
    ) -> Result<Self, ApiError> {
        let per_prompt = requests.first().map_or(1, |request| request.choices);
        let models = &api.models;
        let started = Instant::now();
        let engine = model.generator()?.clone();
        caller.note_model(&model.name);
        if engine.chooses_tokens() && requests.iter().any(|request| !request.unset.seed) {
            caller.ignored().note("seed", "the backend of this model chooses tokens by itself")?;
        }
        let demand = charges::demand(&requests, engine.context());
        let mut reservation = caller.reserve(&demand)?;
        let answer_tokens_max = reservation.answer_tokens_max();
        let tenant = Tenant::new(&caller.tenant);
        let remember = RequestIdentity {
            request: caller.request.as_str().to_owned(),
            response: caller.notes().response().map(str::to_owned),
            user: caller.user().map(str::to_owned),
            learns: caller.learns,
            model: model.name.to_string(),
            ignored: caller.ignored().all(),
            adapter: model.adapter_label(),
            routed: model.routed.as_deref().cloned(),
        };
        if model.is_auto {
            caller.notes().set_chosen(&model.name, model.routed.as_deref());
        }
        if let Some(label) = &remember.adapter {
            caller.notes().set_adapter(label.clone());
        }
        let (memory, engine_of_streams) = (api.memory.clone(), engine.clone());
        let bytes = requests.iter().map(|request| preparing::bytes_of(&request.prompt)).sum();
        let permit = api.preparing.permit(&caller.tenant, bytes).await?;
        let (models_of_adapters, adapted) = (Arc::clone(models), model.clone());
        let streams = permit.run(move |patience| {
            let adapter = models_of_adapters.hold(&adapted, &adapted.adapters).map_err(NotStarted::Adapter)?;
            let requests: Vec<Request> = requests
                .into_iter()
                .map(|request| {
                    let request = Request { tenant: tenant.clone(), adapter: adapter.clone(), ..request };
                    within(request, answer_tokens_max)
                })
                .collect();
            let streams = match memory {
                Some(memory) => engine_of_streams.recorded_streams(&memory, requests, &remember, patience),
                None => engine_of_streams.streams(requests, patience).map_err(RequestError::from),
            };
            streams.map_err(NotStarted::Request)
        });
        let streams = streams.await.ok_or_else(|| ApiError::internal("the request could not be prepared"))?;
        let streams = streams.map_err(|error| match error {
            NotStarted::Adapter(error) => error.into(),
            NotStarted::Request(RequestError::Generate(error)) => Self::failed(models, &model, &error),
            NotStarted::Request(error) => forgotten(&error),
        })?;
        // Known only now: the estimate was low, or a session added to the prompt. Dropping the streams ends them.
        let prompt_tokens: usize =
            streams.iter().step_by(per_prompt.max(1)).map(|s| s.response().usage.prompt_tokens).sum();
        reservation.extend((prompt_tokens as u64).saturating_sub(demand.prompt_tokens))?;
        let reservation = Arc::new(reservation);
        let choice = |(index, stream): (usize, Stream)| {
            let pays_for_prompt = index.is_multiple_of(per_prompt);
            Choice {
                stream,
                is_told: false,
                has_failed: false,
                metrics: model.metrics.clone(),
                notes: Arc::clone(caller.notes()),
                reservation: Arc::clone(&reservation),
                started,
                pays_for_prompt,
                last: None,
            }
        };
        let choices: Vec<Choice> = streams.into_iter().enumerate().map(choice).collect();
        caller.prepared();
        if let Some(first) = choices.first() {
            caller.notes().set_not_enforced(first.stream.not_enforced());
            caller.notes().set_recall(first.stream.response().recall.as_ref());
        }
        let after = AfterAnswer::new(models, &model);
        Ok(Self { choices, model, engine, models: Arc::clone(models), per_prompt, next: 0, _after: after })
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        self.engine.tokenizer()
    }

    /// Returns what the response calls the model: what the request does, unless that left it open.
    pub(crate) fn called(&self, asked: &str) -> String {
        if self.model.is_auto { self.model.name.to_string() } else { asked.to_owned() }
    }

    /// Returns whether the model reasons before it answers.
    pub(crate) fn reasons(&self) -> bool {
        self.engine.reasons()
    }

    /// Returns whether the model's backend chooses tokens by itself.
    pub(crate) fn chooses_tokens(&self) -> bool {
        self.engine.chooses_tokens()
    }

    pub(crate) fn len(&self) -> usize {
        self.choices.len()
    }

    /// Returns the answer of a choice so far.
    pub(crate) fn response(&self, choice: usize) -> &Response {
        self.choices[choice].stream.response()
    }

    /// Returns the usage of all choices. A prompt counts once, however many choices it has.
    pub(crate) fn usage(&self) -> Usage {
        let mut all = Usage::default();
        for (index, choice) in self.choices.iter().enumerate() {
            let usage = choice.stream.response().usage;
            all.completion_tokens += usage.completion_tokens;
            if index.is_multiple_of(self.per_prompt) {
                all.prompt_tokens += usage.prompt_tokens;
                all.cached_tokens += usage.cached_tokens;
                all.truncated_tokens += usage.truncated_tokens;
            }
            all.reasoning_tokens += usage.reasoning_tokens;
        }
        all
    }

    /// Returns the next piece of any choice; `None` when all are complete.
    pub(crate) async fn next(&mut self) -> Option<Result<Part, ApiError>> {
        let part = poll_fn(|context| self.poll(context)).await?;
        Some(part.map_err(|error| Self::failed(&self.models, &self.model, &error)))
    }

    /// Generates to the end.
    pub(crate) async fn finish(&mut self) -> Result<(), ApiError> {
        while let Some(part) = self.next().await {
            part?;
        }
        Ok(())
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Part, GenerateError>>> {
        let count = self.choices.len();
        for offset in 0..count {
            let choice = (self.next + offset) % count;
            if !self.choices[choice].is_told
                && let Poll::Ready(piece) = self.choices[choice].poll(context)
            {
                self.next = choice + 1;
                return Poll::Ready(Some(piece.transpose().map(|piece| Part { choice, piece })));
            }
        }
        if self.choices.iter().all(|choice| choice.is_told) { Poll::Ready(None) } else { Poll::Pending }
    }

    /// Converts an error for the client. A failed engine is loaded again for the next request.
    fn failed(models: &Models, model: &ModelInUse, error: &GenerateError) -> ApiError {
        if matches!(error, GenerateError::EngineFailed) {
            models.forget(model);
        }
        failure(error)
    }
}

/// Limits the answer to the tokens that its key has left. A policy must not raise that limit.
fn within(mut request: Request, answer_tokens_max: Option<u64>) -> Request {
    let Some(tokens_max) = answer_tokens_max.and_then(|tokens| usize::try_from(tokens).ok()) else { return request };
    if request.max_tokens.is_none_or(|asked| asked > tokens_max) {
        request.max_tokens = Some(tokens_max);
        request.unset.max_tokens = false;
    }
    request
}

/// One of the answers.
#[derive(Debug)]
struct Choice {
    stream: Stream,
    /// Whether its end was returned.
    is_told: bool,
    has_failed: bool,
    metrics: ModelMetrics,
    notes: Arc<Notes>,
    reservation: Arc<Reservation>,
    started: Instant,
    /// Whether the prompt is charged with this choice, or with another.
    pays_for_prompt: bool,
    /// When the last token arrived, and how many there were by then.
    last: Option<(Instant, usize)>,
}

impl Choice {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Piece, GenerateError>>> {
        let piece = self.stream.poll_piece(context);
        if let Poll::Ready(piece) = &piece {
            self.has_failed |= matches!(piece, Some(Err(_)));
            self.is_told = matches!(piece, None | Some(Err(_)));
            if let (None, Some(validity)) = (piece, &self.stream.response().validity) {
                self.notes.add_validity(validity.is_ok());
            }
            self.measure();
        }
        piece
    }

    /// Records when tokens arrived. The tokens of one step share its time.
    fn measure(&mut self) {
        let Some(at) = self.stream.last_token_at() else { return };
        let tokens = self.stream.response().tokens.len();
        match self.last {
            None => {
                let timings = self.stream.response().timings;
                self.metrics.started(std::time::Duration::from_secs_f64(timings.queue_ms / 1e3));
                self.metrics.first_token(at - self.started);
            }
            Some((last, before)) if tokens > before => {
                let gap = (at - last) / (tokens - before) as u32;
                (before..tokens).for_each(|_| self.metrics.next_token(gap));
            }
            Some(_) => return,
        }
        self.last = Some((at, tokens));
    }
}

impl Drop for Choice {
    fn drop(&mut self) {
        let Response { usage, finish_reason, .. } = self.stream.response();
        let reason = match finish_reason {
            _ if self.has_failed => FinishedReason::Error,
            Some(FinishReason::Stop) => FinishedReason::Stop,
            Some(FinishReason::Length) => FinishedReason::Length,
            None => FinishedReason::Abort,
        };
        let prompt_tokens = if self.pays_for_prompt { usage.prompt_tokens } else { 0 };
        self.reservation.charge((prompt_tokens + usage.completion_tokens) as u64);
        self.metrics.finished(&Finished {
            reason,
            took: self.started.elapsed(),
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
            generated_tokens: usage.completion_tokens,
        });
    }
}
