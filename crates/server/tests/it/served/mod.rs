//! The default model behind the whole application, without sockets.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode, request};
use axum::response::Response;
use http_body_util::BodyExt;
use ruvllm_runtime::{Engine, EngineBuilder, KernelChoice, LoadedPack, ModelMemory, StepMetrics};
use ruvllm_server::access::{Gate, KeyFile, Limits, NewKey, Scope, Scopes, StoredKey};
use ruvllm_server::listen::{self, Bound, ConnectionLimits, Listener, Tls};
use ruvllm_server::metrics::Metrics;
use ruvllm_server::models::{LoadFailure, Loader, ModelDescription, ModelError, Models, ModelsOptions, Runner};
use ruvllm_server::{Api, App, BodyLimits, Fleet, Lifecycle, MemoryBudget, Phase, Preparing, Services};
use ruvllm_store::{Store, default_home};
use serde_json::Value;
use tokio::task::JoinHandle;
use tower::Service;

use crate::support::PATIENCE;

pub struct Served {
    router: Router,
    grpc: Router,
    pub lifecycle: Lifecycle,
    /// Of each tenant; empty if none are needed.
    keys: BTreeMap<&'static str, String>,
    _home: tempfile::TempDir,
}

/// Loads models for short texts, which is fast.
struct ShortContext;

impl ShortContext {
    fn builder(file: &Path) -> EngineBuilder {
        Engine::builder(file).context(Some(1024))
    }
}

impl Loader for ShortContext {
    fn memory(&self, file: &Path) -> Result<ModelMemory, LoadFailure> {
        Ok(Self::builder(file).memory()?)
    }

    fn load(&self, file: &Path, steps: StepMetrics) -> Result<Runner, LoadFailure> {
        Ok(Runner::Generator(Self::builder(file).step_metrics(steps).build()?))
    }

    fn kernel_pack(&self, name: &str) -> Result<Arc<LoadedPack>, LoadFailure> {
        Err(format!("no pack '{name}' is installed here").into())
    }

    fn kernel_choice(&self) -> KernelChoice {
        KernelChoice::default()
    }

    fn describe(&self, _: &Path) -> Result<ModelDescription, LoadFailure> {
        Ok(ModelDescription { architecture: "llama".to_owned(), ..ModelDescription::default() })
    }
}

