//! gRPC as HTTP/2 carries it: framed messages, and a status in the trailers.
//!
//! Services are routes like all others, behind the same layers: this only translates. It does not know what services
//! there are.

mod call;
mod frame;
mod status;

pub(crate) use call::{Call, Reply, Requests, replies};
pub(crate) use frame::write;
pub(crate) use status::{ok, shape, trailers};

use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;

/// Content type of requests and responses.
pub(crate) const CONTENT: &str = "application/grpc";

/// Returns whether a request is one of gRPC: `application/grpc`, or that with a format such as `+proto`.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let rest = kind.and_then(|kind| kind.strip_prefix(CONTENT));
    rest.is_some_and(|rest| matches!(rest, "" | "+proto") || rest.starts_with(';') || rest.starts_with("+proto;"))
}
