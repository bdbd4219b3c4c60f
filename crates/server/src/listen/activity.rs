//! What a connection is doing, as far as its time limits go.
//!
//! hyper's own timeout for heads also runs between two requests, where much more patience is due. So it is told here when bytes
//! come in and when requests begin and end, and whoever drives the connection asks when its patience ends.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::time::Instant;

use super::ConnectionLimits;

#[derive(Clone, Debug)]
pub(super) struct Activity {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    /// That are being answered.
    requests: usize,
    /// Part of a head has come, or the first one is expected.
    is_reading_head: bool,
    /// When that began, or when the last request ended.
    since: Instant,
    /// Frames other than of requests come in at any time, so they mean nothing.
    is_http2: bool,
}

impl Activity {
    pub(super) fn new() -> Self {
        let state = State { requests: 0, is_reading_head: true, since: Instant::now(), is_http2: false };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    pub(super) fn bytes_came(&self) {
        let mut state = self.lock();
        if state.requests == 0 && !state.is_reading_head && !state.is_http2 {
            state.is_reading_head = true;
            state.since = Instant::now();
        }
    }

    /// A request goes on until what this returns is dropped.
    pub(super) fn begin_request(&self, is_http2: bool) -> RunningRequest {
        let mut state = self.lock();
        state.requests += 1;
        state.is_reading_head = false;
        state.is_http2 = is_http2;
        RunningRequest { activity: self.clone() }
    }

    /// When to close the connection if nothing changes; `None` while requests run.
    pub(super) fn deadline(&self, limits: &ConnectionLimits) -> Option<Instant> {
        let state = self.lock();
        let patience = if state.is_reading_head { limits.head_timeout } else { limits.idle_timeout };
        (state.requests == 0).then(|| state.since + patience)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[derive(Debug)]
pub(super) struct RunningRequest {
    activity: Activity,
}

impl Drop for RunningRequest {
    fn drop(&mut self) {
        let mut state = self.activity.lock();
        state.requests -= 1;
        state.since = Instant::now();
    }
}
