//! Lets a caller give up on work that another thread does for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Tells work whether its result is still wanted. Clones share one state; the default is never cancelled by itself.
#[derive(Clone, Debug, Default)]
pub struct CancellationToken {
    is_cancelled: Arc<AtomicBool>,
    deadline: Option<Instant>,
}

impl CancellationToken {
    /// Creates a token that is cancelled when `flag` is set.
    pub fn from_flag(flag: Arc<AtomicBool>) -> Self {
        Self { is_cancelled: flag, deadline: None }
    }

    /// Creates a token that is cancelled after `limit` at the latest.
    pub fn with_timeout(limit: Duration) -> Self {
        Self { deadline: Instant::now().checked_add(limit), ..Self::default() }
    }

    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }

    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed) || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}
