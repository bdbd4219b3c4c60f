//! Limits how many prompts are prepared concurrently.
//!
//! Rendering and encoding megabytes takes a core for seconds. Short prompts never wait for that; of the long ones, each
//! tenant has one at a time, so that nobody waits longer than for one prompt of each other tenant. There are few
//! threads, so a tenant gets only some of them for short prompts too.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use ruvllm_runtime::{CancellationToken, Message, Prompt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::background;
use crate::error::ApiError;

/// Longer texts need a permit.
const SHORT_BYTES_MAX: usize = 64 << 10;
/// Cost of a message besides its text.
const MESSAGE_BYTES: usize = 64;
/// Maximum number of long prompts that are prepared concurrently.
const LONG_MAX: usize = 1;
/// Maximum number of short prompts of one tenant that are prepared concurrently. There are threads for several such
/// tenants: most prompts take a millisecond, but a grammar may take seconds to compile.
const OF_TENANT_MAX: usize = 8;
/// Maximum time for waiting and preparing.
const TIME_MAX: Duration = Duration::from_secs(20);
const RETRY: Duration = Duration::from_secs(5);

/// Shared by all endpoints.
#[derive(Clone, Debug)]
pub struct Preparing(Arc<Semaphores>);

#[derive(Debug)]
struct Semaphores {
    long: Arc<Semaphore>,
    /// One entry for each tenant with a prompt that waits or is being prepared.
    tenants: Mutex<HashMap<String, Weak<TenantSemaphores>>>,
}

#[derive(Debug)]
struct TenantSemaphores {
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

/// A permit to prepare a prompt.
#[derive(Debug)]
pub(crate) struct PreparePermit {
    patience: CancellationToken,
    bytes: usize,
    permits: Permits,
}

#[derive(Debug)]
struct Permits {
    _of_tenant: OwnedSemaphorePermit,
    _long: Option<OwnedSemaphorePermit>,
    /// While it exists, other prompts of the tenant find the same semaphores.
    _tenant: Arc<TenantSemaphores>,
}

impl PreparePermit {
    /// Runs the work in the background. Returns `None` if it panicked.
    ///
    /// If the caller is dropped because the client disconnected, the work ends when it next checks for cancellation;
    /// until then it keeps the permit.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        work: impl FnOnce(&CancellationToken) -> T + Send + 'static,
    ) -> Option<T> {
        let Self { patience, bytes, permits } = self;
        let _end = CancelOnDrop(patience.clone());
        let work = move || {
            let result = work(&patience);
            drop(permits);
            result
        };
        if bytes > background::LONG_BYTES {
            return background::run(work).await;
        }
        tokio::task::spawn_blocking(work).await.ok()
    }
}

/// Dropping it cancels the work.
pub(crate) struct CancelOnDrop(pub CancellationToken);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Default for Preparing {
    fn default() -> Self {
        Self(Arc::new(Semaphores { long: Arc::new(Semaphore::new(LONG_MAX)), tenants: Mutex::default() }))
    }
}

impl Preparing {
    /// Waits for a permit to prepare this many bytes of text.
    pub(crate) async fn permit(&self, tenant: &str, bytes: usize) -> Result<PreparePermit, ApiError> {
        let patience = CancellationToken::with_timeout(TIME_MAX);
        let tenant = self.0.of_tenant(tenant);
        let is_long = bytes > SHORT_BYTES_MAX;
        let permits = async {
            let of_tenant = if is_long { &tenant.long } else { &tenant.short };
            let of_tenant = Arc::clone(of_tenant).acquire_owned().await.ok()?;
            let long = if is_long { Some(Arc::clone(&self.0.long).acquire_owned().await.ok()?) } else { None };
            Some((of_tenant, long))
        };
        match timeout(TIME_MAX, permits).await {
            Ok(Some((of_tenant, long))) => {
                let permits = Permits { _of_tenant: of_tenant, _long: long, _tenant: tenant };
                Ok(PreparePermit { patience, bytes, permits })
            }
            _ => {
                let message = "too many prompts are being prepared; try again later, or send a shorter one";
                Err(ApiError::unavailable(message, Some(RETRY)).with_code("preparation_timeout"))
            }
        }
    }
}

