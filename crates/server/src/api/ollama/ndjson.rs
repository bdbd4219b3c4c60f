//! Lines of JSON that report the progress of something.

use axum::Json;
use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Serialize;
use tokio::sync::mpsc::{Receiver, Sender};
use utoipa::ToSchema;

use crate::error::ApiError;

/// Lines that wait to be sent.
pub(super) const LINES_MAX: usize = 32;

/// A step of something that takes time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct ProgressLine {
    /// `success` at the end.
    pub status: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed: Option<u64>,
}

pub(super) type Line = Result<ProgressLine, ApiError>;

impl ProgressLine {
    pub(super) fn new(status: &str) -> Self {
        Self { status: status.to_owned(), ..Self::default() }
    }
}

/// Ends the lines with `success`, or with what went wrong.
pub(super) async fn finish(lines: Sender<Line>, outcome: Result<(), ApiError>) {
    // A client that is gone does not wait for it.
    let _ = lines.send(outcome.map(|()| ProgressLine::new("success"))).await;
}

/// Responds with the lines as they come, or with the last one. What fails at once has its own status code.
pub(super) async fn respond(mut lines: Receiver<Line>, streams: bool) -> Result<Response, ApiError> {
    let lost = || ApiError::internal("this ended without a result");
    let mut first = lines.recv().await.ok_or_else(lost)??;
    if !streams {
        while let Some(line) = lines.recv().await {
            first = line?;
        }
        return Ok(Json(first).into_response());
    }
    let written = |line: Line| {
        let json = match line {
            Ok(status) => serde_json::to_string(&status).unwrap_or_default(),
            Err(error) => error.to_ollama().to_string(),
        };
        Ok::<_, std::convert::Infallible>(Bytes::from(json + "\n"))
    };
    let rest = stream::unfold((Some(first), lines), move |(first, mut lines)| async move {
        let line = match first {
            Some(first) => Ok(first),
            None => lines.recv().await?,
        };
        Some((written(line), (None, lines)))
    });
    let mut response = Response::new(Body::from_stream(rest));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(response)
}
