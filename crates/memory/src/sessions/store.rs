//! The sessions of a memory.

use std::time::Duration;

use super::{Session, SessionQuery, SessionSummary};
use crate::Memory;
use crate::database::{PATIENCE, Reading, reading_within};
use crate::error::Result;

/// Handle to the sessions, from [`Memory::sessions`].
#[derive(Clone, Copy, Debug)]
pub struct SessionStore<'a>(pub(crate) &'a Memory);

impl SessionStore<'_> {
    pub fn get(&self, tenant: &str, name: &str) -> Result<Option<Session>> {
        self.get_within(PATIENCE, tenant, name)
    }

    /// Fails if the database takes longer than `patience`.
    pub(crate) fn get_within(&self, patience: Duration, tenant: &str, name: &str) -> Result<Option<Session>> {
        let get = |reading: &mut dyn Reading| super::get(reading, &self.0.names, tenant, name);
        Ok(reading_within(&*self.0.database, patience, get)?.map(|(_, session)| session))
    }

    /// Returns sessions without their messages, the most recently used first.
    pub fn list(&self, query: &SessionQuery) -> Result<Vec<SessionSummary>> {
        self.0.read(|reading| super::list(reading, &self.0.names, query))
    }

    /// Stores a session, and replaces one of the same tenant and name.
    pub fn put(&self, session: &Session) -> Result<()> {
        self.0.write(|writing| super::replace(writing, &self.0.names, session)).map(drop)
    }

    /// Returns whether there was such a session.
    pub fn remove(&self, tenant: &str, name: &str) -> Result<bool> {
        self.0.write(|writing| super::remove(writing, &self.0.names, tenant, name))
    }
}
