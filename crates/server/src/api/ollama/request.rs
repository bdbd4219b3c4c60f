//! `POST /api/chat` and `POST /api/generate`: the requests, their validation and conversion for the runtime.

use ruvllm_runtime::{Message, Prompt, Request, Sampling, Truncation};
use ruvllm_store::ModelSettings;
use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use super::fields::{self, Think};
use super::messages::{self, OllamaMessage, OllamaTool};
use super::options::Options;
use crate::api::adapter_fields::{self, AdapterField};
use crate::api::keep_alive::KeepAliveField;
use crate::api::reasoning::ReasoningParam;
use crate::error::ApiError;
use crate::ignored::IgnoredParams;
use crate::models::AskedAdapters;

/// Declares a request type with the fields that both have in the place of `..common`. A shared struct with serde's `flatten`
/// would not do: it accepts unknown fields and loses the path of invalid ones.
macro_rules! with_common_fields {
    (
        $(#[$attribute:meta])*
        pub struct $Request:ident {
            $($(#[$field_attribute:meta])* pub $field:ident: $Type:ty,)*
            ..common,
        }
    ) => {
        $(#[$attribute])*
        pub struct $Request {
            $($(#[$field_attribute])* pub $field: $Type,)*
            /// Whether the answer comes in lines as it is generated; true by default.
            pub stream: Option<bool>,
            /// `json`, or a JSON schema that the answer must follow.
            #[schema(value_type = Option<Object>)]
            pub format: Option<Value>,
            pub options: Option<Options>,
            pub keep_alive: Option<KeepAliveField>,
            /// The adapter that the answer is generated with, if `model` does not name it: its name, or several such as
            /// `[{"name": "legal", "weight": 0.5}]`.
            pub adapter: Option<AdapterField>,
            /// Whether the answer may be drawn with a memory of what was corrected earlier, where its sender has opted
            /// in to learning; true by default. The header `x-ruvllm-recall` says whether there was one.
            pub recall: Option<bool>,
            pub think: Option<Think>,
            pub logprobs: Option<bool>,
            /// Number of the most likely tokens to report at each position.
            #[schema(maximum = 20)]
            pub top_logprobs: Option<usize>,
            /// Whether the oldest messages of a conversation that is too long are left out. By default it is refused.
            pub truncate: Option<bool>,
            /// Has no effect: an answer ends where the context does.
            pub shift: Option<bool>,
        }

        impl $Request {
            pub(crate) fn streams(&self) -> bool {
                self.stream.unwrap_or(true)
            }

            /// Returns the adapters that the request names.
            pub(crate) fn adapters(&self) -> Result<AskedAdapters, ApiError> {
                adapter_fields::asked(self.adapter.as_ref(), None)
            }

            pub(crate) fn wants_logprobs(&self) -> bool {
                self.logprobs.unwrap_or(false)
            }

            pub(crate) fn reasoning(&self) -> Result<ReasoningParam, ApiError> {
                fields::reasoning(self.think.as_ref())
            }

            /// Returns the options of the request over those of its model.
            pub(crate) fn options(&self, settings: &ModelSettings, ignored: &IgnoredParams) -> Result<Options, ApiError> {
                let defaults = Options::of_settings(settings, ignored)?;
                Ok(self.options.as_ref().map_or_else(|| defaults.clone(), |given| given.over(&defaults)))
            }

            /// Puts everything but the prompt into a request.
            fn apply_common(&self, request: Request, options: &Options, ignored: &IgnoredParams) -> Result<Request, ApiError> {
                if self.shift == Some(true) {
                    ignored.note("shift", "an answer ends where the context does")?;
                }
                if self.top_logprobs.is_some() && !self.wants_logprobs() {
                    ignored.note("top_logprobs", "it needs logprobs: true")?;
                }
                let top_logprobs = self.wants_logprobs().then(|| self.top_logprobs.unwrap_or(0));
                let truncation = if self.truncate == Some(true) { Truncation::DropOldest } else { Truncation::Refuse };
                let output_format = fields::output_format(self.format.as_ref())?;
                let sampling = Sampling { top_logprobs, ..Sampling::default() };
                let may_recall = self.recall.unwrap_or(true);
                let mut request =
                    options.apply(Request { sampling, truncation, output_format, may_recall, ..request })?;
                self.reasoning()?.apply(&mut request);
                Ok(request)
            }
        }
    };
}

with_common_fields! {
    /// A conversation to continue. Without messages, the model is loaded, or unloaded if `keep_alive` is 0. Unknown parameters
    /// are ignored and named in the header `x-ruvllm-ignored`.
    #[derive(Debug, Deserialize, ToSchema)]
    pub struct OllamaChatRequest {
        /// A model of this server; `GET /api/tags` lists them. `auto` leaves the choice to the server.
        #[schema(example = "smollm2")]
        pub model: String,
        pub messages: Option<Vec<OllamaMessage>>,
        /// Tools that the model may call.
        pub tools: Option<Vec<OllamaTool>>,
        ..common,
    }
}

with_common_fields! {
    /// A text to answer or, if it is `raw`, to continue. Without one, the model is loaded, or unloaded if `keep_alive` is 0.
    /// Unknown parameters are ignored and named in the header `x-ruvllm-ignored`.
    #[derive(Debug, Deserialize, ToSchema)]
    pub struct GenerateRequest {
        /// A model of this server; `GET /api/tags` lists them. `auto` leaves the choice to the server.
        #[schema(example = "smollm2")]
        pub model: String,
        pub prompt: Option<String>,
        /// Refused: the models of this server do not fill in.
        pub suffix: Option<String>,
        /// Refused: the models of this server read text only.
        #[schema(value_type = Option<Vec<String>>)]
        pub images: Option<Vec<Value>>,
        /// Used instead of the model's own.
        pub system: Option<String>,
        /// Refused: the model's own is used.
        pub template: Option<String>,
        /// What an earlier answer returned: the conversation so far, as tokens.
        pub context: Option<Vec<u32>>,
        /// Continue the prompt as it is, without a template. Special tokens in it are plain text.
        pub raw: Option<bool>,
        ..common,
    }
}

impl OllamaChatRequest {
    /// Whether there is nothing to answer: the model is only to be loaded or unloaded.
    pub(crate) fn is_empty(&self) -> bool {
        self.messages.as_ref().is_none_or(Vec::is_empty)
    }

    /// Converts the request for a model with these settings.
    pub(crate) fn request(&self, settings: &ModelSettings, ignored: &IgnoredParams) -> Result<Request, ApiError> {
        let given = messages::messages(self.messages.as_deref().unwrap_or_default())?;
        let tools = messages::tools(self.tools.as_deref())?;
        let prompt = Prompt::Messages(messages::begin(given, settings));
        let options = self.options(settings, ignored)?;
        self.apply_common(Request { tools, ..Request::new(prompt) }, &options, ignored)
    }
}

impl GenerateRequest {
    /// Whether there is nothing to answer: the model is only to be loaded or unloaded.
    pub(crate) fn is_empty(&self) -> bool {
        self.text().is_empty()
    }

    pub(crate) fn is_raw(&self) -> bool {
        self.raw.unwrap_or(false)
    }

    /// Whether it goes on from an earlier answer's tokens.
    pub(crate) fn has_context(&self) -> bool {
        self.context.as_ref().is_some_and(|context| !context.is_empty())
    }

    fn text(&self) -> &str {
        self.prompt.as_deref().unwrap_or_default()
    }

    /// Converts the request for a model with these settings. What `context` holds is put before it later.
    pub(crate) fn request(&self, settings: &ModelSettings, ignored: &IgnoredParams) -> Result<Request, ApiError> {
        self.refuse_unsupported()?;
        let prompt = if self.is_raw() {
            Prompt::Text(self.text().to_owned())
        } else if self.has_context() {
            // The conversation has begun already.
            Prompt::Messages(self.turn())
        } else {
            Prompt::Messages(messages::begin(self.turn(), settings))
        };
        let options = self.options(settings, ignored)?;
        self.apply_common(Request::new(prompt), &options, ignored)
    }

    fn turn(&self) -> Vec<Message> {
        let system = self.system.as_deref().filter(|text| !text.is_empty()).map(Message::system);
        system.into_iter().chain([Message::user(self.text())]).collect()
    }

    fn refuse_unsupported(&self) -> Result<(), ApiError> {
        let is_given = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
        let refused = [
            ("suffix", is_given(&self.suffix), "the models of this server do not fill in"),
            ("template", is_given(&self.template), "the model's own template is used"),
        ];
        if let Some((field, _, why)) = refused.into_iter().find(|(_, is_given, _)| *is_given) {
            let message = format!("{field} is not supported: {why}");
            return Err(ApiError::invalid_param(field, message).with_code("unsupported_parameter"));
        }
        if self.images.as_ref().is_some_and(|images| !images.is_empty()) {
            return Err(messages::no_images("images"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::body::parse;

    fn generate(body: Value) -> Result<Request, ApiError> {
        let ignored = IgnoredParams::default();
        parse::<GenerateRequest>(body.to_string().as_bytes(), &ignored)?.request(&ModelSettings::default(), &ignored)
    }

    fn chat(body: Value) -> Result<(Request, Vec<String>), ApiError> {
        let ignored = IgnoredParams::default();
        let request = parse::<OllamaChatRequest>(body.to_string().as_bytes(), &ignored)?;
        Ok((request.request(&ModelSettings::default(), &ignored)?, ignored.all()))
    }

    #[test]
    fn prompts_are_turns_unless_they_are_raw() {
        let made = generate(json!({"model": "m", "prompt": "Hi", "system": "Be calm."})).unwrap();
        assert_eq!(made.prompt, Prompt::Messages(vec![Message::system("Be calm."), Message::user("Hi")]));
        let raw = generate(json!({"model": "m", "prompt": "Hi", "raw": true})).unwrap();
        assert_eq!(raw.prompt, Prompt::Text("Hi".to_owned()));
    }

    #[test]
    fn what_would_mean_something_else_is_refused_and_the_rest_is_named() {
        for (field, value) in [("suffix", json!("x")), ("template", json!("x")), ("images", json!(["aGk="]))] {
            let mut body = json!({"model": "m", "prompt": "Hi"});
            body[field] = value;
            assert_eq!(generate(body).unwrap_err().param.as_deref(), Some(field));
        }
        let options = json!({"num_gpu": 99, "mirostat": 2, "temperature": 0});
        let body =
            json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "options": options, "shift": true});
        let (request, ignored) = chat(body).unwrap();
        assert_eq!(request.sampling.temperature, 0.0);
        assert_eq!(ignored, ["options.num_gpu", "options.mirostat", "shift"]);
    }

    #[test]
    fn wrong_types_are_named_whatever_the_field() {
        let fields =
            ["messages", "tools", "options", "keep_alive", "think", "stream", "truncate", "logprobs", "top_logprobs"];
        for field in fields {
            let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "Hi"}]});
            body[field] = json!({"a": [1]});
            if field != "options" {
                assert_eq!(chat(body.clone()).unwrap_err().param.as_deref(), Some(field), "{field}");
            }
            body[field] = json!("\u{0}");
            if !["keep_alive", "think"].contains(&field) {
                assert_eq!(chat(body.clone()).unwrap_err().param.as_deref(), Some(field), "{field}");
            }
        }
        for (field, value) in
            [("context", json!("x")), ("context", json!([-1])), ("prompt", json!(7)), ("raw", json!(1))]
        {
            let mut body = json!({"model": "m", "prompt": "Hi"});
            body[field] = value;
            let param = generate(body).unwrap_err().param.unwrap();
            assert!(param.starts_with(field), "{param}");
        }
    }
}
