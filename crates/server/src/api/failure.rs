//! Converts errors of the runtime for clients.

use std::time::Duration;

use axum::http::StatusCode;
use ruvllm_memory::MemoryError;
use ruvllm_runtime::{AdapterError, GenerateError, GrammarError, RequestError, SamplingError, StepError, SubmitError};
use ruvllm_store::StoreError;

use crate::error::{ApiError, ErrorKind};
use crate::models::ModelError;

/// Retry interval for a full queue.
const QUEUE_RETRY: Duration = Duration::from_secs(1);
/// Retry interval for a model that had no room to load.
const LOAD_RETRY: Duration = Duration::from_secs(5);

/// Retry interval for a memory that does not respond.
pub(crate) const MEMORY_RETRY: Duration = Duration::from_secs(5);

/// The queue of an endpoint is full.
pub(crate) fn queue_full(message: impl Into<String>) -> ApiError {
    let error = ApiError::new(StatusCode::TOO_MANY_REQUESTS, ErrorKind::RequestRate, message);
    error.with_code("queue_full").with_retry_after(QUEUE_RETRY)
}

/// An answer took longer than the server allows.
pub(crate) fn deadline_passed(message: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::GATEWAY_TIMEOUT, ErrorKind::Timeout, message).with_code("deadline_passed")
}

pub(crate) fn failure(error: &GenerateError) -> ApiError {
    let message = error.to_string();
    match error {
        GenerateError::Submit(error) => submission(error),
        GenerateError::Step(StepError::DeadlinePassed { .. }) => deadline_passed(message),
        GenerateError::Step(_) | GenerateError::NoEmbedding => ApiError::internal(message),
        GenerateError::EngineFailed => {
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, ErrorKind::Overloaded, message).with_code("engine_failed")
        }
        GenerateError::Stop(_) => ApiError::invalid_param("stop", message),
        GenerateError::NoMemory => ApiError::invalid_param("session", message),
        GenerateError::OutputFormat(GrammarError::Busy) | GenerateError::Tools(GrammarError::Busy) => {
            ApiError::unavailable(message, Some(QUEUE_RETRY))
        }
        GenerateError::OutputFormat(_) => {
            ApiError::invalid_param("response_format", message).with_code("invalid_grammar")
        }
        GenerateError::Tools(GrammarError::NoTools | GrammarError::UnknownTool { .. }) => {
            ApiError::invalid_param("tool_choice", message)
        }
        GenerateError::Tools(_) => ApiError::invalid_param("tools", message).with_code("invalid_function_parameters"),
        GenerateError::PromptTooLarge { bytes, context } => {
            let message =
                format!("prompt is too long: {bytes} bytes, and the maximum context length is {context} tokens");
            ApiError::invalid_param("messages", message).with_code("context_length_exceeded")
        }
        GenerateError::Abandoned => ApiError::unavailable(message, None).with_code("preparation_timeout"),
        GenerateError::NoTemplate => ApiError::invalid_param("messages", message).with_code("no_chat_template"),
        GenerateError::Template(_) | GenerateError::Unencodable(_) => ApiError::invalid_param("messages", message),
    }
}

/// Agents recognise an overflow by one of these phrases, and then make their history shorter: Anthropic's, OpenAI's and
/// llama.cpp's.
fn context_exceeded(prompt: usize, context: usize) -> ApiError {
    let message = format!(
        "prompt is too long: {prompt} tokens > {context} maximum. The model's maximum context length is {context} tokens \
         and the request exceeds the available context size; shorten it, or serve the model with a larger --context"
    );
    ApiError::invalid_param("messages", message).with_code("context_length_exceeded")
}

/// A session cannot be continued.
pub(crate) fn forgotten(error: &RequestError) -> ApiError {
    let message = error.to_string();
    match error {
        RequestError::Generate(error) => failure(error),
        RequestError::Session(MemoryError::Invalid { .. })
        | RequestError::NotASession
        | RequestError::OtherModel { .. } => ApiError::invalid_param("session", message),
        RequestError::Session(error) if error.is_transient() => {
            tracing::warn!("{message}");
            let message = "this session cannot be read at the moment; try again, or send the request without session";
            ApiError::unavailable(message, Some(MEMORY_RETRY)).with_param("session")
        }
        RequestError::Session(_) => {
            tracing::error!("{message}");
            ApiError::internal("the session cannot be restored; see the server's log")
        }
    }
}

/// Renames fields in an error, for endpoints with other names for them: the name elsewhere, and the name there.
pub(crate) fn renamed(mut error: ApiError, names: &[(&str, &str)]) -> ApiError {
    // With the place in a list, if there is one: `input[1]`.
    let renamed = |param: &String, (elsewhere, here): &(&str, &str)| {
        let place = param.strip_prefix(elsewhere)?;
        (place.is_empty() || place.starts_with('[')).then(|| format!("{here}{place}"))
    };
    let name = |param: &String| names.iter().find_map(|names| renamed(param, names));
    if let Some(name) = error.param.as_ref().and_then(name) {
        error.param = Some(name);
    }
    error
}

