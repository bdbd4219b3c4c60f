//! Errors as clients see them.
//!
//! An [`ApiError`] is rendered in OpenAI's format. `shape.rs` renders it again for paths of Anthropic's and Ollama's APIs;
//! code that creates errors need not know.

use std::borrow::Cow;
use std::time::Duration;

use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Kinds of errors, in the terms of both APIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    InvalidRequest,
    Authentication,
    Permission,
    NotFound,
    TooLarge,
    /// Too many requests per minute.
    RequestRate,
    /// Too many tokens per minute.
    TokenRate,
    /// The tokens of the day are used up.
    Quota,
    Timeout,
    Overloaded,
    Internal,
}

impl ErrorKind {
    /// OpenAI's `type`.
    pub fn openai(self) -> &'static str {
        match self {
            Self::InvalidRequest | Self::Authentication | Self::NotFound | Self::TooLarge => "invalid_request_error",
            Self::Permission => "permission_error",
            Self::RequestRate => "requests",
            Self::TokenRate => "tokens",
            Self::Quota => "insufficient_quota",
            Self::Timeout => "timeout_error",
            Self::Overloaded | Self::Internal => "server_error",
        }
    }

    /// Anthropic's `error.type`.
    pub fn anthropic(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request_error",
            Self::Authentication => "authentication_error",
            Self::Permission => "permission_error",
            Self::NotFound => "not_found_error",
            Self::TooLarge => "request_too_large",
            Self::RequestRate | Self::TokenRate | Self::Quota => "rate_limit_error",
            Self::Timeout => "timeout_error",
            Self::Overloaded => "overloaded_error",
            Self::Internal => "api_error",
        }
    }
}

/// A failed request, as its client sees it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub status: StatusCode,
    pub kind: ErrorKind,
    /// A code for programs, such as `unknown_parameter`.
    pub code: Option<Cow<'static, str>>,
    /// Path of the invalid field: `messages[0].content`.
    pub param: Option<String>,
    /// Says what is wrong and what would be right.
    pub message: String,
    pub retry_after: Option<Duration>,
}

impl ApiError {
    pub fn new(status: StatusCode, kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { status, kind, code: None, param: None, message: message.into(), retry_after: None }
    }

