//! The default model behind the whole application, without sockets.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode, request};
use axum::response::Response;
use http_body_util::BodyExt;
use ruvllm_runtime::{Engine, EngineBuilder, KernelChoice, LoadedPack, ModelMemory, StepMetrics};
use ruvllm_server::access::{Gate, KeyFile, NewKey, Scope, Scopes, StoredKey};
use ruvllm_server::metrics::Metrics;
use ruvllm_server::models::{LoadFailure, Loader, ModelDescription, ModelError, Models, ModelsOptions, Runner};
use ruvllm_server::{Api, App, Fleet, Lifecycle, MemoryBudget, Phase, Preparing, Services};
use ruvllm_store::{Store, default_home};
use serde_json::Value;
use tower::Service;

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
        let home = tempfile::tempdir().expect("a folder");
        let file = KeyFile::in_home(home.path());
        let mut keys = BTreeMap::new();
        for tenant in tenants {
            let key = NewKey::random().expect("random bits");
            let stored = StoredKey::new(tenant, &key, Scopes::new([Scope::Inference]));
            file.add(StoredKey { tenant: (*tenant).to_owned(), ..stored }).expect("the key is stored");
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
        let mut request = request.method(Method::POST);
        if let Some(key) = self.keys.get(tenant) {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let length = u32::try_from(message.len()).expect("a short message").to_be_bytes();
        let body = [&[0], &length[..], message].concat();
        self.grpc.clone().call(request.body(Body::from(body)).expect("a request")).await.expect("it cannot fail")
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

/// Names and data of events.
pub fn events(text: &str) -> Vec<(String, Value)> {
    let one = |event: &str| {
        let (name, data) = event.split_once('\n').expect("two lines");
        let name = name.strip_prefix("event: ").expect("a name").to_owned();
        (name, serde_json::from_str(data.strip_prefix("data: ").expect("data")).expect("JSON"))
    };
    text.split_terminator("\n\n").map(one).collect()
}
