//! The life of the server: starting, ready, draining, ended. It only ever goes forward.

use std::sync::Arc;

use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Listening, but models are still being loaded.
    Starting,
    Ready,
    /// No new connections; what runs may finish.
    Draining,
    /// Whatever still runs is to end now.
    Ended,
}

/// A handle that everybody shares.
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

    /// Goes on to a phase; does nothing if that has been reached already.
    pub fn advance(&self, to: Phase) {
        self.phase.send_if_modified(|phase| {
            let is_later = to > *phase;
            *phase = to.max(*phase);
            is_later
        });
    }

    /// Waits until a phase, or a later one, has been reached. Streams wait for [`Phase::Ended`] beside their tokens.
    pub async fn reached(&self, phase: Phase) {
        // It fails when the sender is gone, and we hold it.
        let _ = self.phase.subscribe().wait_for(|now| *now >= phase).await;
    }
}
