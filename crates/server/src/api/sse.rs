//! Answers as server-sent events, or as lines of JSON.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use futures_util::{FutureExt, stream};
use serde::Serialize;
use tokio::time::timeout;

use crate::api::generation::{Generation, Part};
use crate::error::ApiError;
use crate::lifecycle::{Lifecycle, Phase};

/// Proxies close connections that are silent for long, and a long prompt takes long.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Encoded events to send.
#[derive(Debug, Default)]
pub(crate) struct Events(String);

impl Events {
    pub(crate) fn data(&mut self, value: &impl Serialize) {
        // Serializing our own types cannot fail.
        let json = serde_json::to_string(value).unwrap_or_default();
        self.text(&json);
    }

    /// Adds a named event, as in Anthropic's API and OpenAI's responses.
    pub(crate) fn named(&mut self, name: &str, value: &impl Serialize) {
        self.0.push_str("event: ");
        self.0.push_str(name);
        self.0.push('\n');
        self.data(value);
    }

    /// Adds a line of JSON, as in Ollama's API.
    pub(crate) fn line(&mut self, value: &impl Serialize) {
        self.0.push_str(&serde_json::to_string(value).unwrap_or_default());
        self.0.push('\n');
    }

    pub(crate) fn text(&mut self, text: &str) {
        self.0.push_str("data: ");
        self.0.push_str(text);
        self.0.push_str("\n\n");
    }

    fn comment(&mut self) {
        self.0.push_str(": still here\n\n");
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
}

/// Streams an answer. When the client disconnects, the stream is dropped, which ends the generation.
pub(crate) fn respond<W: Wire>(generation: Generation, wire: W, lifecycle: Lifecycle) -> Response {
    let sender = Sender { generation, wire, lifecycle, state: State::Begins };
    let chunks = stream::unfold(sender, |mut sender| async move {
        let bytes = sender.next().await?;
        Some((Ok::<_, std::convert::Infallible>(bytes), sender))
    });
    let mut response = Response::new(Body::from_stream(chunks));
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
    Over,
}

impl<W: Wire> Sender<W> {
    /// Returns the next bytes to send; `None` at the end.
    async fn next(&mut self) -> Option<Bytes> {
        let mut events = Events::default();
        if self.state == State::Begins {
            self.wire.begin(&self.generation, &mut events);
            self.state = State::Generates;
        }
        match self.state {
            State::Over => return None,
            _ if events.0.is_empty() => self.generate(&mut events).await,
            _ => {}
        }
        Some(events.take())
    }

    /// Waits until there is something to send.
    async fn generate(&mut self, events: &mut Events) {
        while events.0.is_empty() && self.state == State::Generates {
            let part = tokio::select! {
                part = timeout(SILENCE_MAX, self.generation.next()) => part,
                () = self.lifecycle.reached(Phase::Ended) => Ok(Some(Err(ApiError::unavailable("the server is shutting down", None)))),
            };
            let Ok(part) = part else { return self.wire.silence(events) };
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
