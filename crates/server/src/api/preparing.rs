//! Whose turn it is to have a long prompt prepared.
//!
//! Rendering and encoding megabytes takes a core for seconds. Short prompts never wait for that; long ones take turns, one of
//! each tenant at a time, so that nobody waits longer than for one of each other tenant.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use ruvllm_runtime::{Message, Patience, Prompt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::error::ApiError;

/// Longer texts wait for their turn.
const SHORT_BYTES_MAX: usize = 64 << 10;
/// Long prompts that are prepared at the same time.
const LONG_MAX: usize = 1;
/// How long a request may wait for its turn and be prepared.
const TIME_MAX: Duration = Duration::from_secs(20);
const RETRY: Duration = Duration::from_secs(5);

/// Shared by all endpoints.
#[derive(Clone, Debug)]
pub struct Preparing(Arc<Turns>);

#[derive(Debug)]
struct Turns {
    all: Arc<Semaphore>,
    /// One for each tenant that has a long prompt waiting or at work.
    tenants: Mutex<HashMap<String, Weak<Semaphore>>>,
}

/// A turn to prepare a prompt.
#[derive(Debug)]
pub(crate) struct Turn {
    /// To be kept by whoever waits for the prompt.
    pub waiting: Waiting,
    /// To be kept by whoever prepares it, until that has ended, also where nobody waits any more.
    pub permit: Permit,
}

/// Somebody waits. Dropped when the client hangs up, which ends the work at its next look.
#[derive(Debug)]
pub(crate) struct Waiting(Patience);

#[derive(Debug)]
pub(crate) struct Permit {
    pub patience: Patience,
    _permits: Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>,
}

impl Turn {
    fn new(patience: Patience, permits: Option<(OwnedSemaphorePermit, OwnedSemaphorePermit)>) -> Self {
        Self { waiting: Waiting(patience.clone()), permit: Permit { patience, _permits: permits } }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Default for Preparing {
    fn default() -> Self {
        Self(Arc::new(Turns { all: Arc::new(Semaphore::new(LONG_MAX)), tenants: Mutex::default() }))
    }
}

impl Preparing {
    /// Waits for a turn to prepare so many bytes of text.
    pub(crate) async fn turn(&self, tenant: &str, bytes: usize) -> Result<Turn, ApiError> {
        let patience = Patience::of(TIME_MAX);
        if bytes <= SHORT_BYTES_MAX {
            return Ok(Turn::new(patience, None));
        }
        let of_tenant = self.0.of_tenant(tenant);
        let permits = async {
            Some((of_tenant.acquire_owned().await.ok()?, Arc::clone(&self.0.all).acquire_owned().await.ok()?))
        };
        match timeout(TIME_MAX, permits).await {
            Ok(Some(permits)) => Ok(Turn::new(patience, Some(permits))),
            _ => {
                let message = "too many long prompts are being prepared; try again later, or send a shorter one";
                Err(ApiError::unavailable(message, Some(RETRY)).with_code("preparation_timeout"))
            }
        }
    }
}

impl Turns {
    fn of_tenant(&self, tenant: &str) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = tenants.get(tenant).and_then(Weak::upgrade) {
            return known;
        }
        tenants.retain(|_, semaphore| semaphore.strong_count() > 0);
        let new = Arc::new(Semaphore::new(1));
        tenants.insert(tenant.to_owned(), Arc::downgrade(&new));
        new
    }
}

/// Bytes of text that a prompt has to be made of.
pub(crate) fn bytes_of(prompt: &Prompt) -> usize {
    let message = |message: &Message| {
        let calls = message.tool_calls.iter().map(|call| call.name.len() + call.arguments.len());
        message.content.len() + calls.sum::<usize>()
    };
    match prompt {
        Prompt::Text(text) => text.len(),
        Prompt::Tokens(_) => 0,
        // Each costs something, also where it says nothing.
        Prompt::Messages(messages) => messages.iter().map(message).sum::<usize>() + 16 * messages.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: usize = 8 << 20;

    #[tokio::test]
    async fn short_prompts_never_wait_for_long_ones() {
        let preparing = Preparing::default();
        let _long = preparing.turn("a", LONG).await.unwrap();
        assert!(preparing.turn("a", 100).await.is_ok());
    }

    #[tokio::test]
    async fn many_long_prompts_of_one_tenant_are_one_turn_to_another() {
        let preparing = Preparing::default();
        let first = preparing.turn("greedy", LONG).await.unwrap();
        let (order, mut came) = tokio::sync::mpsc::unbounded_channel();
        let wait = |tenant: &'static str| {
            let (preparing, order) = (preparing.clone(), order.clone());
            tokio::spawn(async move {
                let turn = preparing.turn(tenant, LONG).await.unwrap();
                order.send(tenant).unwrap();
                drop(turn);
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
        let Turn { waiting, permit } = preparing.turn("a", LONG).await.unwrap();
        assert!(!permit.patience.is_over());
        drop(waiting);
        assert!(permit.patience.is_over());
        assert_eq!(preparing.0.all.available_permits(), 0);
        drop(permit);
        assert_eq!(preparing.0.all.available_permits(), LONG_MAX);
    }
}
