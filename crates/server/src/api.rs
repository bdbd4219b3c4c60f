//! The endpoints for programs: OpenAI's, Anthropic's, Ollama's, and some of our own.
//!
//! Each one validates its request and converts it for the runtime (`request.rs`), has it answered (`generation.rs`, the
//! same for all), and converts the answer to its own format, whole or as events (`sse.rs`).

mod adapter_fields;
mod adapters;
mod admin;
mod charges;
mod chat;
#[doc(hidden)]
pub mod checked;
mod choice;
mod completions;
mod conversation;
mod embeddings;
mod encoding;
mod failure;
mod feedback;
mod fields;
mod fleet;
mod generation;
mod grpc;
mod ids;
mod keep_alive;
mod kernels;
mod learned;
mod logprobs;
mod memory;
mod messages;
mod model_defaults;
mod model_list;
mod ollama;
mod params;
mod preparing;
mod reasoning;
mod rerank;
mod responses;
mod sampling_fields;
mod sections;
mod signature;
mod sse;
mod tokens;
mod tools;
mod typed;
mod usage;
mod worker;

use std::sync::Arc;
use std::time::Duration;

use ruvllm_runtime::{Engine, ModelRouter, Prompt, Request, RequestRecorder, Tools};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use self::generation::Generation;
use self::keep_alive::KeepAliveField;
pub use self::keep_alive::parse_duration as parse_go_duration;
pub use self::model_defaults::apply as apply_model_settings;
pub use self::preparing::Preparing;
pub use self::responses::store::STORED_RESPONSES_BYTES_MAX;
use crate::access::{Caller, Scope};
use crate::error::ApiError;
use crate::fleet::Fleet;
use crate::lifecycle::Lifecycle;
use crate::models::{AskedAdapters, ModelInUse, Models};

/// Identifies the program in answers.
const FINGERPRINT: &str = concat!("ruvllm-", env!("CARGO_PKG_VERSION"));

/// State of the endpoints.
#[derive(Clone, Debug)]
pub struct Api {
    pub models: Arc<Models>,
    pub lifecycle: Lifecycle,
    /// Maximum duration of an answer.
    pub answer_time_max: Option<Duration>,
    /// Records requests, unless the memory is turned off.
    pub memory: Option<RequestRecorder>,
    /// Chooses between models for requests that leave that open, unless the memory is turned off.
    pub router: Option<Arc<ModelRouter>>,
    /// The servers that share the memory.
    pub fleet: Arc<Fleet>,
    /// Limits how many long prompts are prepared concurrently.
    pub preparing: Preparing,
    /// Whether programs on this machine may change the store by Ollama's API without a key.
    pub allows_local_changes: bool,
}

impl Api {
    /// Returns the endpoints that need the scope `inference`.
    pub fn router(self) -> OpenApiRouter {
        let responses = responses::router(self.clone());
        let memory = memory::router(self.clone());
        let feedback = feedback::router(self.clone());
        let ollama = ollama::router(self.clone());
        let others = OpenApiRouter::new()
            .routes(routes!(chat::chat_completions))
            .routes(routes!(completions::completions))
            .routes(routes!(embeddings::embeddings))
            .routes(routes!(rerank::rerank))
            .routes(routes!(rerank::rerank_v2))
            .routes(routes!(rerank::rerank_without_version))
            .routes(routes!(messages::create_message))
            .routes(routes!(messages::count_tokens))
            .routes(routes!(model_list::list_models))
            .routes(routes!(model_list::show_model))
            .routes(routes!(adapters::list_lora_adapters))
            .routes(routes!(tokens::tokenize))
            .routes(routes!(tokens::detokenize))
            .routes(routes!(worker::version))
            .routes(routes!(worker::server_info))
            .routes(routes!(worker::get_server_info))
            .routes(routes!(worker::model_info))
            .routes(routes!(worker::get_model_info))
            .routes(routes!(worker::get_load))
            .routes(routes!(worker::render_chat))
            .routes(routes!(worker::render_completion));
        others.with_state(self).merge(responses).merge(memory).merge(feedback).merge(ollama)
    }

    /// Encodes a prompt. Rendering and tokenizing take time, so they run in the background.
    async fn encode(
        &self,
        caller: &Caller,
        engine: Engine,
        prompt: Prompt,
        tools: Tools,
    ) -> Result<Vec<u32>, ApiError> {
        let permit = self.preparing.permit(&caller.tenant, preparing::bytes_of(&prompt)).await?;
        let encoded = permit.run(move |_| engine.encode_with_tools(&prompt, &tools)).await;
        let encoded = encoded.ok_or_else(|| ApiError::internal("the text could not be encoded"))?;
        let tokens = encoded.map_err(|error| failure::failure(&error))?;
        caller.charge(charges::of_encoding(tokens.len()));
        Ok(tokens)
    }

    /// Starts answering requests for one model.
    async fn generate(
        &self,
        model: &str,
        keep_alive: Option<&KeepAliveField>,
        adapters: &AskedAdapters,
        caller: &Caller,
        mut requests: Vec<Request>,
    ) -> Result<Generation, ApiError> {
        let model = self.model_for(model, adapters, caller, &requests).await?;
        keep_alive::apply(keep_alive, &model, &self.models, caller)?;
        let context = requests.iter().filter_map(|request| request.context).max();
        fields::note_context("num_ctx", context, model.runner.context(), caller.ignored())?;
        requests.iter_mut().for_each(|request| model_defaults::apply(request, &model.defaults));
        self.generate_with(model, caller, requests).await
    }

    /// Starts answering requests with a model whose defaults are in them already.
    async fn generate_with(
        &self,
        model: ModelInUse,
        caller: &Caller,
        mut requests: Vec<Request>,
    ) -> Result<Generation, ApiError> {
        if requests.iter().any(|request| request.priority > 0) {
            caller.require(Scope::Admin)?;
        }
        if requests.iter().any(|request| request.session.is_some()) {
            caller.require_session()?;
        }
        requests.iter_mut().for_each(|request| request.timeout = self.answer_time_max);
        let shape_field = requests.first().and_then(|request| request.output_format.as_ref()).map(fields::field_of);
        let started = Generation::start(self, model, caller, requests).await;
        // The grammar compiler does not know which field a format came from.
        started
            .map_err(|error| failure::renamed(error, &[("response_format", shape_field.unwrap_or("response_format"))]))
    }
}
