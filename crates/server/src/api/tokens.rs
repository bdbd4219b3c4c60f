//! `POST /v1/tokenize` and `/v1/detokenize`

use axum::extract::State;
use axum::{Extension, Json};
use ruvllm_runtime::{Prompt, Tokenizer};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::access::Caller;
use crate::api::Api;
use crate::api::charges;
use crate::api::chat::request::{ChatMessage, messages};
use crate::api::tools::{ToolField, tools};
use crate::body::Body;
use crate::error::ApiError;
use crate::models::AskedAdapters;
use crate::openapi::ErrorBody;

/// A text or a conversation.
#[derive(Debug, Deserialize, ToSchema)]
pub struct TokenizeRequest {
    #[schema(example = "smollm2")]
    pub model: String,
    /// Plain text, encoded like the prompt of a completion.
    pub prompt: Option<String>,
    /// A conversation, rendered with the model's chat template.
    pub messages: Option<Vec<ChatMessage>>,
    /// Tools that are offered to the model in a conversation.
    pub tools: Option<Vec<ToolField>>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Tokens {
    pub tokens: Vec<u32>,
    pub count: usize,
    /// Context length of the model in tokens.
    pub max_model_len: usize,
}

#[derive(Debug, Deserialize, ToSchema)]
pub struct DetokenizeRequest {
    #[schema(example = "smollm2")]
    pub model: String,
    pub tokens: Vec<u32>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Text {
    pub prompt: String,
}

/// Encode a text or a conversation to token ids
#[utoipa::path(post, path = "/v1/tokenize", tag = "inference", request_body = TokenizeRequest,
    responses((status = 200, description = "The token ids", body = Tokens),
              (status = 400, description = "A field is invalid; `param` names it", body = ErrorBody),
              (status = 404, description = "There is no such model", body = ErrorBody)))]
pub(crate) async fn tokenize(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<TokenizeRequest>,
) -> Result<Json<Tokens>, ApiError> {
    let prompt = match (request.prompt, &request.messages) {
        (Some(text), None) => Prompt::Text(text),
        (None, Some(given)) => Prompt::Messages(messages(given)?),
        _ => return Err(ApiError::invalid_param("prompt", "give either prompt or messages")),
    };
    let tools = tools(request.tools.as_deref(), None, None)?;
    let model = api.models.get_adapted(&request.model, &AskedAdapters::Default, caller.asker()).await?;
    let engine = model.generator()?.clone();
    caller.note_model(&model.name);
    let max_model_len = engine.context();
    let tokens = api.encode(&caller, engine, prompt, tools).await?;
    Ok(Json(Tokens { count: tokens.len(), tokens, max_model_len }))
}

/// Decode token ids to text
#[utoipa::path(post, path = "/v1/detokenize", tag = "inference", request_body = DetokenizeRequest,
    responses((status = 200, description = "The text", body = Text),
              (status = 400, description = "A field is invalid; `param` names it", body = ErrorBody),
              (status = 404, description = "There is no such model", body = ErrorBody)))]
pub(crate) async fn detokenize(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<DetokenizeRequest>,
) -> Result<Json<Text>, ApiError> {
    let model = api.models.get_adapted(&request.model, &AskedAdapters::Default, caller.asker()).await?;
    caller.note_model(&model.name);
    let tokenizer = model.generator()?.tokenizer();
    if let Some(token) = request.tokens.iter().find(|token| **token as usize >= tokenizer.vocab_size()) {
        let message = format!("token {token} is not in the vocabulary of {}", tokenizer.vocab_size());
        return Err(ApiError::invalid_param("tokens", message));
    }
    caller.charge(charges::of_encoding(request.tokens.len()));
    Ok(Json(Text { prompt: text_of(&request.tokens, tokenizer) }))
}

/// Decodes tokens. Control tokens are omitted; invalid bytes become U+FFFD.
pub(crate) fn text_of(tokens: &[u32], tokenizer: &Tokenizer) -> String {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| tokenizer.token_bytes(*token)).copied().collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
