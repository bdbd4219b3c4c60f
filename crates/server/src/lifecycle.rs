//! Phases of the server: starting, ready, leaving, draining, ended. They only advance.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Listening, but models are still being loaded.
    Starting,
    Ready,
    /// `/ready` says no, so that those who distribute requests go elsewhere; whoever comes all the same is answered.
    Leaving,
    /// No new connections; running requests may finish.
    Draining,
    /// Everything that still runs must end now.
    Ended,
}

/// A shared handle.
#[derive(Clone, Debug)]
pub struct Lifecycle {
    phase: Arc<watch::Sender<Phase>>,
    /// How long it leaves before it drains.
    drain_delay: Duration,
}

impl Default for Lifecycle {
    fn default() -> Self {
        Self { phase: Arc::new(watch::Sender::new(Phase::Starting)), drain_delay: Duration::ZERO }
    }
}

impl Lifecycle {
    /// For those who need so long to notice that `/ready` says no.
    pub fn with_drain_delay(self, drain_delay: Duration) -> Self {
        Self { drain_delay, ..self }
    }

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

    /// Lets the server end once running requests have. Must be called within the runtime, unless there is no delay.
    pub fn drain(&self) {
        if self.drain_delay.is_zero() {
            return self.advance(Phase::Draining);
        }
        self.advance(Phase::Leaving);
        let lifecycle = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(lifecycle.drain_delay).await;
            lifecycle.advance(Phase::Draining);
        });
    }

    /// Waits until a phase, or a later one, is reached. Streams wait for [`Phase::Ended`] besides their tokens.
    pub async fn reached(&self, phase: Phase) {
        // Fails only if the sender is gone, and we hold it.
        let _ = self.phase.subscribe().wait_for(|now| *now >= phase).await;
    }
}
