//! A panic in a handler fails only its own request.

use std::panic::AssertUnwindSafe;

use axum::extract::Request;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures_util::FutureExt;

use crate::error::ApiError;

pub(crate) async fn catch(request: Request, next: Next) -> Response {
    // What the handler held is dropped; what it shares with others is behind locks that detect a panic.
    match AssertUnwindSafe(next.run(request)).catch_unwind().await {
        Ok(response) => response,
        Err(panic) => {
            tracing::error!(what = text(&*panic), "a handler panicked");
            ApiError::internal("the server failed while handling this request").into_response()
        }
    }
}

fn text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
