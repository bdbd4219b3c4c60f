//! Writes one log line and counts one request when its response has ended.
//!
//! Prompts, answers and query strings are not logged. (At the level debug, the runtime logs some words where a prompt
//! diverged from a cached one.)

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};

use axum::body::{Body, HttpBody};
use axum::extract::{MatchedPath, Request, State};
use axum::http::HeaderValue;
use axum::middleware::Next;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use ruvllm_runtime::{NotEnforced, RecallUse, RoutedModel};

use crate::error::ApiError;
use crate::ignored::{self, IgnoredParams};
use crate::metrics::{HttpRequest, Metrics};
use crate::request_id::{self, RequestId};

/// Maximum length of a path in the log.
const PATH_CHARACTERS_MAX: usize = 256;
/// Maximum length of an end user's name in the log.
const USER_CHARACTERS_MAX: usize = 64;
/// Usual methods are shorter.
const METHOD_CHARACTERS_MAX: usize = 16;
/// Maximum number of places in schemas that a header names.
const NOT_ENFORCED_SHOWN: usize = 16;
const NOT_ENFORCED_HEADER: &str = "x-ruvllm-not-enforced";
const VALID_HEADER: &str = "x-ruvllm-valid";
const ADAPTER_HEADER: &str = "x-ruvllm-adapter";
const RECALL_HEADER: &str = "x-ruvllm-recall";
const MODEL_HEADER: &str = "x-ruvllm-model";
const ROUTER_HEADER: &str = "x-ruvllm-router";
/// Status that is logged for a client that disconnected before the response; it is never sent.
const CLIENT_GONE: u16 = 499;

/// What the log line of a request says besides what HTTP knows. In the extensions of every request.
#[derive(Debug, Default)]
pub struct Notes {
    caller: OnceLock<Arc<str>>,
    model: OnceLock<Arc<str>>,
    /// The end user, as the client named them.
    user: OnceLock<String>,
    /// The id in the body of the response.
    response: OnceLock<String>,
    /// The adapters that answer, with the digests of their contents.
    adapter: OnceLock<String>,
    tokens: AtomicU64,
    pub(crate) ignored: IgnoredParams,
    /// What of the schemas is not enforced.
    not_enforced: OnceLock<String>,
    /// Whether all answers were found to be valid, where that had to be checked.
    is_valid: Mutex<Option<bool>>,
    /// Items of the memory that the answer is drawn with.
    recalled: OnceLock<usize>,
    /// The model that was chosen for a request that left it open, and how.
    chosen: OnceLock<(String, Option<String>)>,
}

impl Notes {
    fn new(is_strict: bool) -> Self {
        Self { ignored: IgnoredParams::new(is_strict), ..Self::default() }
    }

    /// The first one counts.
    pub(crate) fn set_caller(&self, name: Arc<str>) {
        let _ = self.caller.set(name);
    }

    /// The model, once it is known to exist: it becomes a label of metrics, which must be few.
    pub fn set_model(&self, name: impl Into<Arc<str>>) {
        let _ = self.model.set(name.into());
    }

    /// The end user, as named by the client. The first one counts.
    pub(crate) fn set_user(&self, name: &str) {
        let _ = self.user.set(name.to_owned());
    }

    pub(crate) fn user(&self) -> Option<&str> {
        self.user.get().map(String::as_str)
    }

    /// The id in the body of the response. The first one counts.
    pub(crate) fn set_response(&self, id: &str) {
        let _ = self.response.set(id.to_owned());
    }

    pub(crate) fn response(&self) -> Option<&str> {
        self.response.get().map(String::as_str)
    }

    /// The adapters that answer, whether the request has named them or not.
    pub(crate) fn set_adapter(&self, label: String) {
        let _ = self.adapter.set(label);
    }

    /// What of the schemas of the request the grammars do not enforce.
    pub(crate) fn set_not_enforced(&self, not_enforced: &NotEnforced) {
        let named = not_enforced.places().take(NOT_ENFORCED_SHOWN).map(ToString::to_string);
        let beyond = not_enforced.places().count().saturating_sub(NOT_ENFORCED_SHOWN) + not_enforced.beyond();
        let beyond = (beyond > 0).then(|| format!("{beyond} more"));
        let text = named.chain(beyond).collect::<Vec<_>>().join(", ");
        if !text.is_empty() {
            let text = text.chars().map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' }).collect();
            let _ = self.not_enforced.set(text);
        }
    }

    /// The memory that the answer is drawn with, if there is one.
    pub(crate) fn set_recall(&self, recall: Option<&RecallUse>) {
        if let Some(RecallUse { items, .. }) = recall {
            let _ = self.recalled.set(*items);
        }
    }

    /// The model that was chosen for a request that left it open.
    pub(crate) fn set_chosen(&self, model: &str, routed: Option<&RoutedModel>) {
        let how = routed.map(|routed| format!("{}; probability={:.3}", routed.choice.by, routed.probability()));
        let _ = self.chosen.set((model.to_owned(), how));
    }

    /// Whether an answer was found to be valid.
    pub(crate) fn add_validity(&self, is_valid: bool) {
        let mut all = self.is_valid.lock().unwrap_or_else(PoisonError::into_inner);
        *all = Some(all.unwrap_or(true) && is_valid);
    }

