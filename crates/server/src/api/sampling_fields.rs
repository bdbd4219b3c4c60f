//! The sampling parameters that chat and text completions share.

use std::collections::BTreeMap;

use crate::error::ApiError;

/// Declares a request type with the sampling parameters in the place of `..sampling`, and a method that returns them. A
/// shared struct with serde's `flatten` would not do: it accepts unknown fields and loses the path of invalid ones.
macro_rules! with_sampling_fields {
    (
        $(#[$attribute:meta])*
        pub struct $Request:ident {
            $($(#[$before_attribute:meta])* pub $before:ident: $Before:ty,)*
            ..sampling,
            $($(#[$after_attribute:meta])* pub $after:ident: $After:ty,)*
        }
    ) => {
        $(#[$attribute])*
        pub struct $Request {
            $($(#[$before_attribute])* pub $before: $Before,)*
            /// 0 always takes the most likely token; the model's own or 0.8 by default.
            #[schema(minimum = 0, maximum = 100)]
            pub temperature: Option<f32>,
            /// The model's own or 0.95 by default; 1 is off.
            #[schema(exclusive_minimum = 0, maximum = 1)]
            pub top_p: Option<f32>,
            /// Only the most likely tokens; the model's own or 40 by default, 0 is off.
            pub top_k: Option<usize>,
            /// The model's own or 0.05 by default; 0 is off.
            #[schema(minimum = 0, maximum = 1)]
            pub min_p: Option<f32>,
            #[schema(exclusive_minimum = 0, maximum = 1)]
            pub typical_p: Option<f32>,
            #[schema(minimum = 0.01, maximum = 100)]
            pub repetition_penalty: Option<f32>,
            #[schema(minimum = -2, maximum = 2)]
            pub presence_penalty: Option<f32>,
            #[schema(minimum = -2, maximum = 2)]
            pub frequency_penalty: Option<f32>,
            /// Token ids with the value that is added to their logits, -100 to 100.
            pub logit_bias: Option<std::collections::BTreeMap<String, f32>>,
            /// The same seed gives the same answer.
            pub seed: Option<i64>,
            /// End user of this request, for the log.
            pub user: Option<String>,
            /// Requests of a lower priority wait for others. Above 0 needs a key with the scope admin.
            pub priority: Option<i8>,
            /// Maximum number of tokens of prompt and answer. More than the model is loaded with has no effect.
            #[schema(minimum = 1)]
            pub num_ctx: Option<i64>,
            /// How long the model stays loaded after the answer: seconds, or a text such as `5m`.
            pub keep_alive: Option<$crate::api::keep_alive::KeepAliveField>,
            /// The adapter that the answer is generated with, if `model` does not name it: its name, or several such as
            /// `[{"name": "legal", "weight": 0.5}]`.
            pub adapter: Option<$crate::api::adapter_fields::AdapterField>,
            /// The same by number, as llama-server has it: `[{"id": 0, "scale": 0.5}]`.
            pub lora: Option<Vec<$crate::api::adapter_fields::LoraScale>>,
            /// Whether the answer may be drawn with a memory of what was corrected earlier, where its sender has opted
            /// in to learning; true by default. The header `x-ruvllm-recall` says whether there was one.
            pub recall: Option<bool>,
            $($(#[$after_attribute])* pub $after: $After,)*
        }

        impl $Request {
            /// Returns the adapters that the request names.
            pub(crate) fn adapters(&self) -> Result<$crate::models::AskedAdapters, ApiError> {
                $crate::api::adapter_fields::asked(self.adapter.as_ref(), self.lora.as_deref())
            }

            /// Returns the parameters that the request leaves unset.
            fn unset(&self, max_tokens: Option<usize>) -> ruvllm_runtime::UnsetParams {
                ruvllm_runtime::UnsetParams {
                    top_k: self.top_k.is_none(),
                    min_p: self.min_p.is_none(),
                    repetition_penalty: self.repetition_penalty.is_none(),
                    ..$crate::api::fields::unset_params(self.temperature, self.top_p, max_tokens)
                }
            }

            /// Returns the sampling parameters, with defaults for those that are unset.
            fn sampling(&self, top_logprobs: Option<usize>) -> Result<ruvllm_runtime::Sampling, ApiError> {
                let default = ruvllm_runtime::Sampling::default();
                Ok(ruvllm_runtime::Sampling {
                    temperature: self.temperature.unwrap_or(default.temperature),
                    top_p: self.top_p.unwrap_or(default.top_p),
                    top_k: self.top_k.unwrap_or(default.top_k),
                    min_p: self.min_p.unwrap_or(default.min_p),
                    typical_p: self.typical_p.unwrap_or(default.typical_p),
                    repetition_penalty: self.repetition_penalty.unwrap_or(default.repetition_penalty),
                    presence_penalty: self.presence_penalty.unwrap_or(default.presence_penalty),
                    frequency_penalty: self.frequency_penalty.unwrap_or(default.frequency_penalty),
                    logit_bias: $crate::api::sampling_fields::logit_bias(self.logit_bias.as_ref())?,
                    top_logprobs,
                    ..default
                })
            }
        }
    };
}
pub(crate) use with_sampling_fields;

/// Parses the keys of `logit_bias`: token ids, which JSON requires in quotes.
pub(crate) fn logit_bias(given: Option<&BTreeMap<String, f32>>) -> Result<BTreeMap<u32, f32>, ApiError> {
    let entry = |(token, bias): (&String, &f32)| match token.parse() {
        Ok(token) => Ok((token, *bias)),
        Err(_) => {
            let message = format!("logit_bias has the key {token:?}; keys are token ids, such as \"42\"");
            Err(ApiError::invalid_param("logit_bias", message))
        }
    };
    given.into_iter().flatten().map(entry).collect()
}
