//! The HTTP server: the only crate that knows HTTP, gRPC, JSON on the wire and status codes.
//!
//! The way of a request:
//! | step | where |
//! | --- | --- |
//! | the connection is accepted, encrypted and limited | [`listen`] |
//! | the request gets an id, and at its end a log line and metrics | `observe.rs` |
//! | errors get the format that clients of the path expect | `shape.rs` |
//! | the body is limited in size and time, and all bodies together in memory | `body_limits.rs`, `body_budget.rs` |
//! | the sender is identified and rate limited | [`access`] |
//! | the JSON becomes a type, or an error that names the field | [`body`] |
//!
//! [`App`] wraps them around the routers that it is given. It does not know what the routers do, or how tokens are
//! generated.

pub mod access;
pub mod api;
mod app;
mod background;
pub mod body;
mod body_budget;
mod body_limits;
pub mod error;
mod fleet;
mod grpc;
mod ignored;
pub mod kv_events;
mod lifecycle;
pub mod listen;
pub mod log;
mod memory_budget;
pub mod metrics;
pub mod models;
mod observe;
mod openapi;
mod operations;
mod panics;
mod request_id;
mod shape;

pub use api::{Api, Preparing, STORED_RESPONSES_BYTES_MAX, apply_model_settings, parse_go_duration};
pub use app::{App, GrpcServices, Services};
pub use body::Body;
pub use body_budget::BodyBudget;
pub use body_limits::BodyLimits;
pub use error::{ApiError, ErrorKind};
pub use fleet::Fleet;
pub use ignored::IgnoredParams;
pub use lifecycle::{Lifecycle, Phase};
pub use memory_budget::{MemoryBudget, MemoryReport};
pub use observe::Notes;
pub use openapi::ErrorBody;
pub use request_id::RequestId;

// Types that the binary needs to assemble a server.
pub use axum::Router;
pub use axum::http::HeaderValue;
pub use utoipa_axum::router::OpenApiRouter;
