//! Assembles the routers of all endpoints, and the layers around them.

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
use crate::observe::{Observer, observe};
use crate::{openapi, operations, panics, shape};

/// Endpoints by required scope. Routers already have their state.
pub struct App {
    pub gate: Arc<Gate>,
    pub metrics: Arc<Metrics>,
    pub lifecycle: Lifecycle,
    pub body_limits: BodyLimits,
    /// Budget of all requests together.
    pub body_budget: Arc<BodyBudget>,
    /// Whether parameters without effect are refused, instead of named in the response.
    pub is_strict: bool,
    /// Web pages of these origins may call the API.
    pub cors_origins: Vec<HeaderValue>,
    /// Returns the state of all loaded models, for `/metrics`.
    pub snapshots: Snapshots,
    /// Needs the scope `inference`; subject to the limits of the key.
    pub inference: OpenApiRouter,
    /// Needs the scope `admin`, or the token of the local operator.
    pub admin: OpenApiRouter,
    /// The services of gRPC.
    pub grpc: GrpcServices,
}

impl std::fmt::Debug for App {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("App").field("gate", &self.gate).field("lifecycle", &self.lifecycle).finish_non_exhaustive()
    }
}

/// Routers for the listeners.
#[derive(Debug)]
pub struct Services {
    pub api: Router,
    /// Set if administration has its own listener.
    pub admin: Option<Router>,
    /// For the listener of gRPC: routers tell by what a port answers which of the two it speaks.
    pub grpc: Router,
}

/// Services of gRPC by required scope.
#[derive(Debug, Default)]
pub struct GrpcServices {
    /// For everybody.
    pub public: Router,
    /// Needs the scope `inference`; subject to the limits of the key.
    pub inference: Router,
}

impl App {
    /// Returns an app with the endpoints of operations only.
    pub fn new(gate: Arc<Gate>, metrics: Arc<Metrics>, lifecycle: Lifecycle) -> Self {
        Self {
            gate,
            metrics,
            lifecycle,
            body_limits: BodyLimits::default(),
            body_budget: Arc::default(),
            is_strict: false,
            cors_origins: Vec::new(),
            snapshots: Arc::new(Vec::new),
            inference: OpenApiRouter::new(),
            admin: OpenApiRouter::new(),
            grpc: GrpcServices::default(),
        }
    }

    /// Builds everything for one listener.
    pub fn build(mut self) -> Services {
        let mut routes = self.probes();
        routes = routes.merge(self.guarded_inference()).merge(self.guarded_admin());
        Services { api: self.finish(routes), admin: None, grpc: self.grpc() }
    }

    /// Builds administration and metrics for a listener of their own, and only there.
    pub fn build_with_admin_listener(mut self) -> Services {
        let api = self.probes().merge(self.guarded_inference());
        let admin = self.probes().merge(self.guarded_admin());
        Services { api: self.finish(api), admin: Some(self.finish(admin)), grpc: self.grpc() }
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
        // Layers need routes to wrap.
        if routes.get_openapi().paths.paths.is_empty() {
            return routes;
        }
        routes.route_layer(from_fn_with_state(Guard { gate: Arc::clone(&self.gate), scope }, guard))
    }

    fn grpc(&mut self) -> Router {
        let GrpcServices { public, inference } = std::mem::take(&mut self.grpc);
        if !inference.has_routes() {
            return public;
        }
        let guard = from_fn_with_state(Guard { gate: Arc::clone(&self.gate), scope: Scope::Inference }, guard);
        self.layered(public.merge(inference.route_layer(guard)))
    }

    fn finish(&self, routes: OpenApiRouter) -> Router {
        let (router, document) = routes.split_for_parts();
        self.layered(router.route("/openapi.json", get(async move || Json(document))))
    }

    /// The last layer is the first that a request meets.
    fn layered(&self, router: Router) -> Router {
        let router = router
            .fallback(no_such_path)
            .method_not_allowed_fallback(wrong_method)
            .layer(from_fn_with_state((self.body_limits, Arc::clone(&self.body_budget)), limit))
            .layer(from_fn_with_state(self.cors_origins.clone().into(), pages::refuse_foreign));
        let router = match cors::layer(&self.cors_origins) {
            Some(cors) => router.layer(cors),
            None => router,
        };
        router.layer(from_fn(panics::catch)).layer(from_fn(shape::shape)).layer(from_fn_with_state(
            Observer { metrics: Arc::clone(&self.metrics), is_strict: self.is_strict },
            observe,
        ))
    }
}

async fn no_such_path(uri: axum::http::Uri) -> ApiError {
    ApiError::no_such_path(uri.path())
}

async fn wrong_method(method: axum::http::Method, uri: axum::http::Uri) -> ApiError {
    ApiError::wrong_method(method.as_str(), uri.path())
}
