//! `Generate`: what a request means as one of our own, and its answers as tokens.

use std::ops::Range;

use axum::Extension;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use ruvllm_runtime::{Request, Response as Answer, Tokenizer};

use super::messages::{
    Constraint, GenerateComplete, GenerateRequest, GenerateResponse, GenerateStreamChunk, Generated, MatchedStop,
    OutputLogProbs, SamplingParams, TopLogProbs,
};
use super::refuse;
use crate::access::Caller;
use crate::api::adapter_fields::AdapterField;
use crate::api::chat::response::finish_reason;
use crate::api::completions::request::{CompletionRequest, PromptField};
use crate::api::failure;
use crate::api::feedback::check_id;
use crate::api::fields::{GrammarField, Stop};
use crate::api::generation::{Generation, Part};
use crate::api::grpc::running::Entered;
use crate::api::grpc::{Grpc, json_schema, small};
use crate::api::ids;
use crate::api::sse::{self, Events, Wire};
use crate::error::ApiError;
use crate::grpc::{self, Call};
use crate::ignored::IgnoredParams;

/// Names of fields, where errors come from those of completions.
const NAMES: [(&str, &str); 14] = [
    ("prompt", "tokenized.input_ids"),
    ("max_tokens", "sampling_params.max_new_tokens"),
    ("temperature", "sampling_params.temperature"),
    ("top_p", "sampling_params.top_p"),
    ("top_k", "sampling_params.top_k"),
    ("min_p", "sampling_params.min_p"),
    ("n", "sampling_params.n"),
    ("stop", "sampling_params.stop"),
    ("logit_bias", "sampling_params.logit_bias"),
    ("logprobs", "top_logprobs_num"),
    ("response_format", "sampling_params.json_schema"),
    ("regex", "sampling_params.regex"),
    ("grammar", "sampling_params.ebnf_grammar"),
    ("adapter", "lora_id"),
];
/// What is repeated of the reason why an answer was ended.
const REASON_CHARACTERS_MAX: usize = 256;

pub(in crate::api::grpc) async fn generate(
    State(state): State<Grpc>,
    Extension(caller): Extension<Caller>,
    Call(call): Call<GenerateRequest>,
) -> Result<Response, ApiError> {
    let id = if call.request_id.is_empty() { ids::new("grpc-") } else { call.request_id.clone() };
    check_id(&id)?;
    let model = state.generating()?;
    let engine = state.api.models.get(&model).await?.generator()?.clone();
    call.check(engine.tokenizer(), caller.ignored())?;
    let mut wire = GenerateWire {
        streams: call.stream,
        trims: !call.sampling_params.as_ref().is_some_and(|params| params.no_stop_trim),
        wants_logprobs: call.return_logprob,
        stops: call.sampling_params.as_ref().map(|params| params.stop.clone()).unwrap_or_default(),
        reported: Vec::new(),
        running: state.running.enter(&caller.tenant, &id),
        failure: None,
        id,
    };
    let body = call.into_completion(model)?;
    let requests = body.requests(caller.ignored()).map_err(|error| failure::renamed(error, &NAMES))?;
    // Without a limit it is the context's, not that of completions.
    let requests = requests.into_iter().map(|request| Request { max_tokens: body.max_tokens, ..request }).collect();
    caller.note_response(&wire.id);
    let started = state.api.generate(&body.model, None, &body.adapters()?, &caller, requests).await;
    let generation = started.map_err(|error| failure::renamed(error, &NAMES))?;
    wire.reported = vec![0; generation.len()];
    Ok(sse::respond(generation, wire, state.api.lifecycle.clone()))
}

