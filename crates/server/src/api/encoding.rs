//! Runs requests of encoders and rerankers: queued, limited, measured and charged in the same way.

use std::time::{Duration, Instant};

use ruvllm_runtime::CancellationToken;
use tokio::time::timeout;

use crate::access::{Caller, Demand};
use crate::api::failure;
use crate::api::preparing::CancelOnDrop;
use crate::error::ApiError;
use crate::metrics::{Finished, FinishedReason};
use crate::models::ModelInUse;

/// Why there is no result: `E` is what the model says.
pub(crate) enum Failure<E> {
    Model(E),
    Other(ApiError),
}

impl<E> From<ApiError> for Failure<E> {
    fn from(error: ApiError) -> Self {
        Self::Other(error)
    }
}

/// What a model computed, or why it did not.
pub(crate) trait Computed {
    /// Returns how it ended, and the number of tokens that were computed.
    fn outcome(&self) -> (FinishedReason, usize);
}

/// Waits for a permit and computes. When this is dropped, because the client disconnected or its time is up, it ends
/// soon; what was computed is charged in any case.
pub(crate) async fn compute<T, E>(
    model: &ModelInUse,
    caller: &Caller,
    demand: Demand,
    cancellation: CancellationToken,
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, Failure<E>>
where
    T: Send + 'static,
    E: Send + 'static,
    Result<T, E>: Computed,
{
    let arrived = Instant::now();
    let _end = CancelOnDrop(cancellation);
    let permit = model.embedding.enter().await.map_err(|full| failure::queue_full(full.to_string()))?;
    model.metrics.started(arrived.elapsed());
    let reservation = caller.reserve(&demand)?;
    let model = model.clone();
    let computing = tokio::task::spawn_blocking(move || {
        let computed = work();
        let (reason, prompt_tokens) = computed.outcome();
        reservation.charge(prompt_tokens as u64);
        let took = arrived.elapsed();
        model.metrics.finished(&Finished { reason, took, prompt_tokens, cached_tokens: 0, generated_tokens: 0 });
        drop(permit);
        computed
    });
    computing.await.map_err(|_| ApiError::internal("the texts could not be computed"))?.map_err(Failure::Model)
}

/// Gives up after the maximum duration of an answer; the error names what took so long, and of what to send less.
pub(crate) async fn in_time<T, E>(
    time_max: Option<Duration>,
    doing: &str,
    texts: &str,
    computing: impl Future<Output = Result<T, Failure<E>>>,
) -> Result<T, Failure<E>> {
    let Some(time_max) = time_max else { return computing.await };
    timeout(time_max, computing).await.unwrap_or_else(|_| {
        let message = format!("{doing} took longer than {} s; send fewer {texts} at a time", time_max.as_secs());
        Err(failure::deadline_passed(message).into())
    })
}