impl Semaphores {
    fn of_tenant(&self, tenant: &str) -> Arc<TenantSemaphores> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = tenants.get(tenant).and_then(Weak::upgrade) {
            return known;
        }
        tenants.retain(|_, known| known.strong_count() > 0);
        let new = Arc::new(TenantSemaphores {
            short: Arc::new(Semaphore::new(OF_TENANT_MAX)),
            long: Arc::new(Semaphore::new(1)),
        });
        tenants.insert(tenant.to_owned(), Arc::downgrade(&new));
        new
    }
}

/// Returns the bytes of text that a prompt is made of.
pub(crate) fn bytes_of(prompt: &Prompt) -> usize {
    let message = |message: &Message| {
        let calls = message.tool_calls.iter().map(|call| call.name.len() + call.arguments.len());
        message.content.len() + calls.sum::<usize>()
    };
    match prompt {
        Prompt::Text(text) => text.len(),
        Prompt::Tokens(_) => 0,
        Prompt::Messages(messages) => messages.iter().map(message).sum::<usize>() + MESSAGE_BYTES * messages.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: usize = 8 << 20;

    #[tokio::test]
    async fn short_prompts_never_wait_for_long_ones() {
        let preparing = Preparing::default();
        let _long = preparing.permit("a", LONG).await.unwrap();
        assert!(preparing.permit("a", 100).await.is_ok());
    }

    #[tokio::test]
    async fn a_tenant_whose_prompts_take_long_leaves_threads_to_others() {
        let preparing = Preparing::default();
        let mut taken = Vec::new();
        for _ in 0..OF_TENANT_MAX {
            taken.push(preparing.permit("greedy", 100).await.unwrap());
        }
        let another = timeout(Duration::from_millis(20), preparing.permit("greedy", 100)).await;
        assert!(another.is_err(), "it waits");
        assert!(preparing.permit("modest", 100).await.is_ok());
        taken.pop();
        assert!(preparing.permit("greedy", 100).await.is_ok());
    }

    #[tokio::test]
    async fn many_long_prompts_of_one_tenant_delay_another_by_one() {
        let preparing = Preparing::default();
        let first = preparing.permit("greedy", LONG).await.unwrap();
        let (order, mut came) = tokio::sync::mpsc::unbounded_channel();
        let wait = |tenant: &'static str| {
            let (preparing, order) = (preparing.clone(), order.clone());
            tokio::spawn(async move {
                let permit = preparing.permit(tenant, LONG).await.unwrap();
                order.send(tenant).unwrap();
                drop(permit);
            })
        };
        let mut waiting: Vec<_> = (0..10).map(|_| wait("greedy")).collect();
        tokio::task::yield_now().await;
        waiting.push(wait("modest"));
        tokio::task::yield_now().await;
        drop(first);
        for waiting in waiting {
            waiting.await.unwrap();
        }
        let order: Vec<&str> = std::iter::from_fn(|| came.try_recv().ok()).collect();
        assert!(order[..2].contains(&"modest"), "{order:?}");
        assert_eq!(order.len(), 11);
    }

    #[tokio::test]
    async fn work_whose_client_has_left_is_over_and_makes_room_when_it_has_ended() {
        let preparing = Preparing::default();
        let permit = preparing.permit("a", LONG).await.unwrap();
        let (started, has_started) = tokio::sync::oneshot::channel();
        let (go_on, may_go_on) = std::sync::mpsc::channel();
        let (ended, has_ended) = tokio::sync::oneshot::channel();
        let running = tokio::spawn(permit.run(move |patience| {
            started.send(patience.is_cancelled()).unwrap();
            may_go_on.recv().unwrap();
            ended.send(patience.is_cancelled()).unwrap();
        }));
        assert!(!has_started.await.unwrap());
        running.abort();
        assert!(running.await.is_err());
        assert_eq!(preparing.0.long.available_permits(), 0, "it keeps its permit until it has noticed");
        go_on.send(()).unwrap();
        assert!(has_ended.await.unwrap());
        assert!(preparing.permit("a", LONG).await.is_ok());
    }

    #[tokio::test]
    async fn work_that_panics_has_no_result_and_releases_its_permit() {
        let preparing = Preparing::default();
        for bytes in [100, LONG] {
            assert_eq!(preparing.permit("a", bytes).await.unwrap().run(|_| panic!("on purpose")).await, None::<()>);
        }
        assert!(preparing.permit("a", LONG).await.is_ok());
    }
}
