//! The HTTP server: the only crate that knows HTTP, JSON on the wire and status codes.
//!
//! A request passes through these places, in this order:
//!
//! | step | where |
//! | --- | --- |
//! | a connection is accepted, encrypted, and kept within its limits | [`listen`] |
//! | the request gets an id, and at its end a line in the log and its counts | `observe.rs` |
//! | errors get the shape that clients of the path expect | `shape.rs` |
//! | the body is kept within its size and time, and all bodies together within a budget | `body_limits.rs`, `body_budget.rs` |
//! | whoever sends it is identified, and held to their limits | [`access`] |
//! | its JSON becomes a type, or an error that names the field | [`body`] |
//!
//! [`App`] puts them around the routers that it is given. What the routers do with a request, and how tokens come about,
//! is not known here.

pub mod access;
pub mod api;
mod app;
mod background;
pub mod body;
mod body_budget;
mod body_limits;
pub mod error;
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

pub use api::{Api, Preparing, STORED_RESPONSES_BYTES_MAX};
pub use app::{App, Services};
pub use body::Body;
pub use body_budget::BodyBudget;
pub use body_limits::BodyLimits;
pub use error::{ApiError, ErrorKind};
pub use lifecycle::{Lifecycle, Phase};
pub use memory_budget::{MemoryBudget, MemoryReport};
pub use observe::Notes;
pub use openapi::ErrorBody;
pub use request_id::RequestId;

// What the binary needs to name what it puts together.
pub use axum::Router;
pub use axum::http::HeaderValue;
pub use utoipa_axum::router::OpenApiRouter;
