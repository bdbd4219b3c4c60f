//! Turns of sessions on their way into the store: whoever goes on with a session sees them already.

use std::collections::{HashMap, HashSet};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::Result;
use crate::sessions::{Session, Turn};

type Name = (String, String);

#[derive(Debug, Default)]
pub(crate) struct Pending {
    state: Mutex<State>,
    /// Told when writing has ended.
    written: Condvar,
}

#[derive(Debug, Default)]
struct State {
    turns: HashMap<Name, Vec<Turn>>,
    /// Sessions of which nobody can tell now whether their turns are in the store already.
    being_written: HashSet<Name>,
}

impl Pending {
    pub fn add(&self, turn: Turn) {
        self.state().turns.entry(name(&turn)).or_default().push(turn);
    }

    /// They are in the store, or were not taken after all.
    pub fn remove<'a>(&self, turns: impl IntoIterator<Item = &'a Turn>) {
        let mut state = self.state();
        for turn in turns {
            let name = name(turn);
            if let Some(waiting) = state.turns.get_mut(&name) {
                if let Some(at) = waiting.iter().position(|other| other == turn) {
                    waiting.remove(at);
                }
                if waiting.is_empty() {
                    state.turns.remove(&name);
                }
            }
        }
    }

    /// Has turns written, and forgets them then, whatever becomes of them.
    pub fn while_writing<T>(&self, turns: &[Turn], write: impl FnOnce() -> T) -> T {
        self.state().being_written.extend(turns.iter().map(name));
        let result = write();
        self.remove(turns);
        let mut state = self.state();
        for turn in turns {
            state.being_written.remove(&name(turn));
        }
        drop(state);
        self.written.notify_all();
        result
    }

    /// A session of the store, which `stored` reads, with the turns that are not in it yet.
    pub fn session(
        &self,
        tenant: &str,
        session: &str,
        stored: impl FnOnce() -> Result<Option<Session>>,
    ) -> Result<Option<Session>> {
        let name = (tenant.to_owned(), session.to_owned());
        let state = self.state();
        let state = self.written.wait_while(state, |state| state.being_written.contains(&name));
        // Read under the lock, so that nothing can be written in between.
        let state = state.unwrap_or_else(PoisonError::into_inner);
        let mut found = stored()?;
        for turn in state.turns.get(&name).into_iter().flatten() {
            found.get_or_insert_with(|| Session::begun_by(turn)).add(turn);
        }
        Ok(found)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn name(turn: &Turn) -> Name {
    (turn.tenant.clone(), turn.session.clone())
}
