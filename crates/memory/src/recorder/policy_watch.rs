//! Follows changes of policies by other programs.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Memory;
use crate::error::{MemoryError, Result};

/// How often the store is asked whether policies have changed.
const POLICY_INTERVAL: Duration = Duration::from_secs(5);

/// The thread that follows changes of policies by other programs.
#[derive(Debug)]
pub(super) struct PolicyWatch {
    /// The thread ends when this is dropped.
    running: Option<mpsc::Sender<()>>,
    thread: JoinHandle<()>,
}

impl PolicyWatch {
    /// Ends the thread, and waits for it unless it hangs in a database.
    pub fn end(&mut self, patience: Duration) {
        self.running = None;
        let deadline = Instant::now() + patience;
        while !self.thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

pub(super) fn watch_policies(memory: Arc<Memory>) -> Result<PolicyWatch> {
    let (watch, ended) = mpsc::channel();
    let follow = move || {
        let mut is_known = true;
        while ended.recv_timeout(POLICY_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            match memory.policies().refresh() {
                Ok(()) => is_known = true,
                Err(error) => {
                    // Logged once, not every five seconds.
                    if std::mem::take(&mut is_known) {
                        tracing::warn!("policies cannot be read; the known ones stay in force until they can: {error}");
                    }
                }
            }
        }
    };
    let thread = std::thread::Builder::new().name("policies".into()).spawn(follow).map_err(MemoryError::Thread)?;
    Ok(PolicyWatch { running: Some(watch), thread })
}