    /// 400: the request is invalid.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, ErrorKind::InvalidRequest, message)
    }

    /// 400: one field is invalid.
    pub fn invalid_param(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::invalid(message).with_param(param)
    }

    /// 401
    pub fn unauthenticated(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, ErrorKind::Authentication, message).with_code("invalid_api_key")
    }

    /// 403
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, ErrorKind::Permission, message).with_code("forbidden")
    }

    /// 404: for example a model that is not loaded.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, ErrorKind::NotFound, message)
    }

    /// 404: unknown path.
    pub fn no_such_path(path: &str) -> Self {
        let shown: String = path.chars().take(256).collect();
        Self::not_found(format!("unknown path '{shown}'; /openapi.json lists all paths")).with_code("unknown_url")
    }

    /// 405
    pub fn wrong_method(method: &str, path: &str) -> Self {
        let shown: String = path.chars().take(256).collect();
        let message = format!("'{shown}' does not support {method}; /openapi.json lists the methods of all paths");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, ErrorKind::InvalidRequest, message).with_code("method_not_supported")
    }

    /// 408: the client was too slow.
    pub fn too_slow(message: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, ErrorKind::Timeout, message).with_code("request_timeout")
    }

    /// 413
    pub fn too_large(bytes_max: usize) -> Self {
        let message = format!("the body is larger than the allowed {bytes_max} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, ErrorKind::TooLarge, message).with_code("request_too_large")
    }

    /// 415
    pub fn wrong_content_type(got: &str) -> Self {
        let shown: String = got.chars().take(128).collect();
        Self::unsupported_content_type(format!("the body has the type '{shown}'; send it as application/json"))
    }

    /// 415: the body has no content type.
    pub fn no_content_type() -> Self {
        Self::unsupported_content_type("the body has no content type; send 'Content-Type: application/json'".to_owned())
    }

    fn unsupported_content_type(message: String) -> Self {
        let error = Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, ErrorKind::InvalidRequest, message);
        error.with_code("unsupported_content_type")
    }

    /// 429
    pub fn rate_limited(kind: ErrorKind, message: impl Into<String>, retry_after: Duration) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, kind, message).with_retry_after(retry_after);
        error.with_code(if kind == ErrorKind::Quota { "insufficient_quota" } else { "rate_limit_exceeded" })
    }

    /// 429 for a request that exceeds a limit by itself.
    pub fn too_much(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, kind, message).with_code("rate_limit_exceeded")
    }

    /// 503: for example a full queue, or a server that is shutting down.
    pub fn unavailable(message: impl Into<String>, retry_after: Option<Duration>) -> Self {
        let mut error = Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorKind::Overloaded, message);
        error.retry_after = retry_after;
        error.with_code("unavailable")
    }

    /// 500: not the client's fault. The message is sent to the client, so it quotes nothing from other sources.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorKind::Internal, message).with_code("internal_error")
    }

    /// Returns an error of which only the status is known.
    pub fn of_status(status: StatusCode, message: impl Into<String>) -> Self {
        let kind = match status {
            StatusCode::UNAUTHORIZED => ErrorKind::Authentication,
            StatusCode::FORBIDDEN => ErrorKind::Permission,
            StatusCode::NOT_FOUND => ErrorKind::NotFound,
            StatusCode::PAYLOAD_TOO_LARGE => ErrorKind::TooLarge,
            StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => ErrorKind::Timeout,
            StatusCode::TOO_MANY_REQUESTS => ErrorKind::RequestRate,
            StatusCode::SERVICE_UNAVAILABLE => ErrorKind::Overloaded,
            status if status.is_server_error() => ErrorKind::Internal,
            _ => ErrorKind::InvalidRequest,
        };
        Self::new(status, kind, message)
    }

    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    pub fn with_code(mut self, code: impl Into<Cow<'static, str>>) -> Self {
        self.code = Some(code.into());
        self
    }

    pub fn with_retry_after(mut self, retry_after: Duration) -> Self {
        self.retry_after = Some(retry_after);
        self
    }

    /// Renders OpenAI's format; also the last event of a stream that fails midway.
    pub fn to_openai(&self) -> Value {
        json!({ "error": {
            "message": self.message,
            "type": self.kind.openai(),
            "param": self.param,
            "code": self.code,
        } })
    }

    /// Renders Ollama's format; also the last line of a stream that fails midway.
    pub fn to_ollama(&self) -> Value {
        let message = match &self.param {
            Some(param) if !self.message.contains(param.as_str()) => format!("{param}: {}", self.message),
            _ => self.message.clone(),
        };
        json!({ "error": message })
    }

    /// Renders Anthropic's format.
    pub fn to_anthropic(&self, request_id: &str) -> Value {
        let message = match &self.param {
            Some(param) => format!("{param}: {}", self.message),
            None => self.message.clone(),
        };
        json!({
            "type": "error",
            "error": { "type": self.kind.anthropic(), "message": message },
            "request_id": request_id,
        })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = self.to_openai().to_string();
        let mut response = (self.status, [(CONTENT_TYPE, "application/json")], body).into_response();
        let headers = response.headers_mut();
        if let Some(wait) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        // For `shape.rs`.
        response.extensions_mut().insert(self);
        response
    }
}

/// Rounded up, so that no retry comes too early. At least one, since zero invites an immediate retry.
fn whole_seconds(wait: Duration) -> u64 {
    (wait.as_secs() + u64::from(wait.subsec_nanos() > 0)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_shapes_name_the_field() {
        let error = ApiError::invalid_param("messages[0].role", "it must be user, assistant or system");
        let openai = error.to_openai();
        assert_eq!(openai["error"]["type"], "invalid_request_error");
        assert_eq!(openai["error"]["param"], "messages[0].role");
        assert_eq!(openai["error"]["code"], Value::Null);
        let anthropic = error.to_anthropic("req-1");
        assert_eq!(anthropic["error"]["message"], "messages[0].role: it must be user, assistant or system");
        assert_eq!(anthropic["request_id"], "req-1");
    }

    #[test]
    fn waiting_times_are_rounded_up() {
        for (wait, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (59_999, 60)] {
            assert_eq!(whole_seconds(Duration::from_millis(wait)), seconds, "{wait} ms");
        }
    }
}
