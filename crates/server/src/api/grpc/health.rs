//! gRPC's own health checks: the same as `/ready`.

use axum::extract::State;
use axum::response::Response;
use futures_util::stream;
use prost::{Enumeration, Message};

use super::Grpc;
use super::reflection::has_service;
use crate::error::ApiError;
use crate::grpc::{Call, Reply, replies};
use crate::lifecycle::{Lifecycle, Phase};

#[derive(Clone, PartialEq, Message)]
pub(super) struct HealthCheckRequest {
    /// Empty is the whole server.
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    status: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

pub(super) async fn check(
    State(grpc): State<Grpc>,
    Call(call): Call<HealthCheckRequest>,
) -> Result<Reply<HealthCheckResponse>, ApiError> {
    match status(&call.service, &grpc.api.lifecycle) {
        ServingStatus::ServiceUnknown => Err(ApiError::not_found("there is no such service; reflection lists all")),
        status => Ok(Reply(status.into())),
    }
}

/// Tells of every change, until the client has heard enough.
pub(super) async fn watch(State(grpc): State<Grpc>, Call(call): Call<HealthCheckRequest>) -> Response {
    let lifecycle = grpc.api.lifecycle;
    replies::<HealthCheckResponse>(stream::unfold(None, move |told: Option<Phase>| {
        let (lifecycle, service) = (lifecycle.clone(), call.service.clone());
        async move {
            let now = match told {
                None => lifecycle.phase(),
                Some(told) => next(told, &lifecycle).await?,
            };
            Some((Ok(status(&service, &lifecycle).into()), Some(now)))
        }
    }))
}

/// Waits until a phase begins that answers differently; `None` if there is none.
async fn next(told: Phase, lifecycle: &Lifecycle) -> Option<Phase> {
    let next = match told {
        Phase::Starting => Phase::Ready,
        Phase::Ready => Phase::Leaving,
        Phase::Leaving | Phase::Draining | Phase::Ended => {
            // The server would wait for a stream that goes on.
            lifecycle.reached(Phase::Draining).await;
            return None;
        }
    };
    lifecycle.reached(next).await;
    Some(lifecycle.phase())
}

fn status(service: &str, lifecycle: &Lifecycle) -> ServingStatus {
    match lifecycle.phase() {
        _ if !service.is_empty() && !has_service(service) => ServingStatus::ServiceUnknown,
        Phase::Ready => ServingStatus::Serving,
        Phase::Starting | Phase::Leaving | Phase::Draining | Phase::Ended => ServingStatus::NotServing,
    }
}

impl From<ServingStatus> for HealthCheckResponse {
    fn from(status: ServingStatus) -> Self {
        Self { status: status.into() }
    }
}
