//! Puts the routers of all endpoints together, and around them what holds for each request.

use std::sync::Arc;

use axum::http::HeaderValue;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::routing::get;
use axum::{Json, Router};
use utoipa_axum::router::OpenApiRouter;

use crate::access::guard::{Guard, guard};
use crate::access::{Gate, Scope, cors, pages};
use crate::body_budget::BodyBudget;
use crate::body_limits::{BodyLimits, limit};
use crate::error::ApiError;
use crate::lifecycle::Lifecycle;
use crate::metrics::{Metrics, Snapshots};
use crate::observe::observe;
use crate::{openapi, operations, panics, shape};

/// Endpoints by who may call them. Routers come with their state already in them.
pub struct App {
    pub gate: Arc<Gate>,
    pub metrics: Arc<Metrics>,
    pub lifecycle: Lifecycle,
    pub body_limits: BodyLimits,
    /// Of all requests together.
    pub body_budget: Arc<BodyBudget>,
    /// Web pages of these origins may call the API.
    pub cors_origins: Vec<HeaderValue>,
    /// The state of all loaded models, for `/metrics`.
    pub snapshots: Snapshots,
    /// For keys of the scope `inference`; held to the limits of the key.
    pub inference: OpenApiRouter,
    /// For keys of the scope `admin`, and whoever has the token of the local operator.
    pub admin: OpenApiRouter,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("gate", &self.gate).field("lifecycle", &self.lifecycle).finish_non_exhaustive()
    }
}

/// What listeners serve.
#[derive(Debug)]
pub struct Services {
    pub api: Router,
    /// Where there is a separate listener for administrators.
    pub admin: Option<Router>,
}

impl App {
    /// No endpoints but those of operations, yet.
    pub fn new(gate: Arc<Gate>, metrics: Arc<Metrics>, lifecycle: Lifecycle) -> Self {
        Self {
            gate,
            metrics,
            lifecycle,
            body_limits: BodyLimits::default(),
            body_budget: Arc::default(),
            cors_origins: Vec::new(),
            snapshots: Arc::new(Vec::new),
            inference: OpenApiRouter::new(),
            admin: OpenApiRouter::new(),
        }
    }

    /// Everything on one listener.
    pub fn build(mut self) -> Services {
        let mut routes = self.probes();
        routes = routes.merge(self.guarded_inference()).merge(self.guarded_admin());
        Services { api: self.finish(routes), admin: None }
    }

    /// Administration and metrics on a listener of their own, and only there.
    pub fn build_with_admin_listener(mut self) -> Services {
        let api = self.probes().merge(self.guarded_inference());
        let admin = self.probes().merge(self.guarded_admin());
        Services { api: self.finish(api), admin: Some(self.finish(admin)) }
    }

    fn probes(&self) -> OpenApiRouter {
        OpenApiRouter::with_openapi(openapi::base()).merge(operations::probes(self.lifecycle.clone()))
    }

    fn guarded_inference(&mut self) -> OpenApiRouter {
        let routes = std::mem::take(&mut self.inference);
        self.guarded(routes, Scope::Inference)
    }

    fn guarded_admin(&mut self) -> OpenApiRouter {
        let metrics = operations::metrics_route(Arc::clone(&self.metrics), Arc::clone(&self.snapshots));
        let admin = std::mem::take(&mut self.admin);
        self.guarded(metrics, Scope::Metrics).merge(self.guarded(admin, Scope::Admin))
    }

    fn guarded(&self, routes: OpenApiRouter, scope: Scope) -> OpenApiRouter {
        // Layers need routes to be around.
        if routes.get_openapi().paths.paths.is_empty() {
            return routes;
        }
        routes.route_layer(from_fn_with_state(Guard { gate: Arc::clone(&self.gate), scope }, guard))
    }

    /// What is written last is met first by a request.
    fn finish(&self, routes: OpenApiRouter) -> Router {
        let (router, document) = routes.split_for_parts();
        let router = router
            .route("/openapi.json", get(async move || Json(document)))
            .fallback(no_such_path)
            .method_not_allowed_fallback(wrong_method)
            .layer(from_fn_with_state((self.body_limits, Arc::clone(&self.body_budget)), limit))
            .layer(from_fn_with_state(self.cors_origins.clone().into(), pages::refuse_foreign));
        let router = match cors::layer(&self.cors_origins) {
            Some(cors) => router.layer(cors),
            None => router,
        };
        router
            .layer(from_fn(panics::catch))
            .layer(from_fn(shape::shape))
            .layer(from_fn_with_state(Arc::clone(&self.metrics), observe))
    }
}

async fn no_such_path(uri: axum::http::Uri) -> ApiError {
    ApiError::no_such_path(uri.path())
}

async fn wrong_method(method: axum::http::Method, uri: axum::http::Uri) -> ApiError {
    ApiError::wrong_method(method.as_str(), uri.path())
}
