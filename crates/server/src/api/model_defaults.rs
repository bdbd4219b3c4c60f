//! Defaults that a model brings with it, for `ruvllm run` and for requests of APIs that are not Ollama's.
//!
//! Applied where a request is known to leave something open: its beginning, temperature, nucleus, lengths and stop strings.
//! Ollama's own endpoints know more about what was left open (`ollama/request.rs`).

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
    if let Some(temperature) = options.temperature.filter(|_| request.unset.temperature) {
        request.sampling.temperature = temperature;
        request.unset.temperature = false;
    }
    if let Some(top_p) = options.top_p.filter(|_| request.unset.top_p) {
        request.sampling.top_p = top_p;
        request.unset.top_p = false;
    }
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

#[cfg(test)]
mod tests {
    use ruvllm_runtime::{Message, UnsetParams};
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_request_leaves_open_is_filled_in() {
        let parameters =
            json!({"temperature": 0.1, "top_p": 0.2, "num_predict": 3, "num_ctx": 64, "stop": ["x"], "num_gpu": 1});
        let settings: ModelSettings =
            serde_json::from_value(json!({"system": "Arr.", "parameters": parameters})).unwrap();
        let unset = UnsetParams { temperature: true, top_p: false, max_tokens: true };
        let mut request = Request { unset, ..Request::new(Prompt::Messages(vec![Message::user("Hi")])) };
        let top_p = request.sampling.top_p;
        apply(&mut request, &settings);
        assert_eq!((request.sampling.temperature, request.sampling.top_p), (0.1, top_p));
        assert_eq!((request.max_tokens, request.context), (Some(3), Some(64)));
        assert_eq!(request.stop, ["x"]);
        assert_eq!(request.prompt, Prompt::Messages(vec![Message::system("Arr."), Message::user("Hi")]));
        let before = Request::new(Prompt::Text("Hi".to_owned()));
        let mut after = before.clone();
        apply(&mut after, &ModelSettings::default());
        assert_eq!(before, after);
    }
}
