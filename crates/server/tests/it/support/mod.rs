//! A server on a real port, with some endpoints to try it on, and a client that can misbehave.

use std::convert::Infallible;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use bytes::Bytes;
use http_body::Frame;
use http_body_util::StreamBody;
use ruvllm_server::access::{Caller, Gate, KeyFile, Limits, LocalToken, NewKey, Scope, Scopes, StoredKey, Timestamp};
use ruvllm_server::listen::{self, Bound, ConnectionLimits, Listener, Tls};
use ruvllm_server::metrics::Metrics;
use ruvllm_server::{ApiError, App, Body, BodyBudget, BodyLimits, HeaderValue, Lifecycle, OpenApiRouter, Phase};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use utoipa::ToSchema;
use utoipa_axum::routes;

/// Longer than anything here takes on the busiest machine, so that a test that hangs fails instead.
pub const PATIENCE: Duration = Duration::from_secs(300);

pub struct Options {
    pub limits: ConnectionLimits,
    pub body_limits: BodyLimits,
    pub body_budget: Arc<BodyBudget>,
    pub tls: Option<Tls>,
    pub drain_max: Duration,
    pub cors_origins: Vec<HeaderValue>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: ConnectionLimits::default(),
            body_limits: BodyLimits::default(),
            body_budget: Arc::default(),
            tls: None,
            drain_max: PATIENCE,
            cors_origins: Vec::new(),
        }
    }
}

pub struct Server {
    pub address: SocketAddr,
    pub admin_address: SocketAddr,
    pub home: TempDir,
    pub lifecycle: Lifecycle,
    /// Lets streams say one more word.
    pub words: Arc<Semaphore>,
    serving: Option<JoinHandle<()>>,
    runtime: Runtime,
}

pub fn start() -> Server {
    start_with(Options::default())
}

pub fn start_with(options: Options) -> Server {
    start_in(tempfile::tempdir().expect("a folder"), options)
}

/// With the keys that are in a folder.
pub fn start_in(home: TempDir, options: Options) -> Server {
    let runtime = Runtime::new().expect("threads");
    let (metrics, lifecycle) = (Arc::new(Metrics::default()), Lifecycle::default());
    let words = Arc::new(Semaphore::new(0));
    let token = LocalToken::ensure(home.path()).expect("a token");
    let gate = Arc::new(Gate::open(KeyFile::in_home(home.path()), Some(token)).expect("sound keys"));
    let app = || App {
        body_limits: options.body_limits,
        body_budget: Arc::clone(&options.body_budget),
        cors_origins: options.cors_origins.clone(),
        inference: endpoints(Arc::clone(&words)),
        admin: OpenApiRouter::new().routes(routes!(administer)),
        ..App::new(Arc::clone(&gate), Arc::clone(&metrics), lifecycle.clone())
    };
    let bind = || runtime.block_on(Bound::bind("127.0.0.1", 0, "--port")).expect("a free port");
    let (bound, admin_bound) = (bind(), bind());
    let (address, admin_address) = (bound.address(), admin_bound.address());
    let admin = app().build_with_admin_listener().admin.expect("a router for administrators");
    let (limits, tls) = (options.limits, options.tls.clone());
    let listeners = vec![
        Listener { bound, router: app().build().api, tls, limits, until: Phase::Draining },
        Listener { bound: admin_bound, router: admin, tls: None, limits, until: Phase::Ended },
    ];
    let serving = {
        let (lifecycle, drain_max) = (lifecycle.clone(), options.drain_max);
        runtime.spawn(async move { listen::serve(listeners, &metrics, lifecycle, drain_max).await })
    };
    lifecycle.advance(Phase::Ready);
    Server { address, admin_address, home, lifecycle, words, serving: Some(serving), runtime }
}

impl Server {
    /// Waits until the server has ended.
    pub fn join(&mut self) {
        let serving = self.serving.take().expect("it is joined once");
        self.runtime.block_on(serving).expect("the server ends in order");
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address)
    }

    pub fn admin_client(&self) -> Client {
        Client::connect(self.admin_address)
    }

    pub fn get(&self, path: &str) -> Answer {
        self.client().get(path)
    }

    /// The header of this machine's operator.
    pub fn operator(&self) -> String {
        let token = LocalToken::read(self.home.path()).expect("the server made one");
        format!("authorization: Bearer {}\r\n", token.text())
    }

    pub fn add_key(&self, name: &str, scope: Scope) -> String {
        add_key(self.home.path(), name, scope, Limits::default(), None)
    }
}

pub fn add_key(home: &std::path::Path, name: &str, scope: Scope, limits: Limits, expires: Option<Timestamp>) -> String {
    let key = NewKey::random().expect("random numbers");
    let stored = StoredKey::new(name, &key, Scopes::new([scope]));
    let stored = StoredKey { limits, expires, tenant: format!("tenants/{name}"), ..stored };
    KeyFile::in_home(home).add(stored).expect("a key");
    key.text().to_owned()
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Echo {
    text: String,
    #[serde(default)]
    items: Vec<Item>,
    #[serde(default)]
    tokens: u64,
}

#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct Item {
    count: u32,
}

