//! Defaults that a model brings with it, for `ruvllm run` and for requests of APIs that are not Ollama's.
//!
//! Applied where a request is known to leave something open: its beginning, most sampling parameters, lengths and stop
//! strings. Ollama's own endpoints know more about what was left open (`ollama/request.rs`). What the model's file says
//! comes after them (`SamplingDefaults`).

use ruvllm_runtime::{Prompt, Request};
use ruvllm_store::ModelSettings;

use crate::api::fields;
use crate::api::ollama::messages;
use crate::api::ollama::options::Options;
use crate::ignored::IgnoredParams;

/// Fills in what a request leaves open.
pub fn apply(request: &mut Request, settings: &ModelSettings) {
    if settings.is_empty() {
        return;
    }
    // A session has its beginning already.
    if request.session.is_none()
        && let Prompt::Messages(given) = &mut request.prompt
    {
        *given = messages::begin(std::mem::take(given), settings);
    }
    // Parameters that cannot be read were refused when the model was made; those of an Ollama installation are left out.
    let Ok(options) = Options::of_settings(settings, &IgnoredParams::default()) else { return };
    let (unset, sampling) = (&mut request.unset, &mut request.sampling);
    put(&mut sampling.temperature, options.temperature, &mut unset.temperature);
    put(&mut sampling.top_k, options.top_k.map(|count| usize::try_from(count).unwrap_or(0)), &mut unset.top_k);
    put(&mut sampling.top_p, options.top_p, &mut unset.top_p);
    put(&mut sampling.min_p, options.min_p, &mut unset.min_p);
    put(&mut sampling.repetition_penalty, options.repeat_penalty, &mut unset.repetition_penalty);
    let max_tokens = options.num_predict.and_then(|count| usize::try_from(count).ok()).filter(|count| *count > 0);
    if let Some(max_tokens) = max_tokens.filter(|_| request.unset.max_tokens) {
        request.max_tokens = Some(max_tokens);
        request.clamps_max_tokens = true;
        request.unset.max_tokens = false;
    }
    request.context = request.context.or_else(|| options.context().ok().flatten());
    if request.stop.is_empty() {
        request.stop = fields::stop(options.stop.as_ref()).unwrap_or_default();
    }
}

/// Sets what is unset, and remembers that it is set.
fn put<T>(value: &mut T, default: Option<T>, is_unset: &mut bool) {
    if let Some(default) = default.filter(|_| *is_unset) {
        (*value, *is_unset) = (default, false);
    }
}

#[cfg(test)]
mod tests {
    use ruvllm_runtime::{Message, UnsetParams};
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_request_leaves_open_is_filled_in() {
        let parameters = json!({"temperature": 0.1, "top_p": 0.2, "top_k": 7, "repeat_penalty": 1.2, "num_predict": 3, "num_ctx": 64, "stop": ["x"], "num_gpu": 1});
        let settings: ModelSettings =
            serde_json::from_value(json!({"system": "Arr.", "parameters": parameters})).unwrap();
        let unset = UnsetParams { top_p: false, min_p: false, ..UnsetParams::ALL };
        let mut request = Request { unset, ..Request::new(Prompt::Messages(vec![Message::user("Hi")])) };
        let top_p = request.sampling.top_p;
        apply(&mut request, &settings);
        assert_eq!((request.sampling.temperature, request.sampling.top_p), (0.1, top_p));
        assert_eq!((request.sampling.top_k, request.sampling.repetition_penalty), (7, 1.2));
        assert!(!request.unset.top_k && request.unset.repetition_window);
        assert_eq!((request.max_tokens, request.context), (Some(3), Some(64)));
        assert_eq!(request.stop, ["x"]);
        assert_eq!(request.prompt, Prompt::Messages(vec![Message::system("Arr."), Message::user("Hi")]));
        let before = Request::new(Prompt::Text("Hi".to_owned()));
        let mut after = before.clone();
        apply(&mut after, &ModelSettings::default());
        assert_eq!(before, after);
    }
}
