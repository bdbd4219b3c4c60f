//! The messages of SGLang's protocol, as far as they are read or written here (`proto/sglang_scheduler.proto`). Fields of
//! which only matters whether they say something are bytes.

use std::collections::BTreeMap;

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub struct TokenizedInput {
    #[prost(uint32, repeated, tag = "2")]
    pub input_ids: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SamplingParams {
    #[prost(float, tag = "1")]
    pub temperature: f32,
    #[prost(float, tag = "2")]
    pub top_p: f32,
    #[prost(int32, tag = "3")]
    pub top_k: i32,
    #[prost(float, tag = "4")]
    pub min_p: f32,
    #[prost(float, tag = "5")]
    pub frequency_penalty: f32,
    #[prost(float, tag = "6")]
    pub presence_penalty: f32,
    #[prost(float, tag = "7")]
    pub repetition_penalty: f32,
    #[prost(int32, optional, tag = "8")]
    pub max_new_tokens: Option<i32>,
    #[prost(string, repeated, tag = "9")]
    pub stop: Vec<String>,
    #[prost(uint32, repeated, tag = "10")]
    pub stop_token_ids: Vec<u32>,
    #[prost(oneof = "Constraint", tags = "13, 14, 15, 16")]
    pub constraint: Option<Constraint>,
    #[prost(int32, tag = "17")]
    pub n: i32,
    #[prost(int32, tag = "18")]
    pub min_new_tokens: i32,
    #[prost(bool, tag = "19")]
    pub ignore_eos: bool,
    #[prost(bool, tag = "20")]
    pub no_stop_trim: bool,
    #[prost(btree_map = "string, float", tag = "22")]
    pub logit_bias: BTreeMap<String, f32>,
    #[prost(bytes = "vec", tag = "23")]
    pub custom_params: Vec<u8>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Constraint {
    #[prost(string, tag = "13")]
    Regex(String),
    #[prost(string, tag = "14")]
    JsonSchema(String),
    #[prost(string, tag = "15")]
    EbnfGrammar(String),
    #[prost(string, tag = "16")]
    StructuralTag(String),
}

#[derive(Clone, PartialEq, Message)]
pub struct GenerateRequest {
    #[prost(string, tag = "1")]
    pub request_id: String,
    #[prost(message, optional, tag = "2")]
    pub tokenized: Option<TokenizedInput>,
    #[prost(bytes = "vec", tag = "3")]
    pub mm_inputs: Vec<u8>,
    #[prost(message, optional, tag = "4")]
    pub sampling_params: Option<SamplingParams>,
    #[prost(bool, tag = "5")]
    pub return_logprob: bool,
    #[prost(int32, tag = "6")]
    pub logprob_start_len: i32,
    #[prost(int32, tag = "7")]
    pub top_logprobs_num: i32,
    #[prost(uint32, repeated, tag = "8")]
    pub token_ids_logprob: Vec<u32>,
    #[prost(bool, tag = "9")]
    pub return_hidden_states: bool,
    #[prost(bytes = "vec", tag = "10")]
    pub disaggregated_params: Vec<u8>,
    #[prost(string, tag = "11")]
    pub custom_logit_processor: String,
    #[prost(float, repeated, tag = "14")]
    pub input_embeds: Vec<f32>,
    #[prost(string, tag = "15")]
    pub lora_id: String,
    #[prost(bool, tag = "17")]
    pub stream: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct TopLogProbs {
    #[prost(float, repeated, tag = "1")]
    pub values: Vec<f32>,
    #[prost(uint32, repeated, tag = "2")]
    pub token_ids: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct OutputLogProbs {
    #[prost(float, repeated, tag = "1")]
    pub token_logprobs: Vec<f32>,
    #[prost(uint32, repeated, tag = "2")]
    pub token_ids: Vec<u32>,
    #[prost(message, repeated, tag = "3")]
    pub top_logprobs: Vec<TopLogProbs>,
}

#[derive(Clone, PartialEq, Message)]
pub struct GenerateStreamChunk {
    #[prost(uint32, repeated, tag = "1")]
    pub token_ids: Vec<u32>,
    #[prost(int32, tag = "2")]
    pub prompt_tokens: i32,
    #[prost(int32, tag = "3")]
    pub completion_tokens: i32,
    #[prost(int32, tag = "4")]
    pub cached_tokens: i32,
    #[prost(message, optional, tag = "5")]
    pub output_logprobs: Option<OutputLogProbs>,
    #[prost(uint32, tag = "8")]
    pub index: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct GenerateComplete {
    #[prost(uint32, repeated, tag = "1")]
    pub output_ids: Vec<u32>,
    #[prost(string, tag = "2")]
    pub finish_reason: String,
    #[prost(int32, tag = "3")]
    pub prompt_tokens: i32,
    #[prost(int32, tag = "4")]
    pub completion_tokens: i32,
    #[prost(int32, tag = "5")]
    pub cached_tokens: i32,
    #[prost(message, optional, tag = "6")]
    pub output_logprobs: Option<OutputLogProbs>,
    #[prost(oneof = "MatchedStop", tags = "8, 9")]
    pub matched_stop: Option<MatchedStop>,
    #[prost(uint32, tag = "11")]
    pub index: u32,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum MatchedStop {
    #[prost(uint32, tag = "8")]
    Token(u32),
    #[prost(string, tag = "9")]
    Text(String),
}

#[derive(Clone, PartialEq, Message)]
pub struct GenerateResponse {
    #[prost(string, tag = "1")]
    pub request_id: String,
    #[prost(oneof = "Generated", tags = "2, 3")]
    pub generated: Option<Generated>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Generated {
    #[prost(message, tag = "2")]
    Chunk(GenerateStreamChunk),
    #[prost(message, tag = "3")]
    Complete(GenerateComplete),
}

#[derive(Clone, PartialEq, Message)]
pub struct EmbedRequest {
    #[prost(string, tag = "1")]
    pub request_id: String,
    #[prost(message, optional, tag = "2")]
    pub tokenized: Option<TokenizedInput>,
    #[prost(bytes = "vec", tag = "4")]
    pub mm_inputs: Vec<u8>,
    #[prost(bool, tag = "9")]
    pub is_cross_encoder: bool,
    #[prost(string, repeated, tag = "10")]
    pub texts: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct EmbedComplete {
    #[prost(float, repeated, tag = "1")]
    pub embedding: Vec<f32>,
    #[prost(int32, tag = "2")]
    pub prompt_tokens: i32,
    #[prost(int32, tag = "4")]
    pub embedding_dim: i32,
}

/// Routers until January 2026 read the first two fields, later ones the others.
#[derive(Clone, PartialEq, Message)]
pub struct EmbedResponse {
    #[prost(string, tag = "1")]
    pub request_id: String,
    #[prost(message, optional, tag = "2")]
    pub complete: Option<EmbedComplete>,
    #[prost(uint32, tag = "4")]
    pub embedding_dim: u32,
    #[prost(float, repeated, tag = "5")]
    pub embedding: Vec<f32>,
    #[prost(uint32, tag = "6")]
    pub prompt_tokens: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct HealthCheckResponse {
    #[prost(bool, tag = "1")]
    pub healthy: bool,
    #[prost(string, tag = "2")]
    pub message: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct AbortRequest {
    #[prost(string, tag = "1")]
    pub request_id: String,
    #[prost(string, tag = "2")]
    pub reason: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct AbortResponse {
    #[prost(bool, tag = "1")]
    pub success: bool,
    #[prost(string, tag = "2")]
    pub message: String,
}

/// A request that says nothing.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Empty {}

#[derive(Clone, PartialEq, Message)]
pub struct GetModelInfoResponse {
    #[prost(string, tag = "2")]
    pub tokenizer_path: String,
    #[prost(bool, tag = "3")]
    pub is_generation: bool,
    #[prost(string, tag = "6")]
    pub served_model_name: String,
    #[prost(int32, tag = "7")]
    pub max_context_length: i32,
    #[prost(int32, tag = "8")]
    pub vocab_size: i32,
    #[prost(string, tag = "10")]
    pub model_type: String,
    #[prost(uint32, repeated, tag = "11")]
    pub eos_token_ids: Vec<u32>,
    #[prost(uint32, tag = "13")]
    pub bos_token_id: u32,
    #[prost(int32, tag = "14")]
    pub max_req_input_len: i32,
    #[prost(string, repeated, tag = "15")]
    pub architectures: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct GetServerInfoResponse {
    #[prost(int32, tag = "3")]
    pub active_requests: i32,
    #[prost(double, tag = "6")]
    pub uptime_seconds: f64,
    #[prost(string, tag = "7")]
    pub sglang_version: String,
    #[prost(string, tag = "8")]
    pub server_type: String,
    #[prost(message, optional, tag = "9")]
    pub start_time: Option<Timestamp>,
    #[prost(int32, tag = "10")]
    pub max_total_num_tokens: i32,
}

/// `google.protobuf.Timestamp`
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Timestamp {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct GetLoadsRequest {
    #[prost(int32, optional, tag = "1")]
    pub dp_rank: Option<i32>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct SchedulerLoad {
    #[prost(int32, tag = "2")]
    pub num_running_reqs: i32,
    #[prost(int32, tag = "3")]
    pub num_waiting_reqs: i32,
    #[prost(int32, tag = "4")]
    pub num_total_reqs: i32,
    #[prost(int32, tag = "5")]
    pub num_used_tokens: i32,
    #[prost(int32, tag = "6")]
    pub max_total_num_tokens: i32,
    #[prost(double, tag = "7")]
    pub token_usage: f64,
    #[prost(double, tag = "9")]
    pub cache_hit_rate: f64,
    #[prost(double, tag = "10")]
    pub utilization: f64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct AggregateMetrics {
    #[prost(int32, tag = "1")]
    pub total_running_reqs: i32,
    #[prost(int32, tag = "2")]
    pub total_waiting_reqs: i32,
    #[prost(int32, tag = "3")]
    pub total_reqs: i32,
    #[prost(double, tag = "4")]
    pub avg_token_usage: f64,
    #[prost(double, tag = "6")]
    pub avg_utilization: f64,
}

#[derive(Clone, PartialEq, Message)]
pub struct GetLoadsResponse {
    #[prost(string, tag = "1")]
    pub timestamp: String,
    #[prost(string, tag = "2")]
    pub version: String,
    #[prost(int32, tag = "3")]
    pub dp_rank_count: i32,
    #[prost(message, repeated, tag = "4")]
    pub loads: Vec<SchedulerLoad>,
    #[prost(message, optional, tag = "5")]
    pub aggregate: Option<AggregateMetrics>,
}
