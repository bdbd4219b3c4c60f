//! What waits to be written: bounded in entries and in bytes, so that no database, however slow, costs a server its memory.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Trace;
use super::size::bytes_of;

const ENTRIES_MAX: u64 = 10_000;
/// Of all that is not settled, with what the batch at hand takes.
pub(super) const BYTES_MAX: usize = 64 << 20;

const BATCH_MAX: usize = 100;
/// How long an entry waits for others.
const BATCH_AGE_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// Told when there may be something to do.
    work: Condvar,
    /// Told when entries are settled, or nothing will be any more.
    settled: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Waiting>,
    /// Of all that were taken and are not settled.
    bytes: usize,
    /// Entries since the start.
    taken: u64,
    settled: u64,
    /// All up to this one are to be written without waiting for others.
    wanted: u64,
    /// Until when what waits may be written; `None` while more may come.
    closes_at: Option<Instant>,
    has_ended: bool,
}

#[derive(Debug)]
struct Waiting {
    trace: Box<Trace>,
    bytes: usize,
    since: Instant,
}

/// What is written together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub traces: Vec<Trace>,
    pub bytes: usize,
}

/// Why a trace was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Full,
    Closed,
}

impl Queue {
    /// Takes a trace, or gives it back.
    pub fn offer(&self, trace: Box<Trace>) -> Result<(), (Refusal, Box<Trace>)> {
        let bytes = bytes_of(&trace);
        let mut state = self.state();
        if state.closes_at.is_some() || state.has_ended {
            return Err((Refusal::Closed, trace));
        }
        if state.taken - state.settled >= ENTRIES_MAX || state.bytes + bytes > BYTES_MAX {
            return Err((Refusal::Full, trace));
        }
        state.bytes += bytes;
        state.taken += 1;
        state.waiting.push_back(Waiting { trace, bytes, since: Instant::now() });
        // The first one's age counts, and so does a full batch; nothing is to be done between.
        let is_news = state.waiting.len() == 1 || state.waiting.len() == BATCH_MAX;
        drop(state);
        if is_news {
            self.work.notify_one();
        }
        Ok(())
    }

    /// Waits for a batch; it is empty if there is none at `until`. `None` when there will be no more.
    pub fn next(&self, until: Instant) -> Option<Batch> {
        let mut state = self.state();
        loop {
            let now = Instant::now();
            let due = match state.waiting.front() {
                None if state.closes_at.is_some() => return None,
                None => until,
                Some(_) if state.is_urgent() => now,
                Some(first) => until.min(first.since + BATCH_AGE_MAX),
            };
            if due <= now {
                break;
            }
            let waited = self.work.wait_timeout(state, due - now);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let count = state.waiting.len().min(BATCH_MAX);
        let mut batch = Batch::default();
        for Waiting { trace, bytes, .. } in state.waiting.drain(..count) {
            batch.traces.push(*trace);
            batch.bytes += bytes;
        }
        Some(batch)
    }

    /// A batch has found its end, in the store or not.
    pub fn settle(&self, entries: usize, bytes: usize) {
        let mut state = self.state();
        state.settled += entries as u64;
        state.bytes -= bytes;
        drop(state);
        self.settled.notify_all();
    }

    /// Waits before another attempt. `false` if there is no time for one.
    pub fn pause(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        let mut state = self.state();
        loop {
            let now = Instant::now();
            let end = state.closes_at.unwrap_or(until);
            if state.closes_at.is_some_and(|at| now >= at) {
                return false;
            }
            if now >= until {
                return true;
            }
            let waited = self.work.wait_timeout(state, until.min(end) - now);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Has everything written that was taken before. `false` if that took longer than there was time.
    pub fn flush(&self, within: Duration) -> bool {
        let mut state = self.state();
        let all = state.taken;
        state.wanted = all;
        self.work.notify_one();
        let is_open = |state: &mut State| state.settled < all && !state.has_ended;
        let waited = self.settled.wait_timeout_while(state, within, is_open);
        waited.unwrap_or_else(PoisonError::into_inner).0.settled >= all
    }

    /// Takes nothing more. What waits may be written for a while yet; `false` if it was not done by then.
    pub fn close(&self, within: Duration) -> bool {
        let mut state = self.state();
        state.closes_at = Some(Instant::now() + within);
        self.work.notify_one();
        let waited = self.settled.wait_timeout_while(state, within, |state| !state.has_ended);
        waited.unwrap_or_else(PoisonError::into_inner).0.has_ended
    }

    /// Nobody takes batches any more. How many entries were left.
    pub fn end(&self) -> u64 {
        let mut state = self.state();
        state.has_ended = true;
        let left = state.taken - state.settled;
        drop(state);
        self.settled.notify_all();
        left
    }

    /// Entries and bytes that are not settled.
    pub fn load(&self) -> (u64, usize) {
        let state = self.state();
        (state.taken - state.settled, state.bytes)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether what waits is to be written now.
    fn is_urgent(&self) -> bool {
        self.waiting.len() >= BATCH_MAX || self.closes_at.is_some() || self.settled < self.wanted
    }
}
