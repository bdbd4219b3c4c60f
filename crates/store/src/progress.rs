//! What the store tells its caller while it works, and how the caller tells it to stop.

use std::path::PathBuf;
use std::time::Duration;
use std::time::Instant;

/// One thing that happened during a pull or a verification, in the order in which it happened.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Another process is pulling this model; we wait for it and then use what it fetched.
    WaitingForOtherProcess {
        name: String,
    },
    /// What was chosen of a repository: the main file, the bytes of all, and what else there is.
    Chosen {
        file: String,
        bytes: u64,
        why: String,
        others: Vec<String>,
    },
    TrySource {
        source: String,
    },
    /// The next source, if there is one, is tried after this.
    SourceFailed {
        source: String,
        why: String,
    },
    /// The transfer broke after it had moved bytes; it goes on from there after `wait`.
    Retrying {
        why: String,
        wait: Duration,
    },
    /// Of the whole file. `done_bytes` falls back when a server makes us start anew; while pip works it is the size of
    /// what pip has written so far.
    Bytes {
        done_bytes: u64,
        total_bytes: u64,
    },
    /// Bytes already on this machine are being hashed, out of a package if that is what was fetched.
    Verifying {
        bytes: u64,
    },
    Done {
        path: PathBuf,
    },
}

/// Receives events. Any `FnMut(Event)` is one; implement the trait to be able to cancel as well.
pub trait Progress {
    fn report(&mut self, event: Event);

    /// Asked several times a second. After `true` the operation ends with
    /// [`StoreError::Cancelled`](crate::StoreError::Cancelled) and keeps what can be resumed.
    fn cancelled(&self) -> bool {
        false
    }
}

impl<F: FnMut(Event)> Progress for F {
    fn report(&mut self, event: Event) {
        self(event)
    }
}

/// Keeps byte counts from flooding the caller: a fast disk would otherwise report thousands a second.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    last: Option<Instant>,
}

impl Throttle {
    const INTERVAL: Duration = Duration::from_millis(50);

    pub(crate) fn bytes(&mut self, progress: &mut dyn Progress, done_bytes: u64, total_bytes: u64) {
        let finished = total_bytes == done_bytes;
        let due = self.last.is_none_or(|last| last.elapsed() >= Self::INTERVAL);
        if due || finished {
            self.last = Some(Instant::now());
            progress.report(Event::Bytes { done_bytes, total_bytes });
        }
    }
}
