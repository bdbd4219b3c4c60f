//! `options`: the parameters of a request, or the defaults of a model, in Ollama's terms.

use ruvllm_runtime::{Request, Sampling, UnsetParams};
use ruvllm_store::ModelSettings;
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use serde_json::{Number, Value};
use utoipa::ToSchema;

use crate::api::fields::{self, Stop};
use crate::error::ApiError;
use crate::ignored::IgnoredParams;

/// Names of fields in errors of the engine, and here.
pub(crate) const NAMES: [(&str, &str); 11] = [
    ("temperature", "options.temperature"),
    ("top_p", "options.top_p"),
    ("top_k", "options.top_k"),
    ("min_p", "options.min_p"),
    ("typical_p", "options.typical_p"),
    ("repetition_penalty", "options.repeat_penalty"),
    ("presence_penalty", "options.presence_penalty"),
    ("frequency_penalty", "options.frequency_penalty"),
    ("max_tokens", "options.num_predict"),
    ("stop", "options.stop"),
    ("response_format", "format"),
];

macro_rules! options {
    ($($(#[$attribute:meta])* $field:ident: $Type:ty,)*) => {
        /// Parameters of a request. Others are ignored and named in the header `x-ruvllm-ignored`.
        #[derive(Clone, Debug, Default, Deserialize, ToSchema)]
        pub struct Options {
            $($(#[$attribute])* pub $field: Option<$Type>,)*
        }

        impl Options {
            /// Returns these where they are set, and otherwise those of `defaults`.
            pub(crate) fn over(&self, defaults: &Self) -> Self {
                Self { $($field: self.$field.clone().or_else(|| defaults.$field.clone()),)* }
            }
        }
    };
}

options! {
    /// 0 always takes the most likely token; the model's own or 0.8 by default.
    #[schema(minimum = 0, maximum = 100)]
    temperature: f32,
    /// Only the most likely tokens; the model's own or 40 by default, 0 is off.
    #[serde(default, deserialize_with = "whole")]
    top_k: i64,
    /// The model's own or 0.95 by default; 1 is off.
    #[schema(exclusive_minimum = 0, maximum = 1)]
    top_p: f32,
    /// The model's own or 0.05 by default; 0 is off.
    #[schema(minimum = 0, maximum = 1)]
    min_p: f32,
    #[schema(exclusive_minimum = 0, maximum = 1)]
    typical_p: f32,
    #[schema(minimum = 0.01, maximum = 100)]
    repeat_penalty: f32,
    #[schema(minimum = -2, maximum = 2)]
    presence_penalty: f32,
    #[schema(minimum = -2, maximum = 2)]
    frequency_penalty: f32,
    /// The same seed gives the same answer.
    #[serde(default, deserialize_with = "whole")]
    seed: i64,
    /// Maximum number of generated tokens; what the context has room for if it is not positive.
    #[serde(default, deserialize_with = "whole")]
    num_predict: i64,
    stop: Stop,
    /// Maximum number of tokens of prompt and answer. More than the model is loaded with is ignored and named.
    #[serde(default, deserialize_with = "whole")]
    #[schema(minimum = 1)]
    num_ctx: i64,
}

impl Options {
    /// Reads the defaults of a model. What it says and we do not do is ignored, as in a request.
    pub(crate) fn of_settings(settings: &ModelSettings, ignored: &IgnoredParams) -> Result<Self, ApiError> {
        if settings.parameters.is_empty() {
            return Ok(Self::default());
        }
        let parameters = Value::Object(settings.parameters.clone());
        crate::body::read(parameters, "parameters", ignored)
    }

    /// Checks what the engine would not.
    pub(crate) fn check(&self) -> Result<(), ApiError> {
        fields::stop(self.stop.as_ref())?;
        self.context().map(drop)
    }

    /// Returns the context that the request wants.
    pub(crate) fn context(&self) -> Result<Option<usize>, ApiError> {
        fields::context("options.num_ctx", self.num_ctx)
    }

    /// Puts them into a request.
    pub(crate) fn apply(&self, request: Request) -> Result<Request, ApiError> {
        self.check()?;
        let default = Sampling::default();
        let sampling = Sampling {
            temperature: self.temperature.unwrap_or(default.temperature),
            top_p: self.top_p.unwrap_or(default.top_p),
            top_k: self.top_k.map_or(default.top_k, |count| usize::try_from(count).unwrap_or(0)),
            min_p: self.min_p.unwrap_or(default.min_p),
            typical_p: self.typical_p.unwrap_or(default.typical_p),
            repetition_penalty: self.repeat_penalty.unwrap_or(default.repetition_penalty),
            presence_penalty: self.presence_penalty.unwrap_or(default.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(default.frequency_penalty),
            top_logprobs: request.sampling.top_logprobs,
            ..default
        };
        let max_tokens = self.num_predict.and_then(|count| usize::try_from(count).ok()).filter(|count| *count > 0);
        let request = Request {
            sampling,
            max_tokens,
            context: self.context()?,
            clamps_max_tokens: true,
            stop: fields::stop(self.stop.as_ref())?,
            unset: UnsetParams {
                top_k: self.top_k.is_none(),
                min_p: self.min_p.is_none(),
                repetition_penalty: self.repeat_penalty.is_none(),
                ..fields::unset_params(self.temperature, self.top_p, max_tokens)
            },
            ..request
        };
        Ok(fields::with_seed(request, self.seed, 1))
    }
}

/// Reads a whole number, which some clients write as `4096.0`.
fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<i64>, D::Error> {
    let Some(number) = Option::<Number>::deserialize(deserializer)? else { return Ok(None) };
    let float = |number: &Number| number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < 9e18);
    let whole = number.as_i64().or_else(|| float(&number).map(|float| float as i64));
    whole.map(Some).ok_or_else(|| D::Error::custom(format!("invalid value: {number}, expected a whole number")))
}

#[cfg(test)]
mod tests {
    use ruvllm_runtime::Prompt;
    use serde_json::json;

    use super::*;

    fn options(value: Value) -> Result<Options, ApiError> {
        let ignored = IgnoredParams::default();
        crate::body::read(value, "options", &ignored)
    }

    fn request(value: Value) -> Request {
        options(value).unwrap().apply(Request::new(Prompt::Text(String::new()))).unwrap()
    }

    #[test]
    fn options_become_sampling_parameters() {
        let made = request(
            json!({"temperature": 0, "top_k": -1, "repeat_penalty": 1.1, "seed": 7, "num_predict": 5, "stop": "x"}),
        );
        assert_eq!((made.sampling.temperature, made.sampling.top_k, made.sampling.repetition_penalty), (0.0, 0, 1.1));
        assert_eq!((made.sampling.seed, made.max_tokens, made.stop), (7, Some(5), vec!["x".to_owned()]));
        assert!(!made.unset.temperature && made.unset.top_p);
        for unlimited in [-1, -2, 0] {
            assert_eq!(request(json!({"num_predict": unlimited})).max_tokens, None);
        }
        assert_eq!(request(json!({"num_predict": 16.0, "num_ctx": null})).max_tokens, Some(16));
    }

    #[test]
    fn a_request_wins_over_the_defaults_of_its_model() {
        let given = options(json!({"temperature": 0.1})).unwrap();
        let merged = given.over(&options(json!({"temperature": 0.9, "top_k": 3})).unwrap());
        assert_eq!((merged.temperature, merged.top_k), (Some(0.1), Some(3)));
    }

    #[test]
    fn values_that_make_no_sense_are_refused_by_name() {
        for (value, param) in [
            (json!({"num_ctx": "many"}), "options.num_ctx"),
            (json!({"num_ctx": 1.5}), "options.num_ctx"),
            (json!({"temperature": []}), "options.temperature"),
            (json!({"stop": 7}), "options.stop"),
            (json!({"seed": 1e300}), "options.seed"),
            (json!([]), "options"),
        ] {
            let error = options(value.clone()).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{value}: {error}");
        }
        for tokens in [0, -1, i64::from(i32::MAX) * 1000] {
            let error = options(json!({"num_ctx": tokens})).unwrap().check().unwrap_err();
            assert_eq!(error.param.as_deref(), Some("options.num_ctx"));
        }
    }
}
