//! Gives every error the format that clients of its path expect. The only place that knows which path belongs to which
//! API.

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::error::ApiError;
use crate::grpc::{self, is_grpc};
use crate::request_id::RequestId;

/// Maximum length of a message that did not come as an [`ApiError`].
const FOREIGN_MESSAGE_BYTES_MAX: usize = 4096;

pub(crate) async fn shape(request: Request, next: Next) -> Response {
    let format = if is_grpc(request.headers()) { Format::Grpc } else { Format::of(request.uri().path()) };
    let request_id = request.extensions().get::<RequestId>().cloned().unwrap_or_default();
    let mut response = next.run(request).await;
    if !is_failure(response.status()) {
        return response;
    }
    if response.extensions().get::<ApiError>().is_none() && !is_json(&response) {
        response = shape_foreign(response).await;
    }
    if format == Format::OpenAi {
        return response;
    }
    if format == Format::Grpc {
        // It stays in the extensions: the log says what the status does not.
        if let Some(error) = response.extensions().get::<ApiError>().cloned() {
            response.headers_mut().remove(CONTENT_LENGTH);
            grpc::shape(&error, &mut response);
        }
        return response;
    }
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        let body = match format {
            Format::Anthropic => error.to_anthropic(request_id.as_str()),
            Format::Ollama => error.to_ollama(),
            Format::OpenAi | Format::Grpc => error.to_openai(),
        };
        response.headers_mut().remove(CONTENT_LENGTH);
        *response.body_mut() = Body::from(body.to_string());
    }
    response
}

/// The API that a path belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    OpenAi,
    Anthropic,
    Ollama,
    /// Told by the type of the request's body.
    Grpc,
}

impl Format {
    fn of(path: &str) -> Self {
        let is_within =
            |root: &str| path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if is_within("/v1/messages") {
            Self::Anthropic
        } else if is_within("/api") {
            Self::Ollama
        } else {
            Self::OpenAi
        }
    }
}

fn is_failure(status: StatusCode) -> bool {
    status.is_client_error() || status.is_server_error()
}

fn is_json(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.starts_with("application/json"))
}

/// Extractors and layers of libraries respond in plain text. Their text and headers are kept.
async fn shape_foreign(response: Response) -> Response {
    let (parts, body) = response.into_parts();
    let bytes = to_bytes(body, FOREIGN_MESSAGE_BYTES_MAX).await.unwrap_or_default();
    let said = String::from_utf8_lossy(&bytes);
    let reason = parts.status.canonical_reason().unwrap_or("the request failed");
    let message = if said.trim().is_empty() { reason.to_lowercase() } else { said.trim().to_owned() };
    let mut shaped = ApiError::of_status(parts.status, message).into_response();
    for (name, value) in &parts.headers {
        if name != CONTENT_TYPE && name != CONTENT_LENGTH {
            shaped.headers_mut().append(name, value.clone());
        }
    }
    shaped
}