/// An adapter cannot be used. What is wrong with its files is for whoever loads it.
fn adapter(error: &AdapterError, message: String) -> ApiError {
    match error {
        AdapterError::NoRoom { .. } => {
            ApiError::unavailable(message, Some(LOAD_RETRY)).with_code("adapter_memory").with_param("adapter")
        }
        AdapterError::NotRegistered(_) => {
            ApiError::not_found(message).with_param("adapter").with_code("adapter_not_found")
        }
        _ => ApiError::invalid_param("adapter", message).with_code("adapter_not_loadable"),
    }
}

fn submission(error: &SubmitError) -> ApiError {
    let message = error.to_string();
    match error {
        SubmitError::QueueFull(_) | SubmitError::TenantQueueFull { .. } => queue_full(message),
        SubmitError::PromptTooLong { prompt, context } => context_exceeded(*prompt, *context),
        SubmitError::TooLargeForCache { .. } => {
            ApiError::invalid_param("messages", message).with_code("context_length_exceeded")
        }
        SubmitError::TooLong { .. } => {
            ApiError::invalid_param("max_tokens", message).with_code("context_length_exceeded")
        }
        SubmitError::EmptyPrompt | SubmitError::NoSuchToken { .. } => ApiError::invalid_param("prompt", message),
        SubmitError::NothingToGenerate => ApiError::invalid_param("max_tokens", message),
        SubmitError::Sampling(SamplingError::OutOfRange { field, .. }) => ApiError::invalid_param(*field, message),
        SubmitError::Sampling(SamplingError::BiasToken { .. }) => ApiError::invalid_param("logit_bias", message),
        SubmitError::ChoosesTokens { field } => {
            ApiError::invalid_param(*field, message).with_code("unsupported_parameter")
        }
        SubmitError::Prompt(_) => ApiError::invalid_param("messages", message),
        SubmitError::NoSuchAdapter => ApiError::invalid_param("model", message),
        SubmitError::NoThread(_) | SubmitError::NoStates | SubmitError::NoLogits | SubmitError::DeviceLost(_) => {
            ApiError::internal(message)
        }
    }
}

impl From<ModelError> for ApiError {
    fn from(error: ModelError) -> Self {
        let message = error.to_string();
        match error {
            ModelError::Unknown { .. } | ModelError::NotLoaded { .. } => {
                ApiError::not_found(message).with_param("model").with_code("model_not_found")
            }
            ModelError::Full { .. } => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, ErrorKind::Overloaded, message)
                .with_code("models_in_use")
                .with_retry_after(LOAD_RETRY),
            ModelError::NoRoom { loaded, .. } if !loaded.is_empty() => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, ErrorKind::Overloaded, message)
                    .with_code("models_in_use")
                    .with_retry_after(LOAD_RETRY)
            }
            ModelError::NoRoom { .. } => ApiError::internal(message).with_code("model_too_large"),
            ModelError::NoRoomForAdapters { .. } => {
                ApiError::unavailable(message, Some(LOAD_RETRY)).with_code("adapter_memory").with_param("adapter")
            }
            ModelError::Pinned { .. } | ModelError::Taken { .. } => {
                ApiError::new(StatusCode::CONFLICT, ErrorKind::InvalidRequest, message)
            }
            ModelError::UnknownAdapter { .. } => {
                ApiError::not_found(message).with_param("adapter").with_code("adapter_not_found")
            }
            ModelError::AmbiguousAdapter { .. } | ModelError::TwoAdapters { .. } => {
                ApiError::invalid_param("adapter", message)
            }
            ModelError::AdapterName { .. } | ModelError::AdapterTaken { .. } => {
                ApiError::invalid_param("lora_name", message)
            }
            ModelError::AdapterPath { .. } => ApiError::invalid_param("lora_path", message),
            ModelError::WhichModel { .. } => ApiError::invalid_param("model", message),
            ModelError::KernelPack { .. } => ApiError::invalid_param("packs", message),
            ModelError::AdapterChanged { .. } => {
                ApiError::new(StatusCode::CONFLICT, ErrorKind::InvalidRequest, message).with_param("adapter")
            }
            ModelError::Adapter { error, .. } => adapter(&error, message),
            ModelError::NoGenerator { .. } | ModelError::NoEncoder { .. } | ModelError::NoReranker { .. } => {
                ApiError::invalid_param("model", message).with_code("unsupported_model")
            }
            ModelError::Store(StoreError::Unknown { .. } | StoreError::NotPulled { .. }) => {
                ApiError::not_found(message).with_param("model").with_code("model_not_found")
            }
            ModelError::Store(StoreError::UnknownAdapter { .. }) => {
                ApiError::not_found(message).with_param("adapters").with_code("adapter_not_found")
            }
            ModelError::Store(
                StoreError::BadName { .. }
                | StoreError::BadHubAddress { .. }
                | StoreError::NoSuchFile { .. }
                | StoreError::NotRemote { .. }
                | StoreError::TooLong { .. },
            ) => ApiError::invalid_param("model", message),
            ModelError::Store(
                StoreError::NameTaken { .. }
                | StoreError::Shared { .. }
                | StoreError::OfOllama { .. }
                | StoreError::IsBase { .. }
                | StoreError::Busy { .. },
            ) => ApiError::new(StatusCode::CONFLICT, ErrorKind::InvalidRequest, message),
            ModelError::Load { .. } | ModelError::Store(_) | ModelError::Lost { .. } => {
                tracing::error!("{message}");
                ApiError::internal(message).with_code("model_not_loadable")
            }
        }
    }
}
