//! Limits how many requests embed or rerank with a model concurrently, and how many wait. Engines have their own queues;
//! encoders and rerankers have this one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of concurrent requests. They take turns, so that short ones need not wait for long ones to end.
const RUNNING_MAX: usize = 4;
/// Maximum number of waiting requests.
const WAITING_MAX: usize = 256;

#[derive(Debug)]
pub(crate) struct EmbeddingQueue {
    permits: Arc<Semaphore>,
    waiting: Arc<AtomicUsize>,
}

/// The queue is full.
#[derive(Debug, thiserror::Error)]
#[error("{WAITING_MAX} requests are already waiting; try again later")]
pub(crate) struct QueueFull;

impl Default for EmbeddingQueue {
    fn default() -> Self {
        Self { permits: Arc::new(Semaphore::new(RUNNING_MAX)), waiting: Arc::default() }
    }
}

impl EmbeddingQueue {
    /// Waits for a permit.
    pub(crate) async fn enter(&self) -> Result<OwnedSemaphorePermit, QueueFull> {
        let waiting = Waiting::new(&self.waiting)?;
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        drop(waiting);
        // The semaphore is never closed.
        permit.map_err(|_| QueueFull)
    }

    pub(crate) fn running(&self) -> usize {
        RUNNING_MAX - self.permits.available_permits().min(RUNNING_MAX)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// A waiting request, counted until it is dropped, even if the client disconnects.
struct Waiting(Arc<AtomicUsize>);

impl Waiting {
    fn new(count: &Arc<AtomicUsize>) -> Result<Self, QueueFull> {
        let counted = Self(Arc::clone(count));
        if count.fetch_add(1, Ordering::Relaxed) >= WAITING_MAX { Err(QueueFull) } else { Ok(counted) }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn places_are_limited_and_given_back() {
        let queue = EmbeddingQueue::default();
        let mut held = Vec::new();
        for _ in 0..RUNNING_MAX {
            held.push(queue.enter().await.unwrap());
        }
        assert_eq!((queue.running(), queue.waiting()), (RUNNING_MAX, 0));
        let gave_up = tokio::time::timeout(std::time::Duration::from_millis(5), queue.enter()).await;
        assert!(gave_up.is_err());
        assert_eq!(queue.waiting(), 0, "who goes away no longer waits");
        held.pop();
        drop(queue.enter().await.unwrap());
    }

    #[test]
    fn a_full_queue_refuses_and_does_not_grow() {
        let count = Arc::default();
        let waiting: Vec<Waiting> = (0..WAITING_MAX).map(|_| Waiting::new(&count).unwrap()).collect();
        assert!(Waiting::new(&count).is_err());
        assert_eq!(count.load(Ordering::Relaxed), WAITING_MAX);
        drop(waiting);
        assert_eq!(count.load(Ordering::Relaxed), 0);
    }
}
