//! How the makers of a model want its tokens to be chosen, which its file may say (`general.sampling.*`).

use std::fmt;

use ruvllm_engine::Sampling;
use ruvllm_model::formats::gguf::{Gguf, Value};

use crate::Request;

/// Sampling parameters of a model, for requests that leave them open. What the file does not say is `None`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingDefaults {
    pub temperature: Option<f32>,
    pub top_k: Option<usize>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub repetition_window: Option<usize>,
}

impl SamplingDefaults {
    /// Reads those of a model. What makes no sense is left out, and a warning names it.
    pub fn of_file(gguf: &Gguf) -> Self {
        let float = |name: &str, put: fn(&mut Sampling, f32)| {
            let number = number(gguf, name)? as f32;
            let mut sampling = Sampling::default();
            put(&mut sampling, number);
            sampling.check(usize::MAX).map_err(|error| ignore(name, &error.to_string())).ok().map(|()| number)
        };
        let whole = |name: &str| {
            let number = number(gguf, name)?;
            if number.fract() == 0.0 && number.abs() < 1e9 {
                return Some(number as i64);
            }
            ignore(name, &format!("it is {number}; it must be a whole number"));
            None
        };
        let mut defaults = Self {
            temperature: float("temp", |sampling, value| sampling.temperature = value),
            // Not positive is off, as 0 is here.
            top_k: whole("top_k").map(|count| usize::try_from(count).unwrap_or(0)),
            top_p: float("top_p", |sampling, value| sampling.top_p = value),
            min_p: float("min_p", |sampling, value| sampling.min_p = value),
            repetition_penalty: float("penalty_repeat", |sampling, value| sampling.repetition_penalty = value),
            repetition_window: None,
        };
        match whole("penalty_last_n") {
            // No token is looked back at.
            Some(0) => defaults.repetition_penalty = Some(1.0),
            // All tokens, which is 0 here.
            Some(count) => defaults.repetition_window = Some(usize::try_from(count).unwrap_or(0)),
            None => {}
        }
        defaults
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Sets what a request leaves open. Policies may still decide otherwise.
    pub fn fill(&self, request: &mut Request) {
        let (unset, sampling) = (request.unset, &mut request.sampling);
        put(&mut sampling.temperature, self.temperature, unset.temperature);
        put(&mut sampling.top_k, self.top_k, unset.top_k);
        put(&mut sampling.top_p, self.top_p, unset.top_p);
        put(&mut sampling.min_p, self.min_p, unset.min_p);
        put(&mut sampling.repetition_penalty, self.repetition_penalty, unset.repetition_penalty);
        put(&mut sampling.repetition_window, self.repetition_window, unset.repetition_window);
    }

    pub fn to_json(&self) -> serde_json::Value {
        // By its digits: a float of 64 bits would have more of them.
        let number = |(name, digits): (&str, String)| (name.to_owned(), digits.parse().unwrap_or_default());
        serde_json::Value::Object(self.stated().into_iter().map(number).collect())
    }

    fn stated(&self) -> Vec<(&'static str, String)> {
        let float = |value: Option<f32>| value.map(|value| value.to_string());
        let count = |value: Option<usize>| value.map(|value| value.to_string());
        let all = [
            ("temperature", float(self.temperature)),
            ("top_k", count(self.top_k)),
            ("top_p", float(self.top_p)),
            ("min_p", float(self.min_p)),
            ("repetition_penalty", float(self.repetition_penalty)),
            ("repetition_window", count(self.repetition_window)),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }
}

impl fmt::Display for SamplingDefaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stated: Vec<String> = self.stated().into_iter().map(|(name, value)| format!("{name} {value}")).collect();
        f.write_str(&stated.join(", "))
    }
}

fn put<T>(value: &mut T, default: Option<T>, is_unset: bool) {
    if let Some(default) = default.filter(|_| is_unset) {
        *value = default;
    }
}

fn ignore(name: &str, why: &str) {
    tracing::warn!("the model's own general.sampling.{name} is ignored: {why}");
}

/// Reads a number of any type.
fn number(gguf: &Gguf, name: &str) -> Option<f64> {
    match gguf.metadata().get(&format!("general.sampling.{name}"))? {
        Value::F32(number) => Some(number.into()),
        Value::F64(number) => Some(number),
        Value::U8(number) => Some(number.into()),
        Value::I8(number) => Some(number.into()),
        Value::U16(number) => Some(number.into()),
        Value::I16(number) => Some(number.into()),
        Value::U32(number) => Some(number.into()),
        Value::I32(number) => Some(number.into()),
        Value::U64(number) => Some(number as f64),
        Value::I64(number) => Some(number as f64),
        other @ (Value::Bool(_) | Value::String(_) | Value::Array(_)) => {
            ignore(name, &format!("it is a {}; it must be a number", other.kind()));
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use ruvllm_model::formats::gguf::write::Header;

    use super::*;
    use crate::{Prompt, UnsetParams};

    fn defaults(values: &[(&str, Value<'_>)]) -> SamplingDefaults {
        let mut header = Header::new();
        values.iter().for_each(|(name, value)| header.set(&format!("general.sampling.{name}"), *value));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.gguf");
        ruvllm_model::formats::gguf::write::Writer::create(&path, &header).unwrap().finish().unwrap();
        SamplingDefaults::of_file(&Gguf::open(&path).unwrap())
    }

    #[test]
    fn what_a_file_says_is_taken_and_what_makes_no_sense_is_not() {
        let sound = defaults(&[
            ("temp", Value::F32(0.6)),
            ("top_k", Value::I32(20)),
            ("top_p", Value::F64(0.95)),
            ("min_p", Value::U8(0)),
            ("penalty_repeat", Value::F32(1.05)),
            ("penalty_last_n", Value::I32(-1)),
            ("mirostat", Value::I32(2)),
        ]);
        let shown = "temperature 0.6, top_k 20, top_p 0.95, min_p 0, repetition_penalty 1.05, repetition_window 0";
        assert_eq!(sound.to_string(), shown);
        assert_eq!(sound.to_json()["temperature"], 0.6);
        assert_eq!(defaults(&[("penalty_last_n", Value::I32(0))]).to_string(), "repetition_penalty 1");
        assert_eq!(defaults(&[("top_k", Value::I64(-1))]).top_k, Some(0));
        for hostile in [
            ("temp", Value::F32(f32::NAN)),
            ("temp", Value::F32(-1.0)),
            ("temp", Value::F32(f32::INFINITY)),
            ("temp", Value::String("hot")),
            ("top_p", Value::F32(0.0)),
            ("top_p", Value::F64(1e300)),
            ("top_k", Value::F32(0.5)),
            ("top_k", Value::U64(u64::MAX)),
            ("min_p", Value::Bool(true)),
            ("penalty_repeat", Value::F32(-3.0)),
            ("penalty_last_n", Value::F32(f32::NAN)),
        ] {
            assert!(defaults(&[hostile]).is_empty(), "{hostile:?}");
        }
    }

    #[test]
    fn only_what_a_request_leaves_open_is_set() {
        let own = SamplingDefaults { temperature: Some(0.1), top_k: Some(3), min_p: Some(0.0), ..Default::default() };
        let unset = UnsetParams { temperature: true, top_k: false, top_p: true, min_p: true, ..Default::default() };
        let mut request = Request { unset, ..Request::new(Prompt::Text(String::new())) };
        own.fill(&mut request);
        let expected = Sampling { temperature: 0.1, min_p: 0.0, ..Sampling::default() };
        assert_eq!((request.sampling, request.unset), (expected, unset));
    }
}
