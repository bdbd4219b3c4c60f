//! Answers as server-sent events, as lines of JSON, or as messages of gRPC.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use futures_util::{FutureExt, stream};
use http_body::Frame;
use http_body_util::StreamBody;
use serde::Serialize;
use tokio::time::timeout;

use crate::api::generation::{Generation, Part};
use crate::error::ApiError;
use crate::grpc;
use crate::lifecycle::{Lifecycle, Phase};

/// Proxies close connections that are silent for long, and a long prompt takes long.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Encoded events to send.
#[derive(Debug, Default)]
pub(crate) struct Events(Vec<u8>);

impl Events {
    pub(crate) fn data(&mut self, value: &impl Serialize) {
        self.put("data: ");
        self.json(value);
        self.put("\n\n");
    }

    /// Adds a named event, as in Anthropic's API and OpenAI's responses.
    pub(crate) fn named(&mut self, name: &str, value: &impl Serialize) {
        self.put("event: ");
        self.put(name);
        self.put("\n");
        self.data(value);
    }

    /// Adds a line of JSON, as in Ollama's API.
    pub(crate) fn line(&mut self, value: &impl Serialize) {
        self.json(value);
        self.put("\n");
    }

    /// Adds a message of gRPC.
    pub(crate) fn message(&mut self, message: &impl prost::Message) {
        grpc::write(message, &mut self.0);
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.put("data: ");
        self.put(text);
        self.put("\n\n");
    }

    fn comment(&mut self) {
        self.put(": still here\n\n");
    }

    fn json(&mut self, value: &impl Serialize) {
        // Serializing our own types to memory cannot fail.
        let _ = serde_json::to_writer(&mut self.0, value);
    }

    fn put(&mut self, text: &str) {
        self.0.extend_from_slice(text.as_bytes());
    }

    pub(crate) fn take(&mut self) -> Bytes {
        std::mem::take(&mut self.0).into()
    }
}

/// Format of an answer on the wire of one endpoint.
pub(crate) trait Wire: Send + 'static {
    const CONTENT_TYPE: &'static str = "text/event-stream";

    /// Events before anything is generated.
    fn begin(&mut self, generation: &Generation, events: &mut Events);

    fn part(&mut self, part: Part, generation: &Generation, events: &mut Events);

    /// Events after everything was generated.
    fn end(&mut self, generation: &Generation, events: &mut Events);

    /// Events in place of the rest.
    fn fail(&mut self, error: &ApiError, events: &mut Events);

    /// Something without a meaning, so that proxies keep a silent connection open.
    fn silence(&mut self, events: &mut Events) {
        events.comment();
    }

    /// Trailers after all events, where a protocol says there how the answer ended.
    fn trailers(&mut self) -> Option<HeaderMap> {
        None
    }

    /// Waits until somebody else ends the answer.
    fn ended(&mut self) -> impl Future<Output = ApiError> + Send {
        std::future::pending()
    }
}

/// Streams an answer. When the client disconnects, the stream is dropped, which ends the generation.
pub(crate) fn respond<W: Wire>(generation: Generation, wire: W, lifecycle: Lifecycle) -> Response {
    let sender = Sender { generation, wire, lifecycle, state: State::Begins };
    let frames = stream::unfold(sender, |mut sender| async move {
        let frame = sender.next().await?;
        Some((Ok::<_, Infallible>(frame), sender))
    });
    let mut response = Response::new(Body::new(StreamBody::new(frames)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(W::CONTENT_TYPE));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Asks proxies not to buffer.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct Sender<W> {
    generation: Generation,
    wire: W,
    lifecycle: Lifecycle,
    state: State,
}

#[derive(PartialEq)]
enum State {
    Begins,
    Generates,
    /// There are no more events.
    Over,
    /// Nor trailers.
    Closed,
}

impl<W: Wire> Sender<W> {
    /// Returns what to send next; `None` at the end.
    async fn next(&mut self) -> Option<Frame<Bytes>> {
        let mut events = Events::default();
        if self.state == State::Begins {
            self.wire.begin(&self.generation, &mut events);
            self.state = State::Generates;
        }
        if events.0.is_empty() {
            self.generate(&mut events).await;
        }
        if !events.0.is_empty() {
            return Some(Frame::data(events.take()));
        }
        let is_closed = std::mem::replace(&mut self.state, State::Closed) == State::Closed;
        if is_closed { None } else { self.wire.trailers().map(Frame::trailers) }
    }

    /// Waits until there is something to send, or nothing more.
    async fn generate(&mut self, events: &mut Events) {
        while events.0.is_empty() && self.state == State::Generates {
            let part = tokio::select! {
                part = timeout(SILENCE_MAX, self.generation.next()) => part,
                () = self.lifecycle.reached(Phase::Ended) => Ok(Some(Err(ApiError::unavailable("the server is shutting down", None)))),
                error = self.wire.ended() => Ok(Some(Err(error))),
            };
            let Ok(part) = part else {
                self.wire.silence(events);
                continue;
            };
            self.tell(part, events);
            // Pieces that are ready are sent with it.
            while self.state == State::Generates
                && let Some(part) = self.generation.next().now_or_never()
            {
                self.tell(part, events);
            }
        }
    }

    fn tell(&mut self, part: Option<Result<Part, ApiError>>, events: &mut Events) {
        match part {
            Some(Ok(part)) => return self.wire.part(part, &self.generation, events),
            Some(Err(error)) => self.wire.fail(&error, events),
            None => self.wire.end(&self.generation, events),
        }
        self.state = State::Over;
    }
}