impl GenerateRequest {
    /// Refuses what cannot be done, and notes what has no effect.
    fn check(&self, tokenizer: &Tokenizer, ignored: &IgnoredParams) -> Result<(), ApiError> {
        refuse("mm_inputs", !self.mm_inputs.is_empty(), "models here read text only")?;
        refuse("input_embeds", !self.input_embeds.is_empty(), "send tokenized.input_ids")?;
        refuse("return_hidden_states", self.return_hidden_states, "hidden states are not part of an answer")?;
        refuse("disaggregated_params", !self.disaggregated_params.is_empty(), "a worker computes prompts itself")?;
        refuse("custom_logit_processor", !self.custom_logit_processor.is_empty(), "code of requests is not run")?;
        refuse(
            "token_ids_logprob",
            !self.token_ids_logprob.is_empty(),
            "ask for the likeliest tokens by top_logprobs_num",
        )?;
        let of_prompt = self.return_logprob && self.logprob_start_len >= 0;
        refuse("logprob_start_len", of_prompt, "there are no probabilities of the prompt; send -1")?;
        let Some(params) = &self.sampling_params else { return Ok(()) };
        let other = params.stop_token_ids.iter().find(|id| !tokenizer.is_end_of_generation(**id));
        refuse(
            "sampling_params.stop_token_ids",
            other.is_some(),
            "only tokens that end every answer; send texts as stop",
        )?;
        if params.ignore_eos {
            ignored.note("ignore_eos", "answers end where the model ends them")?;
        }
        if params.min_new_tokens > 0 {
            ignored.note("min_new_tokens", "answers end where the model ends them")?;
        }
        if !params.custom_params.is_empty() {
            ignored.note("custom_params", "they are unknown here")?;
        }
        Ok(())
    }

    fn into_completion(self, model: String) -> Result<CompletionRequest, ApiError> {
        let top = count("top_logprobs_num", self.top_logprobs_num)?;
        let body = CompletionRequest {
            model,
            prompt: PromptField::Tokens(self.tokenized.unwrap_or_default().input_ids),
            logprobs: self.return_logprob.then_some(top),
            adapter: (!self.lora_id.is_empty()).then_some(AdapterField::Name(self.lora_id)),
            ..CompletionRequest::default()
        };
        match self.sampling_params {
            Some(params) => params.fill(body),
            None => Ok(body),
        }
    }
}

impl SamplingParams {
    /// Adds the parameters to a request. 0 says nothing where it is no value.
    fn fill(self, body: CompletionRequest) -> Result<CompletionRequest, ApiError> {
        let n = count("sampling_params.n", self.n)?;
        let max_tokens =
            self.max_new_tokens.map(|tokens| count("sampling_params.max_new_tokens", tokens)).transpose()?;
        let body = CompletionRequest {
            temperature: Some(self.temperature),
            top_p: Some(self.top_p).filter(|share| *share != 0.0),
            // -1 is off.
            top_k: (self.top_k != 0).then(|| usize::try_from(self.top_k).unwrap_or(0)),
            min_p: Some(self.min_p),
            frequency_penalty: Some(self.frequency_penalty),
            presence_penalty: Some(self.presence_penalty),
            repetition_penalty: Some(self.repetition_penalty).filter(|penalty| *penalty != 0.0),
            max_tokens,
            n: (n > 0).then_some(n),
            stop: Some(Stop::Several(self.stop)),
            logit_bias: Some(self.logit_bias),
            ..body
        };
        Ok(match self.constraint {
            None => body,
            Some(Constraint::Regex(regex)) => CompletionRequest { regex: Some(regex), ..body },
            Some(Constraint::EbnfGrammar(gbnf)) => {
                CompletionRequest { grammar: Some(GrammarField::Gbnf(gbnf)), ..body }
            }
            Some(Constraint::JsonSchema(schema)) => {
                let format = json_schema("sampling_params.json_schema", &schema)?;
                CompletionRequest { response_format: Some(format), ..body }
            }
            Some(Constraint::StructuralTag(_)) => {
                let how = "use a schema, a regular expression or a grammar";
                refuse("sampling_params.structural_tag", true, how)?;
                body
            }
        })
    }
}

fn count(field: &str, count: i32) -> Result<usize, ApiError> {
    usize::try_from(count).map_err(|_| ApiError::invalid_param(field, format!("{field} is {count}; it is no count")))
}