impl Served {
    /// With a key for each of the tenants; without any, everybody may ask.
    pub fn new(tenants: &[&'static str]) -> Self {
        Self::limited(tenants, Limits::default(), BodyLimits::default())
    }

    /// With these limits for each of the keys, and for all bodies.
    pub fn limited(tenants: &[&'static str], limits: Limits, body_limits: BodyLimits) -> Self {
        let home = tempfile::tempdir().expect("a folder");
        let file = KeyFile::in_home(home.path());
        let mut keys = BTreeMap::new();
        for tenant in tenants {
            let key = NewKey::random().expect("random bits");
            let stored = StoredKey::new(tenant, &key, Scopes::new([Scope::Inference]));
            file.add(StoredKey { tenant: (*tenant).to_owned(), limits, ..stored }).expect("the key is stored");
            keys.insert(*tenant, key.text().to_owned());
        }
        let store = Store::open(&default_home().expect("a home folder"));
        let model = store.ensure("smollm2", &mut |_| {}).expect("the default model can be fetched");
        let (metrics, lifecycle) = (Arc::new(Metrics::default()), Lifecycle::default());
        let memory = Arc::new(MemoryBudget::new(None, &[], 0));
        let options = ModelsOptions {
            aliases: BTreeMap::new(),
            loaded_max: 1,
            keep_alive: None,
            memory,
            adapter_bytes: 64 << 20,
            adapter_folders: Vec::new(),
            learned: None,
        };
        let models = Models::new(store, Arc::new(ShortContext), Arc::clone(&metrics), options);
        let open = |steps| {
            ShortContext.load(&model.path, steps).map_err(|error| ModelError::Load { name: String::new(), error })
        };
        models.pin(&model, "smollm2", open).expect("the default model loads").expect("it fits");
        let models = Arc::new(models);
        let api = Api {
            fleet: Arc::new(Fleet::new(Arc::clone(&models), None, String::new())),
            models,
            lifecycle: lifecycle.clone(),
            answer_time_max: None,
            memory: None,
            router: None,
            preparing: Preparing::default(),
            allows_local_changes: false,
        };
        let gate = Arc::new(Gate::open(file, None).expect("the keys can be read"));
        let mut app = App::new(gate, metrics, lifecycle.clone());
        app.body_limits = body_limits;
        app.grpc = api.grpc(None);
        app.inference = api.router();
        lifecycle.advance(Phase::Ready);
        let Services { api: router, grpc, .. } = app.build();
        Self { router, grpc, lifecycle, keys, _home: home }
    }

    /// Sends a request on behalf of a tenant.
    pub async fn send(&self, tenant: &str, method: Method, path: &str, body: Option<Value>) -> (StatusCode, Body) {
        let mut request = Request::builder().method(method).uri(path).header("content-type", "application/json");
        if let Some(key) = self.keys.get(tenant) {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let response = self.router.clone().call(request.body(body).expect("a request")).await.expect("it cannot fail");
        (response.status(), response.into_body())
    }

    /// Sends a message to a method of gRPC on behalf of a tenant.
    pub async fn call(&self, tenant: &str, request: request::Builder, message: &[u8]) -> Response {
        self.call_with(tenant, request, framed(message).into()).await
    }

    /// Sends a body to a method of gRPC on behalf of a tenant.
    pub async fn call_with(&self, tenant: &str, request: request::Builder, body: Body) -> Response {
        let request = self.signed(tenant, request).body(body).expect("a request");
        self.grpc.clone().call(request).await.expect("it cannot fail")
    }

    /// A call on behalf of a tenant.
    pub fn signed(&self, tenant: &str, request: request::Builder) -> request::Builder {
        let request = request.method(Method::POST);
        match self.keys.get(tenant) {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    /// Serves gRPC on a port, until the lifecycle has ended.
    pub async fn listen(&self, tls: Option<Tls>) -> (SocketAddr, JoinHandle<()>) {
        let bound = Bound::bind("127.0.0.1", 0, "--grpc-port").await.expect("a free port");
        let (address, router, limits) = (bound.address(), self.grpc.clone(), ConnectionLimits::default());
        let listener = Listener { bound, router, tls, limits, until: Phase::Draining };
        let lifecycle = self.lifecycle.clone();
        let serving = async move { listen::serve(vec![listener], &Metrics::default(), lifecycle, PATIENCE).await };
        (address, tokio::spawn(serving))
    }

    pub async fn json(&self, tenant: &str, method: Method, path: &str, body: Option<Value>) -> (StatusCode, Value) {
        let (status, body) = self.send(tenant, method, path, body).await;
        let bytes = body.collect().await.expect("a whole body").to_bytes();
        (status, serde_json::from_slice(&bytes).expect("JSON"))
    }

    pub async fn post(&self, path: &str, body: Value) -> (StatusCode, Value) {
        self.json("", Method::POST, path, Some(body)).await
    }

    /// The events of a stream that the server's end breaks off after its first one.
    pub async fn broken_off(&self, path: &str, body: Value) -> Vec<(String, Value)> {
        let (status, mut body) = self.send("", Method::POST, path, Some(body)).await;
        assert_eq!(status, StatusCode::OK);
        let mut text = String::new();
        while let Some(frame) = body.frame().await {
            let data = frame.expect("a frame").into_data().expect("no trailers");
            text.push_str(std::str::from_utf8(&data).expect("text"));
            if text.contains("\n\n") {
                self.lifecycle.advance(Phase::Ended);
            }
        }
        events(&text)
    }
}

/// A message as gRPC sends it.
pub fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).expect("a short message").to_be_bytes();
    [&[0], &length[..], message].concat()
}

/// Names and data of events.
pub fn events(text: &str) -> Vec<(String, Value)> {
    let one = |event: &str| {
        let (name, data) = event.split_once('\n').expect("two lines");
        let name = name.strip_prefix("event: ").expect("a name").to_owned();
        (name, serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON"))
    };
    text.split_terminator("\n\n").map(one).collect()
}
