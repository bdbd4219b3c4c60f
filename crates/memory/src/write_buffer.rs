//! Turns that are not stored yet. A request that continues their session sees them already.

use std::collections::{HashMap, HashSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{MemoryError, Result};
use crate::sessions::{Session, Turn};

type Name = (String, String);

#[derive(Debug, Default)]
pub(crate) struct WriteBuffer {
    state: Mutex<State>,
    /// Notified when writing has ended.
    written: Condvar,
}

#[derive(Debug, Default)]
struct State {
    turns: HashMap<Name, Vec<Turn>>,
    /// Sessions whose turns are being written: it is unknown whether they are in the store.
    being_written: HashSet<Name>,
    /// Sessions being read, with the number of readers and how often writing has begun since the first of them.
    being_read: HashMap<Name, (usize, u64)>,
}

impl State {
    fn remove(&mut self, turn: &Turn) {
        let name = name(turn);
        if let Some(waiting) = self.turns.get_mut(&name) {
            if let Some(at) = waiting.iter().position(|other| other == turn) {
                waiting.remove(at);
            }
            if waiting.is_empty() {
                self.turns.remove(&name);
            }
        }
    }
}

impl WriteBuffer {
    pub fn add(&self, turn: Turn) {
        self.state().turns.entry(name(&turn)).or_default().push(turn);
    }

    /// Removes a turn that was not accepted after all.
    pub fn remove(&self, turn: &Turn) {
        self.state().remove(turn);
    }

    /// Removes turns that are in the store, or never will be.
    pub fn settle(&self, turns: &[Turn]) {
        let mut state = self.state();
        for turn in turns {
            state.remove(turn);
            state.being_written.remove(&name(turn));
        }
        drop(state);
        self.written.notify_all();
    }

    /// Marks turns as being written: from now on it is unknown whether they are in the store.
    pub fn begin_writing(&self, turns: &[Turn]) {
        let mut state = self.state();
        for turn in turns {
            let name = name(turn);
            if let Some((_, writes)) = state.being_read.get_mut(&name) {
                *writes += 1;
            }
            state.being_written.insert(name);
        }
    }

    /// Marks turns as not stored after a failed attempt.
    pub fn not_written(&self, turns: &[Turn]) {
        let mut state = self.state();
        for turn in turns {
            state.being_written.remove(&name(turn));
        }
        drop(state);
        self.written.notify_all();
    }

    /// Returns a session as `stored` reads it, with the turns that are not in the store yet. Blocks nobody while it reads; if
    /// turns of this session were written in the meantime, it reads again.
    pub fn session(
        &self,
        tenant: &str,
        session: &str,
        patience: Duration,
        stored: impl Fn() -> Result<Option<Session>>,
    ) -> Result<Option<Session>> {
        let deadline = Instant::now() + patience;
        let name = (tenant.to_owned(), session.to_owned());
        loop {
            let writes = self.begin_reading(&name, deadline)?;
            let found = stored();
            let state = self.end_reading(&name, writes);
            let mut found = found?;
            if let Some(state) = state {
                for turn in state.turns.get(&name).into_iter().flatten() {
                    found.get_or_insert_with(|| Session::begun_by(turn)).add(turn);
                }
                return Ok(found);
            }
        }
    }

    /// Waits until it is known which turns are in the store. Returns how often writing has begun.
    fn begin_reading(&self, name: &Name, deadline: Instant) -> Result<u64> {
        let left = deadline.saturating_duration_since(Instant::now());
        let waited = self.written.wait_timeout_while(self.state(), left, |state| state.being_written.contains(name));
        let (mut state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            return Err(MemoryError::Unavailable("turns of this session are being written".into()));
        }
        let (readers, writes) = state.being_read.entry(name.clone()).or_default();
        *readers += 1;
        Ok(*writes)
    }

    /// Returns `None` if writing has begun since `writes`.
    fn end_reading(&self, name: &Name, writes: u64) -> Option<MutexGuard<'_, State>> {
        let mut state = self.state();
        let (readers, writes_now) = state.being_read.get_mut(name)?;
        let is_same = *writes_now == writes;
        *readers -= 1;
        if *readers == 0 {
            state.being_read.remove(name);
        }
        is_same.then_some(state)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn name(turn: &Turn) -> Name {
    (turn.tenant.clone(), turn.session.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn() -> Turn {
        Turn { session: "talk".into(), ..Turn::default() }
    }

    fn read(buffer: &WriteBuffer, stored: impl Fn() -> Result<Option<Session>>) -> Result<Option<Session>> {
        buffer.session("", "talk", Duration::from_millis(50), stored)
    }

    #[test]
    fn a_slow_read_holds_up_nobody_and_sees_what_was_written_meanwhile() {
        let (buffer, turns) = (WriteBuffer::default(), [turn()]);
        buffer.add(turn());
        let reads = std::cell::Cell::new(0);
        let session = read(&buffer, || {
            reads.set(reads.get() + 1);
            if reads.get() > 1 {
                return Ok(Some(Session { turns: 1, ..Session::default() }));
            }
            // All of this would deadlock if the reader held a lock.
            buffer.add(Turn { session: "another".into(), ..Turn::default() });
            buffer.begin_writing(&turns);
            buffer.settle(&turns);
            Ok(None)
        });
        assert_eq!((session.unwrap().unwrap().turns, reads.get()), (1, 2));
    }

    #[test]
    fn nobody_waits_for_long_for_turns_that_are_being_written() {
        let (buffer, turns) = (WriteBuffer::default(), [turn()]);
        buffer.add(turn());
        buffer.begin_writing(&turns);
        // Removing one turn says nothing about the others.
        buffer.add(Turn { at_ms: 7, ..turn() });
        buffer.remove(&Turn { at_ms: 7, ..turn() });
        let error = read(&buffer, || panic!("not to be read yet")).unwrap_err();
        assert!(error.is_transient(), "{error}");
        buffer.not_written(&turns);
        assert_eq!(read(&buffer, || Ok(None)).unwrap().unwrap().turns, 1);
    }
}
