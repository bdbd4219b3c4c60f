//! `POST /v1/embeddings`: the request, its validation and conversion for the runtime.

use ruvllm_runtime::{EmbedError, EmbedInput, EmbedRequest, Prompt, TooLong};
use serde::Deserialize;
use utoipa::ToSchema;

use crate::api::completions::request::PromptField;
use crate::error::ApiError;

/// Maximum number of texts per request, the same as OpenAI's.
const INPUTS_MAX: usize = 2048;

/// Texts to embed. Unknown parameters are ignored and named in the header `x-ruvllm-ignored`.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct EmbeddingRequest {
    /// An embedding model; `GET /v1/models` lists all models.
    #[schema(example = "minilm")]
    pub model: String,
    /// Up to 2048 texts, none of them empty. Token ids are those of the model's own vocabulary and are used unchanged.
    pub input: PromptField,
    /// Encoding of the vectors: numbers, or base64 of little-endian 32-bit floats.
    pub encoding_format: Option<EncodingFormat>,
    /// Only the model's own number of dimensions is accepted.
    #[schema(minimum = 1)]
    pub dimensions: Option<usize>,
    /// Whether texts that are too long for the model are truncated; otherwise they are refused.
    pub truncate: Option<bool>,
    /// End user of this request, for the log.
    pub user: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EncodingFormat {
    #[default]
    Float,
    Base64,
}

impl EmbeddingRequest {
    /// Converts the request for the encoder.
    pub(crate) fn work(&self) -> Result<EmbedRequest, ApiError> {
        let input = |prompt| match prompt {
            Prompt::Tokens(tokens) => EmbedInput::Tokens(tokens),
            Prompt::Text(text) => EmbedInput::Text(text),
            Prompt::Messages(_) => EmbedInput::Text(String::new()),
        };
        let inputs: Vec<EmbedInput> = self.input.prompts().into_iter().map(input).collect();
        if inputs.is_empty() || inputs.len() > INPUTS_MAX {
            let message = format!("input has {} texts; it must have between 1 and {INPUTS_MAX}", inputs.len());
            return Err(ApiError::invalid_param("input", message));
        }
        let too_long = if self.truncate.unwrap_or(false) { TooLong::CutEnd } else { TooLong::Refuse };
        Ok(EmbedRequest { inputs, too_long, ..EmbedRequest::default() })
    }

    pub(crate) fn check_dimensions(&self, dimensions: usize) -> Result<(), ApiError> {
        match self.dimensions {
            Some(wanted) if wanted != dimensions => {
                let message = format!("dimensions is {wanted}; this model supports only {dimensions}");
                Err(ApiError::invalid_param("dimensions", message))
            }
            _ => Ok(()),
        }
    }

    /// Converts an error for the client, with the path of the text.
    pub(crate) fn explain(&self, error: &EmbedError) -> ApiError {
        let is_list = matches!(self.input, PromptField::Texts(_) | PromptField::TokenLists(_));
        let place = match error.index() {
            Some(index) if is_list => format!("input[{index}]"),
            _ => "input".to_owned(),
        };
        match error {
            EmbedError::Empty { .. } => ApiError::invalid_param(&place, format!("{place} is empty")),
            EmbedError::TooLong { tokens, tokens_max, .. } => {
                let message = format!(
                    "{place} has {tokens} tokens and the model takes up to {tokens_max}; shorten it, or send \
                     \"truncate\": true to truncate it"
                );
                ApiError::invalid_param(place, message).with_code("context_length_exceeded")
            }
            EmbedError::NoSuchToken { token, vocabulary, .. } => {
                let message = format!("{place} has the token {token}, which is not in the vocabulary of {vocabulary}");
                ApiError::invalid_param(place, message)
            }
            EmbedError::Abandoned { .. } | EmbedError::Failed { .. } => {
                tracing::error!("{error}");
                ApiError::internal("the texts could not be embedded")
            }
        }
    }
}
