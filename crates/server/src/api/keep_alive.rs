//! `keep_alive`: how long a model stays loaded after an answer.

use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use utoipa::ToSchema;

use crate::access::{Caller, Identity, Scope};
use crate::error::ApiError;
use crate::models::{KeepAlive, ModelInUse, Models};

/// Seconds, or a duration such as `5m` or `1h30m`. 0 unloads the model after the answer, a negative one keeps it.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected seconds, or a duration such as \"5m\"")]
pub enum KeepAliveField {
    Seconds(f64),
    Duration(String),
}

impl KeepAliveField {
    pub(crate) fn parse(&self) -> Result<KeepAlive, ApiError> {
        let seconds = match self {
            Self::Seconds(seconds) => Some(*seconds),
            Self::Duration(text) => parse_duration(text),
        };
        let seconds = seconds.ok_or_else(|| {
            ApiError::invalid_param("keep_alive", "keep_alive is not a duration; use seconds, or a text such as \"5m\"")
        })?;
        // Longer than any number of seconds is as good as forever.
        Ok(if seconds < 0.0 {
            KeepAlive::Forever
        } else {
            Duration::try_from_secs_f64(seconds).map_or(KeepAlive::Forever, KeepAlive::For)
        })
    }
}

/// Parses Go's durations, `1h30m` or `-1m`, and plain seconds; returns seconds.
pub fn parse_duration(text: &str) -> Option<f64> {
    const UNITS: [(&str, f64); 7] =
        [("h", 3600.0), ("ms", 1e-3), ("m", 60.0), ("us", 1e-6), ("µs", 1e-6), ("ns", 1e-9), ("s", 1.0)];
    let text = text.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        return Some(seconds).filter(|seconds| seconds.is_finite());
    }
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest.is_empty() {
        return None;
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let (unit, of_unit) = UNITS.iter().find(|(unit, _)| rest[digits..].starts_with(unit))?;
        seconds += number * of_unit;
        rest = &rest[digits + unit.len()..];
    }
    Some(sign * seconds)
}

/// Applies what a request says, if its sender may: unloading a model costs everybody who uses it.
pub(crate) fn apply(
    field: Option<&KeepAliveField>,
    model: &ModelInUse,
    models: &Models,
    caller: &Caller,
) -> Result<(), ApiError> {
    let is_allowed = caller.scopes.allow(Scope::Admin) || caller.identity == Identity::Local;
    let Some(field) = field else {
        if is_allowed {
            model.keep_alive(None);
        }
        return Ok(());
    };
    let wanted = field.parse()?;
    if !is_allowed {
        return caller.ignored().note("keep_alive", "it would also change this for others who use the model");
    }
    if models.is_pinned(&model.name) && wanted != KeepAlive::Forever {
        return caller.ignored().note("keep_alive", "the model was named when the server started and stays loaded");
    }
    model.keep_alive(Some(wanted));
    Ok(())
}

/// When dropped, after an answer, the time until the model is unloaded begins, or is over.
#[derive(Debug)]
pub(crate) struct AfterAnswer {
    models: Arc<Models>,
    name: Arc<str>,
}

impl AfterAnswer {
    pub(crate) fn new(models: &Arc<Models>, model: &ModelInUse) -> Self {
        Self { models: Arc::clone(models), name: Arc::clone(&model.name) }
    }
}

impl Drop for AfterAnswer {
    fn drop(&mut self) {
        if !self.models.touch(&self.name) {
            return;
        }
        // Without a runtime the server is at its end.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let models = Arc::clone(&self.models);
            runtime.spawn(async move { models.unload_what_expired().await });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn parse(value: Value) -> Option<KeepAlive> {
        serde_json::from_value::<KeepAliveField>(value).ok()?.parse().ok()
    }

    #[test]
    fn durations_are_read_as_go_and_people_write_them() {
        for (value, seconds) in [
            (json!(0), 0.0),
            (json!(300), 300.0),
            (json!(0.5), 0.5),
            (json!("5m"), 300.0),
            (json!("1h30m"), 5400.0),
            (json!("1.5h"), 5400.0),
            (json!("250ms"), 0.25),
            (json!("0"), 0.0),
            (json!("10us"), 1e-5),
        ] {
            assert_eq!(parse(value.clone()), Some(KeepAlive::For(Duration::from_secs_f64(seconds))), "{value}");
        }
        for value in [json!(-1), json!("-1"), json!("-1m"), json!(1e300), json!("999999999999999999999h")] {
            assert_eq!(parse(value.clone()), Some(KeepAlive::Forever), "{value}");
        }
        for value in [
            json!(""),
            json!("-"),
            json!("m"),
            json!("5 minutes"),
            json!("5x"),
            json!(true),
            json!([5]),
            json!("1e999"),
        ] {
            assert_eq!(parse(value.clone()), None, "{value}");
        }
    }
}
