//! Query parameters as a type. Errors name the parameter.

use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use crate::error::ApiError;

/// Extracts `?a=b&c=d`. `T` should deny unknown fields, so that a misspelt one is reported rather than ignored.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Params<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let query = Query::try_from_uri(&parts.uri).map_err(|rejection| explain(&rejection.body_text()))?;
        Ok(Self(query.0))
    }
}

fn explain(said: &str) -> ApiError {
    let said = said.trim_start_matches("Failed to deserialize query string: ");
    let message = format!("the query string is invalid: {}", said.chars().take(500).collect::<String>());
    let error = ApiError::invalid(message).with_code("invalid_parameter");
    // `count_max: invalid digit found in string`, or: unknown field `conut`, expected ...
    let named = match said.strip_prefix("unknown field `").or_else(|| said.strip_prefix("missing field `")) {
        Some(rest) => rest.split('`').next(),
        None => said.split_once(": ").map(|(name, _)| name),
    };
    match named.filter(|name| !name.contains(' ') && name.len() <= 64) {
        Some(name) => error.with_param(name),
        None => error,
    }
}
