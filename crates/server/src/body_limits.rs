//! Limits request bodies in size and time.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::time::{Sleep, sleep};

use crate::body_budget::{BodyBudget, BodyPermit};
use crate::error::ApiError;

#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    pub bytes_max: usize,
    /// For the whole body, from the first read.
    pub timeout: Duration,
}

impl Default for BodyLimits {
    fn default() -> Self {
        Self { bytes_max: 8 << 20, timeout: Duration::from_secs(30) }
    }
}

/// Why a body was not read to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the body is larger than the allowed {bytes_max} bytes")]
    TooLarge { bytes_max: usize },
    #[error("the body did not arrive within {} s", timeout.as_secs_f64())]
    TooSlow { timeout: Duration },
}

pub(crate) async fn limit(
    State((limits, budget)): State<(BodyLimits, Arc<BodyBudget>)>,
    mut request: Request,
    next: Next,
) -> Response {
    // A body that is announced as too large is not read at all.
    if request.body().size_hint().lower() > limits.bytes_max as u64 {
        return ApiError::too_large(limits.bytes_max).into_response();
    }
    request.extensions_mut().insert(BodyPermit::new(budget, limits));
    let request = request.map(|inner| Body::new(Limited { inner, limits, left: limits.bytes_max, deadline: None }));
    next.run(request).await
}

struct Limited {
    inner: Body,
    limits: BodyLimits,
    left: usize,
    deadline: Option<Pin<Box<Sleep>>>,
}

impl HttpBody for Limited {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        let timeout = this.limits.timeout;
        let polled = Pin::new(&mut this.inner).poll_frame(cx);
        if polled.is_pending() {
            let deadline = this.deadline.get_or_insert_with(|| Box::pin(sleep(timeout)));
            ready!(deadline.as_mut().poll(cx));
            return Poll::Ready(Some(Err(BodyError::TooSlow { timeout }.into())));
        }
        let Some(frame) = ready!(polled) else { return Poll::Ready(None) };
        let frame = frame?;
        let length = frame.data_ref().map_or(0, Bytes::len);
        match this.left.checked_sub(length) {
            Some(left) => this.left = left,
            None => return Poll::Ready(Some(Err(BodyError::TooLarge { bytes_max: this.limits.bytes_max }.into()))),
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
