//! Traces and annotations waiting to be stored: bounded in number and bytes, however slow the database.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::Queued;
use super::size::bytes_of;

const ENTRIES_MAX: u64 = 10_000;
/// Maximum size of all that is not settled, with the batch being stored.
pub(super) const BYTES_MAX: usize = 64 << 20;

const BATCH_MAX: usize = 100;
/// How long an entry waits for others to fill its batch.
const BATCH_AGE_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// Notified when there may be something to do.
    work: Condvar,
    /// Notified when entries are settled, or when nothing will be settled any more.
    settled: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<Waiting>,
    /// Size of what was accepted and is not settled.
    bytes: usize,
    /// Entries accepted since the start.
    taken: u64,
    settled: u64,
    /// Entries up to this one are written without waiting for more.
    wanted: u64,
    /// Deadline for writing what is waiting; `None` while the queue is open.
    closes_at: Option<Instant>,
    has_ended: bool,
}

#[derive(Debug)]
struct Waiting {
    queued: Queued,
    bytes: usize,
    since: Instant,
}

/// What is stored together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub queued: Vec<Queued>,
    pub bytes: usize,
}

/// Why something was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Full,
    Closed,
}

impl Queue {
    pub fn offer(&self, queued: Queued) -> Result<(), Refusal> {
        let bytes = bytes_of(&queued);
        let mut state = self.state();
        if state.closes_at.is_some() || state.has_ended {
            return Err(Refusal::Closed);
        }
        if state.taken - state.settled >= ENTRIES_MAX || state.bytes + bytes > BYTES_MAX {
            return Err(Refusal::Full);
        }
        state.bytes += bytes;
        state.taken += 1;
        state.waiting.push_back(Waiting { queued, bytes, since: Instant::now() });
        // The writer waits for the first trace to age, or for a full batch; it need not wake in between.
        let is_news = state.waiting.len() == 1 || state.waiting.len() == BATCH_MAX;
        drop(state);
        if is_news {
            self.work.notify_one();
        }
        Ok(())
    }

    /// Waits for a batch. It is empty if there is none by `until`; `None` when there will be no more.
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
        for Waiting { queued, bytes, .. } in state.waiting.drain(..count) {
            batch.queued.push(queued);
            batch.bytes += bytes;
        }
        Some(batch)
    }

    /// Reports that a batch is stored, or given up on.
    pub fn settle(&self, entries: usize, bytes: usize) {
        let mut state = self.state();
        state.settled += entries as u64;
        state.bytes -= bytes;
        drop(state);
        self.settled.notify_all();
    }

    /// Waits before another attempt. Returns `false` if the queue closes before it.
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

    /// Waits until everything accepted before is settled. Returns `false` if that takes longer than `within`.
    pub fn flush(&self, within: Duration) -> bool {
        let mut state = self.state();
        let all = state.taken;
        state.wanted = all;
        self.work.notify_one();
        let is_open = |state: &mut State| state.settled < all && !state.has_ended;
        let waited = self.settled.wait_timeout_while(state, within, is_open);
        waited.unwrap_or_else(PoisonError::into_inner).0.settled >= all
    }

    /// Closes the queue and waits until what is waiting is settled. Returns `false` if that takes longer than `within`.
    pub fn close(&self, within: Duration) -> bool {
        let mut state = self.state();
        state.closes_at = Some(Instant::now() + within);
        self.work.notify_one();
        let waited = self.settled.wait_timeout_while(state, within, |state| !state.has_ended);
        waited.unwrap_or_else(PoisonError::into_inner).0.has_ended
    }

    /// Reports that no more batches will be taken. Returns how many entries are left.
    pub fn end(&self) -> u64 {
        let mut state = self.state();
        state.has_ended = true;
        let left = state.taken - state.settled;
        drop(state);
        self.settled.notify_all();
        left
    }

    /// Returns the number and size of the entries that are not settled.
    pub fn load(&self) -> (u64, usize) {
        let state = self.state();
        (state.taken - state.settled, state.bytes)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Returns whether the waiting traces are to be written now.
    fn is_urgent(&self) -> bool {
        self.waiting.len() >= BATCH_MAX || self.closes_at.is_some() || self.settled < self.wanted
    }
}
