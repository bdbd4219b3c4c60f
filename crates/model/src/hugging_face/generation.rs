//! From `generation_config.json` to GGUF's keys: how the makers of a model want its tokens to be chosen.

use serde_json::{Map, Value as Json};

use crate::formats::gguf::write::Header;
use crate::formats::gguf::{Value, shortened};

pub(super) const CONFIG: &str = "generation_config.json";

/// Settings of transformers, and the ends of llama.cpp's keys.
const KEYS: [(&str, &str); 5] = [
    ("temperature", "temp"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
    ("min_p", "min_p"),
    ("repetition_penalty", "penalty_repeat"),
];

/// Sets what the file says, sound or not: who samples decides what of it makes sense.
pub(super) fn fill(header: &mut Header, generation: &Map<String, Json>) {
    for (setting, key) in KEYS {
        let key = format!("general.sampling.{key}");
        match generation.get(setting) {
            None | Some(Json::Null) => {}
            Some(Json::Number(number)) => match (number.as_i64(), number.as_f64()) {
                (Some(whole), _) => header.set(&key, Value::I64(whole)),
                (None, number) => header.set(&key, Value::F32(number.unwrap_or(f64::NAN) as f32)),
            },
            Some(other) => header.set(&key, Value::String(&shortened(&other.to_string()))),
        }
    }
    // Penalties of transformers are for the whole text, those of llama.cpp for its end unless it is said.
    if generation.get("repetition_penalty").and_then(Json::as_f64).is_some_and(|penalty| penalty != 1.0) {
        header.set("general.sampling.penalty_last_n", Value::I32(-1));
    }
}
