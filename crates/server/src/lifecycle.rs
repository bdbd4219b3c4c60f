//! Phases of the server: starting, ready, draining, ended. They only advance.

use std::sync::Arc;

use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Listening, but models are still being loaded.
    Starting,
    Ready,
    /// No new connections; running requests may finish.
    Draining,
    /// Everything that still runs must end now.
    Ended,
}

/// A shared handle.
#[derive(Clone, Debug)]
pub struct Lifecycle {
    phase: Arc<watch::Sender<Phase>>,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self { phase: Arc::new(watch::Sender::new(Phase::Starting)) }
    }
}

impl Lifecycle {
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Advances to a phase; does nothing if it was already reached.
    pub fn advance(&self, to: Phase) {
        self.phase.send_if_modified(|phase| {
            let is_later = to > *phase;
            *phase = to.max(*phase);
            is_later
        });
    }

    /// Waits until a phase, or a later one, is reached. Streams wait for [`Phase::Ended`] besides their tokens.
    pub async fn reached(&self, phase: Phase) {
        // Fails only if the sender is gone, and we hold it.
        let _ = self.phase.subscribe().wait_for(|now| *now >= phase).await;
    }
}