    fn is_valid(&self) -> Option<bool> {
        *self.is_valid.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns headers about what was ignored, not enforced, or found out.
    fn headers(&self) -> Vec<(&'static str, HeaderValue)> {
        let not_enforced = self.not_enforced.get().and_then(|text| HeaderValue::from_str(text).ok());
        let is_valid =
            self.is_valid().map(|is_valid| HeaderValue::from_static(if is_valid { "true" } else { "false" }));
        let adapter = self.adapter.get().and_then(|label| HeaderValue::from_str(label).ok());
        let chosen = self.chosen.get();
        let recalled = self.recalled.get().and_then(|items| HeaderValue::from_str(&format!("items={items}")).ok());
        let named = [
            (ignored::HEADER, self.ignored.header()),
            (NOT_ENFORCED_HEADER, not_enforced),
            (VALID_HEADER, is_valid),
            (ADAPTER_HEADER, adapter),
            (RECALL_HEADER, recalled),
            (MODEL_HEADER, chosen.and_then(|(model, _)| HeaderValue::from_str(model).ok())),
            (ROUTER_HEADER, chosen.and_then(|(_, how)| HeaderValue::from_str(how.as_deref()?).ok())),
        ];
        named.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    pub fn add_tokens(&self, tokens: u64) {
        self.tokens.fetch_add(tokens, Ordering::Relaxed);
    }
}

/// What requests are observed with.
#[derive(Clone, Debug)]
pub(crate) struct Observer {
    pub metrics: Arc<Metrics>,
    /// Whether parameters without effect are refused.
    pub is_strict: bool,
}

pub(crate) async fn observe(State(observer): State<Observer>, mut request: Request, next: Next) -> Response {
    let Observer { metrics, is_strict } = observer;
    let id = RequestId::of(request.headers());
    let notes = Arc::new(Notes::new(is_strict));
    let mut record = Record::new(&metrics, &request, id.clone(), Arc::clone(&notes));
    request.extensions_mut().insert(id.clone());
    request.extensions_mut().insert(Arc::clone(&notes));
    let handled = next.run(request);
    #[cfg(feature = "otel")]
    let handled = tracing::Instrument::instrument(handled, record.span.clone());
    let mut response = handled.await;
    // gRPC has a status of its own, in the trailers.
    let status = response.extensions().get::<ApiError>().map_or(response.status(), |error| error.status);
    record.status = Some(status.as_u16());
    if let Some(value) = id.header() {
        response.headers_mut().insert(request_id::HEADER, value);
    }
    for (name, value) in notes.headers() {
        response.headers_mut().insert(name, value);
    }
    // Time until the response headers, which is the whole response unless it is streamed.
    let took = format!("total;dur={:.3}", record.count.took().as_secs_f64() * 1e3);
    if let Ok(value) = HeaderValue::from_str(&took) {
        response.headers_mut().insert("server-timing", value);
    }
    // One without a body is not read.
    record.is_complete = response.body().is_end_stream();
    response.map(|inner| Body::new(Observed { inner, record }))
}

/// Written on drop: the response has ended, or the client has disconnected.
struct Record {
    count: HttpRequest,
    id: RequestId,
    method: String,
    path: String,
    notes: Arc<Notes>,
    /// `None` until there is a response.
    status: Option<u16>,
    is_complete: bool,
    #[cfg(feature = "otel")]
    span: tracing::Span,
}

impl Record {
    fn new(metrics: &Arc<Metrics>, request: &Request, id: RequestId, notes: Arc<Notes>) -> Self {
        let matched = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
        let method: String = request.method().as_str().chars().take(METHOD_CHARACTERS_MAX).collect();
        let path: String = request.uri().path().chars().take(PATH_CHARACTERS_MAX).collect();
        Self {
            count: metrics.http_started(&method, matched),
            #[cfg(feature = "otel")]
            span: crate::log::request_span(&id, &method, &path),
            id,
            method,
            path,
            notes,
            status: None,
            is_complete: false,
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        let status = self.status.unwrap_or(CLIENT_GONE);
        let model = self.notes.model.get().map(|name| &**name);
        self.count.ended(status, model);
        let caller = self.notes.caller.get().map(|name| &**name);
        let tokens = Some(self.notes.tokens.load(Ordering::Relaxed)).filter(|tokens| *tokens > 0);
        #[cfg(feature = "otel")]
        crate::log::end_request_span(&self.span, status, caller, model, tokens);
        tracing::info!(
            id = self.id.as_str(),
            method = self.method,
            path = self.path,
            status,
            caller,
            model,
            user = self.notes.user().map(shown_user),
            tokens,
            ignored = self.notes.ignored.header().and_then(|names| Some(names.to_str().ok()?.to_owned())),
            not_enforced = self.notes.not_enforced.get(),
            valid = self.notes.is_valid(),
            recalled = self.notes.recalled.get(),
            ms = (self.count.took().as_secs_f64() * 1e4).round() / 10.0,
            broken_off = (!self.is_complete).then_some(true),
            "request"
        );
    }
}

fn shown_user(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(USER_CHARACTERS_MAX).collect()
}

/// A response whose end is observed.
struct Observed {
    inner: Body,
    record: Record,
}

impl HttpBody for Observed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        self.record.is_complete = match &frame {
            None => true,
            // Nothing comes after trailers.
            Some(Ok(frame)) => frame.is_trailers() || self.inner.is_end_stream(),
            Some(Err(_)) => false,
        };
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
