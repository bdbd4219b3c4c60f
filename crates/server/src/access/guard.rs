//! Checks every request to a route that is not public.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::caller::{Caller, Identity};
use super::gate::Gate;
use super::limits::{KeyStatus, Moment};
use super::local::is_local;
use super::scope::Scope;
use crate::body_budget::BodyPermit;
use crate::error::ApiError;
use crate::observe::Notes;
use crate::request_id::RequestId;

/// The gate and the scope that a guard requires.
#[derive(Clone, Debug)]
pub(crate) struct Guard {
    pub(crate) gate: Arc<Gate>,
    pub(crate) scope: Scope,
}

pub(crate) async fn guard(State(guard): State<Guard>, mut request: Request, next: Next) -> Response {
    let now = Moment::now();
    let caller = match guard.pass(&request, now) {
        Ok(caller) => caller,
        Err(error) => return error.into_response(),
    };
    if guard.scope != Scope::Inference {
        request.extensions_mut().insert(caller);
        return next.run(request).await;
    }
    let mut response = match caller.admit(now) {
        Ok(()) => {
            request.extensions_mut().insert(caller.clone());
            next.run(request).await
        }
        Err(refusal) => ApiError::from(refusal).into_response(),
    };
    announce(&caller.status(now), response.headers_mut());
    response
}

impl Guard {
    fn pass(&self, request: &Request, now: Moment) -> Result<Caller, ApiError> {
        let notes = request.extensions().get::<Arc<Notes>>().cloned().unwrap_or_default();
        let mut caller = self.gate.identify(request.headers(), Arc::clone(&notes), now.calendar)?;
        caller.request = request.extensions().get::<RequestId>().cloned().unwrap_or_default();
        caller.body = request.extensions().get::<BodyPermit>().map(BodyPermit::held).unwrap_or_default();
        caller.forwarded_user = forwarded_user(request.headers());
        notes.set_caller(Arc::clone(&caller.name));
        if caller.identity == Identity::Local && !is_local(request) {
            caller.drop_local_rights();
        }
        caller.require(self.scope)?;
        Ok(caller)
    }
}

/// Returns the end user that Open WebUI forwards, where it is told to (`ENABLE_FORWARD_USER_INFO_HEADERS`).
fn forwarded_user(headers: &HeaderMap) -> Option<Arc<str>> {
    let name = headers.get("x-openwebui-user-id")?.to_str().ok()?;
    ruvllm_memory::check_user(name).ok().map(|()| name.into())
}

/// Headers that OpenAI's clients read.
fn announce(status: &KeyStatus, headers: &mut HeaderMap) {
    let names = [
        ["x-ratelimit-limit-requests", "x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"],
        ["x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"],
    ];
    for ([limit, remaining, reset], level) in names.into_iter().zip([status.requests, status.tokens]) {
        let Some(level) = level else { continue };
        headers.insert(HeaderName::from_static(limit), HeaderValue::from(level.limit));
        headers.insert(HeaderName::from_static(remaining), HeaderValue::from(level.remaining));
        if let Ok(value) = HeaderValue::from_str(&written(level.reset)) {
            headers.insert(HeaderName::from_static(reset), value);
        }
    }
}

/// Formats durations like OpenAI: `1m30s`, `12s`, `250ms`.
fn written(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0) => format!("{}ms", time.subsec_millis()),
        (0, 0, seconds) => format!("{seconds}s"),
        (0, minutes, seconds) => format!("{minutes}m{seconds}s"),
        (hours, minutes, seconds) => format!("{hours}h{minutes}m{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_clients_read_them() {
        for (ms, text) in [(0, "0ms"), (250, "250ms"), (1_999, "1s"), (90_000, "1m30s"), (3_661_000, "1h1m1s")] {
            assert_eq!(written(Duration::from_millis(ms)), text);
        }
    }
}