fn endpoints(words: Arc<Semaphore>) -> OpenApiRouter {
    let stream = OpenApiRouter::new().routes(routes!(stream)).with_state(words);
    let messages = OpenApiRouter::new().routes(routes!(messages));
    OpenApiRouter::new().routes(routes!(echo)).routes(routes!(panics)).merge(messages).merge(stream)
}

/// Gives back what it gets
#[utoipa::path(post, path = "/v1/echo", request_body = Echo, responses((status = 200)))]
async fn echo(Extension(caller): Extension<Caller>, Body(body): Body<Echo>) -> Json<Value> {
    caller.charge(body.tokens);
    Json(json!({ "text": body.text, "items": body.items, "caller": *caller.name, "tenant": *caller.tenant }))
}

/// Fails as Anthropic's API does
#[utoipa::path(post, path = "/v1/messages", request_body = Echo, responses((status = 400)))]
async fn messages(Body(_): Body<Echo>) -> ApiError {
    ApiError::invalid_param("max_tokens", "it must be positive")
}

/// Panics
#[utoipa::path(get, path = "/v1/panic", responses((status = 500)))]
async fn panics() -> Json<()> {
    panic!("on purpose")
}

/// Says three words, each when it may
#[utoipa::path(get, path = "/v1/stream", responses((status = 200)))]
async fn stream(State(words): State<Arc<Semaphore>>) -> Response {
    let stream = futures_util::stream::unfold(0, move |said| {
        let words = Arc::clone(&words);
        async move {
            if said == 3 {
                return None;
            }
            words.acquire().await.expect("it is never closed").forget();
            Some((Ok::<_, Infallible>(Frame::data(Bytes::from(format!("word {said};")))), said + 1))
        }
    });
    axum::body::Body::new(StreamBody::new(stream)).into_response()
}

/// For administrators
#[utoipa::path(post, path = "/v1/administer", responses((status = 200)))]
async fn administer() -> &'static str {
    "done"
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// The code of an error in OpenAI's shape.
    pub fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }
}

/// An HTTP/1.1 client that sends whatever bytes it is told to.
pub struct Client {
    pub stream: TcpStream,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        Self { stream }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    pub fn get(&mut self, path: &str) -> Answer {
        self.get_with(path, "")
    }

    /// `headers` are whole lines.
    pub fn get_with(&mut self, path: &str, headers: &str) -> Answer {
        self.send(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n")).expect("it is sent");
        self.answer()
    }

    pub fn post(&mut self, path: &str, body: impl AsRef<[u8]>) -> Answer {
        self.post_with(path, "content-type: application/json\r\n", body)
    }

    pub fn post_with(&mut self, path: &str, headers: &str, body: impl AsRef<[u8]>) -> Answer {
        let body = body.as_ref();
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\n{headers}content-length: {length}\r\n\r\n");
        self.send([head.as_bytes(), body].concat()).expect("it is sent");
        self.answer()
    }

    /// The status of an answer, unless the connection is closed before it.
    pub fn status(&mut self) -> Option<u16> {
        let mut line = [0; 12];
        self.stream.read_exact(&mut line).ok()?;
        std::str::from_utf8(&line[9..]).ok()?.parse().ok()
    }

    /// The next answer, with its body by content-length or in chunks.
    pub fn answer(&mut self) -> Answer {
        let head = self.read_head();
        let status =
            head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{head:?}"));
        let mut answer = Answer { status, head, body: String::new() };
        let length = answer.header("content-length").map(|length| length.parse().expect("a number"));
        let body = match length {
            Some(length) => self.read_exactly(length),
            None if answer.header("transfer-encoding").is_some() => self.read_chunks(),
            None => Vec::new(),
        };
        answer.body = String::from_utf8(body).expect("UTF-8");
        answer
    }

    pub fn read_head(&mut self) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.extend(self.read_exactly(1));
        }
        String::from_utf8(head).expect("UTF-8")
    }

    pub fn read_exactly(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).expect("the answer is complete");
        bytes
    }

    pub fn read_chunk(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.extend(self.read_exactly(1));
        }
        let length = std::str::from_utf8(&line).expect("UTF-8").trim();
        let chunk = self.read_exactly(usize::from_str_radix(length, 16).expect("a length"));
        self.read_exactly(2);
        chunk
    }

    fn read_chunks(&mut self) -> Vec<u8> {
        let mut all = Vec::new();
        loop {
            let chunk = self.read_chunk();
            if chunk.is_empty() {
                return all;
            }
            all.extend(chunk);
        }
    }

    /// Whatever comes until the server closes the connection.
    pub fn read_to_end(&mut self) -> String {
        let mut bytes = Vec::new();
        match self.stream.read_to_end(&mut bytes) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => {}
            Err(error) => panic!("the connection was not closed: {error}"),
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}
