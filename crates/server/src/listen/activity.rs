//! State of a connection for its timeouts.
//!
//! hyper's own header timeout also runs between two requests, where a much longer one is needed. So the I/O reports
//! incoming bytes and the start and end of requests here, and the connection asks for its deadline.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::time::Instant;

use super::ConnectionLimits;

#[derive(Clone, Debug)]
pub(super) struct Activity {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    /// Requests that are being answered.
    requests: usize,
    /// Part of the headers has arrived, or the first request is expected.
    is_reading_head: bool,
    /// When that started, or when the last request ended.
    since: Instant,
    /// Frames that belong to no request may arrive at any time, so they do not count.
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

    /// Counts a request as running until the returned value is dropped.
    pub(super) fn begin_request(&self, is_http2: bool) -> RunningRequest {
        let mut state = self.lock();
        state.requests += 1;
        state.is_reading_head = false;
        state.is_http2 = is_http2;
        RunningRequest { activity: self.clone() }
    }

    /// Returns when to close the connection if nothing changes; `None` while requests run.
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
