//! `sglang.grpc.scheduler.SglangScheduler`: tokens in, tokens out. What SGLang's router speaks to its workers, which has the
//! tokenizer, the chat template and the parsers itself.
//!
//! The model is the first generating one, and for embeddings the first embedding one: requests name none.

pub(super) mod generate;
mod messages;

use axum::Extension;
use axum::extract::State;
use ruvllm_runtime::EngineStatus;

use self::messages::{
    AbortRequest, AbortResponse, AggregateMetrics, EmbedComplete, EmbedRequest, EmbedResponse, Empty, GetLoadsRequest,
    GetLoadsResponse, GetModelInfoResponse, GetServerInfoResponse, HealthCheckResponse, SchedulerLoad, Timestamp,
};
use super::{Grpc, small};
use crate::access::Caller;
use crate::api::completions::request::PromptField;
use crate::api::embeddings::request::EmbeddingRequest;
use crate::api::{embeddings, failure, worker};
use crate::error::ApiError;
use crate::grpc::{Call, Reply};
use crate::lifecycle::Phase;

/// Refuses a field that changes what the answer is, if it says something.
fn refuse(field: &str, says_something: bool, why: &str) -> Result<(), ApiError> {
    if says_something {
        let error = ApiError::invalid_param(field, format!("{field} is not supported: {why}"));
        return Err(error.with_code("unsupported_parameter"));
    }
    Ok(())
}

/// Needs no key: whoever distributes requests asks before it has any.
pub(super) async fn health_check(State(grpc): State<Grpc>, Call(Empty {}): Call<Empty>) -> Reply<HealthCheckResponse> {
    let message = match grpc.api.lifecycle.phase() {
        Phase::Starting => "models are being loaded",
        Phase::Ready => "ready",
        Phase::Leaving | Phase::Draining | Phase::Ended => "draining",
    };
    let healthy = grpc.api.lifecycle.phase() == Phase::Ready;
    Reply(HealthCheckResponse { healthy, message: message.to_owned() })
}

pub(super) async fn embed(
    State(grpc): State<Grpc>,
    Extension(caller): Extension<Caller>,
    Call(call): Call<EmbedRequest>,
) -> Result<Reply<EmbedResponse>, ApiError> {
    refuse("mm_inputs", !call.mm_inputs.is_empty(), "models here read text only")?;
    let crosses = call.is_cross_encoder || !call.texts.is_empty();
    refuse("is_cross_encoder", crosses, "rerank over HTTP, by /v1/rerank")?;
    let input = PromptField::Tokens(call.tokenized.unwrap_or_default().input_ids);
    let request = EmbeddingRequest { model: grpc.embedding()?, input, ..EmbeddingRequest::default() };
    let computed = embeddings::answer(&grpc.api, &caller, &request).await;
    let computed = computed.map_err(|error| failure::renamed(error, &[("input", "tokenized.input_ids")]))?;
    let embedding = computed.vectors.into_iter().next().unwrap_or_default();
    let tokens: usize = computed.tokens.iter().sum();
    Ok(Reply(EmbedResponse {
        request_id: call.request_id,
        complete: Some(EmbedComplete {
            embedding: embedding.clone(),
            prompt_tokens: small(tokens, i32::MAX),
            embedding_dim: small(embedding.len(), i32::MAX),
        }),
        embedding_dim: small(embedding.len(), u32::MAX),
        prompt_tokens: small(tokens, u32::MAX),
        embedding,
    }))
}

/// Ends answers of the same tenant.
pub(super) async fn abort(
    State(grpc): State<Grpc>,
    Extension(caller): Extension<Caller>,
    Call(call): Call<AbortRequest>,
) -> Reply<AbortResponse> {
    let success = grpc.running.end(&caller.tenant, &call.request_id, &call.reason);
    let message = if success { "the answer is ended" } else { "no such answer is under way" };
    Reply(AbortResponse { success, message: message.to_owned() })
}

