//! The messages of our own service (`proto/ruvllm.proto`).

use std::collections::BTreeMap;

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub struct Tokens {
    #[prost(uint32, repeated, tag = "1")]
    pub ids: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct GenerateRequest {
    #[prost(string, tag = "1")]
    pub model: String,
    #[prost(oneof = "PromptOf", tags = "2, 3")]
    pub prompt: Option<PromptOf>,
    #[prost(uint32, optional, tag = "4")]
    pub max_tokens: Option<u32>,
    #[prost(uint32, optional, tag = "5")]
    pub n: Option<u32>,
    #[prost(string, repeated, tag = "6")]
    pub stop: Vec<String>,
    #[prost(float, optional, tag = "7")]
    pub temperature: Option<f32>,
    #[prost(float, optional, tag = "8")]
    pub top_p: Option<f32>,
    #[prost(uint32, optional, tag = "9")]
    pub top_k: Option<u32>,
    #[prost(float, optional, tag = "10")]
    pub min_p: Option<f32>,
    #[prost(float, optional, tag = "11")]
    pub repetition_penalty: Option<f32>,
    #[prost(float, optional, tag = "12")]
    pub presence_penalty: Option<f32>,
    #[prost(float, optional, tag = "13")]
    pub frequency_penalty: Option<f32>,
    #[prost(int64, optional, tag = "14")]
    pub seed: Option<i64>,
    #[prost(btree_map = "string, float", tag = "15")]
    pub logit_bias: BTreeMap<String, f32>,
    #[prost(uint32, optional, tag = "16")]
    pub logprobs: Option<u32>,
    #[prost(oneof = "Format", tags = "17, 18, 19")]
    pub format: Option<Format>,
    #[prost(string, optional, tag = "20")]
    pub adapter: Option<String>,
    #[prost(string, tag = "21")]
    pub user: String,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum PromptOf {
    #[prost(string, tag = "2")]
    Text(String),
    #[prost(message, tag = "3")]
    Tokens(Tokens),
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Format {
    #[prost(string, tag = "17")]
    JsonSchema(String),
    #[prost(string, tag = "18")]
    Regex(String),
    #[prost(string, tag = "19")]
    Gbnf(String),
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct TokenLogprob {
    #[prost(uint32, tag = "1")]
    pub token: u32,
    #[prost(float, tag = "2")]
    pub logprob: f32,
}

#[derive(Clone, PartialEq, Message)]
pub struct TokenLogprobs {
    #[prost(message, optional, tag = "1")]
    pub token: Option<TokenLogprob>,
    #[prost(message, repeated, tag = "2")]
    pub top: Vec<TokenLogprob>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Usage {
    #[prost(uint32, tag = "1")]
    pub prompt_tokens: u32,
    #[prost(uint32, tag = "2")]
    pub completion_tokens: u32,
    #[prost(uint32, tag = "3")]
    pub cached_tokens: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct GenerateResponse {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(uint32, tag = "2")]
    pub index: u32,
    #[prost(string, tag = "3")]
    pub text: String,
    #[prost(uint32, repeated, tag = "4")]
    pub tokens: Vec<u32>,
    #[prost(message, repeated, tag = "5")]
    pub logprobs: Vec<TokenLogprobs>,
    #[prost(string, tag = "6")]
    pub finish_reason: String,
    #[prost(message, optional, tag = "7")]
    pub usage: Option<Usage>,
}

#[derive(Clone, PartialEq, Message)]
pub struct EmbedRequest {
    #[prost(string, tag = "1")]
    pub model: String,
    #[prost(string, repeated, tag = "2")]
    pub texts: Vec<String>,
    #[prost(message, repeated, tag = "3")]
    pub tokens: Vec<Tokens>,
    #[prost(bool, tag = "4")]
    pub truncate: bool,
    #[prost(string, tag = "5")]
    pub user: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Embedding {
    #[prost(float, repeated, tag = "1")]
    pub values: Vec<f32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct EmbedResponse {
    #[prost(message, repeated, tag = "1")]
    pub embeddings: Vec<Embedding>,
    #[prost(uint32, tag = "2")]
    pub prompt_tokens: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct FeedbackRequest {
    #[prost(string, tag = "1")]
    pub request_id: String,
    #[prost(double, optional, tag = "2")]
    pub score: Option<f64>,
    #[prost(string, optional, tag = "3")]
    pub correction: Option<String>,
    #[prost(string, optional, tag = "4")]
    pub reason: Option<String>,
    #[prost(string, tag = "5")]
    pub user: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct FeedbackResponse {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub request_id: String,
    #[prost(string, repeated, tag = "3")]
    pub withheld: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SearchMemoryRequest {
    #[prost(string, tag = "1")]
    pub text: String,
    #[prost(string, tag = "2")]
    pub kind: String,
    #[prost(string, optional, tag = "3")]
    pub tenant: Option<String>,
    #[prost(uint32, optional, tag = "4")]
    pub limit: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct MemoryItem {
    #[prost(int64, tag = "1")]
    pub id: i64,
    #[prost(string, tag = "2")]
    pub kind: String,
    #[prost(float, tag = "3")]
    pub similarity: f32,
    #[prost(string, tag = "4")]
    pub json: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct SearchMemoryResponse {
    #[prost(message, repeated, tag = "1")]
    pub items: Vec<MemoryItem>,
}