struct GenerateWire {
    id: String,
    /// Whether tokens are sent as they come, or all at the end.
    streams: bool,
    /// Whether the token that ended the answer is left out.
    trims: bool,
    wants_logprobs: bool,
    stops: Vec<String>,
    /// Number of tokens of each choice that were sent.
    reported: Vec<usize>,
    running: Entered,
    failure: Option<ApiError>,
}

impl GenerateWire {
    /// Returns the number of tokens to tell of. One that ends answers is looked at when the answer has ended.
    fn visible(&self, answer: &Answer, tokenizer: &Tokenizer, is_complete: bool) -> usize {
        let ends = answer.tokens.last().is_some_and(|last| tokenizer.is_end_of_generation(*last));
        answer.tokens.len() - usize::from(ends && (self.trims || !is_complete))
    }

    fn logprobs(&self, answer: &Answer, tokens: Range<usize>) -> Option<OutputLogProbs> {
        self.wants_logprobs.then(|| OutputLogProbs::of(answer, tokens))
    }

    fn send(&self, generated: Generated, events: &mut Events) {
        events.message(&GenerateResponse { request_id: self.id.clone(), generated: Some(generated) });
    }

    fn complete(&self, index: usize, answer: &Answer, tokenizer: &Tokenizer) -> GenerateComplete {
        let visible = self.visible(answer, tokenizer, true);
        let matched = answer.stop_index.and_then(|index| self.stops.get(index).cloned()).map(MatchedStop::Text);
        let last = answer.tokens.last().filter(|last| tokenizer.is_end_of_generation(**last));
        GenerateComplete {
            output_ids: answer.tokens[..visible].to_vec(),
            finish_reason: finish_reason(answer).to_owned(),
            prompt_tokens: small(answer.usage.prompt_tokens, i32::MAX),
            completion_tokens: small(answer.usage.completion_tokens, i32::MAX),
            cached_tokens: small(answer.usage.cached_tokens, i32::MAX),
            output_logprobs: self.logprobs(answer, 0..visible),
            matched_stop: matched.or_else(|| last.copied().map(MatchedStop::Token)),
            index: small(index, u32::MAX),
        }
    }
}

impl Wire for GenerateWire {
    const CONTENT_TYPE: &'static str = grpc::CONTENT;

    fn begin(&mut self, _: &Generation, _: &mut Events) {}

    fn part(&mut self, Part { choice, piece }: Part, generation: &Generation, events: &mut Events) {
        let (answer, tokenizer) = (generation.response(choice), generation.tokenizer());
        let new = self.reported[choice]..self.visible(answer, tokenizer, piece.is_none());
        if self.streams && !new.is_empty() {
            self.reported[choice] = new.end;
            let chunk = GenerateStreamChunk {
                token_ids: answer.tokens[new.clone()].to_vec(),
                prompt_tokens: small(answer.usage.prompt_tokens, i32::MAX),
                completion_tokens: small(answer.usage.completion_tokens, i32::MAX),
                cached_tokens: small(answer.usage.cached_tokens, i32::MAX),
                output_logprobs: self.logprobs(answer, new),
                index: small(choice, u32::MAX),
            };
            self.send(Generated::Chunk(chunk), events);
        }
        if piece.is_none() {
            self.send(Generated::Complete(self.complete(choice, answer, tokenizer)), events);
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

    async fn ended(&mut self) -> ApiError {
        let reason: String = self.running.ended().await.chars().take(REASON_CHARACTERS_MAX).collect();
        ApiError::invalid(format!("the answer was ended: {reason}")).with_code("cancelled")
    }
}

impl OutputLogProbs {
    fn of(answer: &Answer, tokens: Range<usize>) -> Self {
        let mut all = Self::default();
        for (token, (logprob, top)) in answer.tokens.iter().zip(&answer.logprobs).skip(tokens.start).take(tokens.len())
        {
            all.token_ids.push(*token);
            all.token_logprobs.push(*logprob);
            let (values, token_ids) = top.iter().map(|other| (other.logprob, other.token)).unzip();
            all.top_logprobs.push(TopLogProbs { values, token_ids });
        }
        all
    }
}