pub(super) async fn model_info(
    State(grpc): State<Grpc>,
    Call(Empty {}): Call<Empty>,
) -> Result<Reply<GetModelInfoResponse>, ApiError> {
    let model = worker::first(&grpc.api)?;
    let described = worker::architecture(&grpc.api, &model).await?;
    let tokenizer = model.runner.generator().map(|engine| engine.tokenizer());
    let context = small(model.runner.context(), i32::MAX);
    Ok(Reply(GetModelInfoResponse {
        tokenizer_path: grpc.tokenizer.to_string(),
        is_generation: tokenizer.is_some(),
        served_model_name: model.name.to_string(),
        max_context_length: context,
        vocab_size: tokenizer.map_or(0, |tokenizer| small(tokenizer.vocab_size(), i32::MAX)),
        eos_token_ids: tokenizer.map_or_else(Vec::new, |tokenizer| tokenizer.end_of_generation().to_vec()),
        bos_token_id: tokenizer.and_then(|tokenizer| tokenizer.bos()).unwrap_or_default(),
        max_req_input_len: context,
        model_type: described.clone(),
        architectures: vec![described],
    }))
}

pub(super) async fn server_info(
    State(grpc): State<Grpc>,
    Call(Empty {}): Call<Empty>,
) -> Result<Reply<GetServerInfoResponse>, ApiError> {
    let model = worker::first(&grpc.api)?;
    let status = model.runner.generator().map(|engine| engine.status());
    let (began, at) = grpc.started;
    let at = at.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Ok(Reply(GetServerInfoResponse {
        active_requests: status.as_ref().map_or(0, |status| small(status.running + status.waiting, i32::MAX)),
        uptime_seconds: began.elapsed().as_secs_f64(),
        sglang_version: env!("CARGO_PKG_VERSION").to_owned(),
        server_type: "grpc".to_owned(),
        start_time: Some(Timestamp { seconds: at.as_secs().cast_signed(), nanos: at.subsec_nanos().cast_signed() }),
        max_total_num_tokens: status.as_ref().map_or(0, |status| small(worker::tokens_max(&status.cache), i32::MAX)),
    }))
}

/// How busy the first generating model is.
pub(super) async fn loads(
    State(grpc): State<Grpc>,
    Call(call): Call<GetLoadsRequest>,
) -> Result<Reply<GetLoadsResponse>, ApiError> {
    if let Some(rank) = call.dp_rank.filter(|rank| *rank != 0) {
        return Err(ApiError::invalid_param("dp_rank", format!("dp_rank is {rank}; there is only 0")));
    }
    let model = worker::first(&grpc.api)?;
    let load = model.runner.generator().map(|engine| SchedulerLoad::of(&engine.status())).unwrap_or_default();
    let aggregate = AggregateMetrics {
        total_running_reqs: load.num_running_reqs,
        total_waiting_reqs: load.num_waiting_reqs,
        total_reqs: load.num_total_reqs,
        avg_token_usage: load.token_usage,
        avg_utilization: load.utilization,
    };
    Ok(Reply(GetLoadsResponse {
        timestamp: crate::access::Timestamp::now().to_string(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        dp_rank_count: 1,
        loads: vec![load],
        aggregate: Some(aggregate),
    }))
}

impl SchedulerLoad {
    fn of(status: &EngineStatus) -> Self {
        let cache = &status.cache;
        let (used, max) = (worker::running_tokens(cache), worker::tokens_max(cache));
        let (share, lookups) = (used as f64 / max.max(1) as f64, cache.lookups);
        Self {
            num_running_reqs: small(status.running, i32::MAX),
            num_waiting_reqs: small(status.waiting, i32::MAX),
            num_total_reqs: small(status.running + status.waiting, i32::MAX),
            num_used_tokens: small(used, i32::MAX),
            max_total_num_tokens: small(max, i32::MAX),
            token_usage: share,
            cache_hit_rate: lookups.tokens_saved as f64 / lookups.tokens.max(1) as f64,
            utilization: share,
        }
    }
}
