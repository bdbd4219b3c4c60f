//! The learning part of a memory.

use super::status::KeptFor;
use super::{Example, ExampleQuery, Forget, Forgotten, KnownRequest, LearningChanges, LearningStatus};
use crate::Memory;
use crate::database::PATIENCE;
use crate::error::{MemoryError, Result};
use crate::witness::{Annotation, Forgetting};

/// Handle to what is kept to learn from, from [`Memory::learning`].
#[derive(Clone, Copy, Debug)]
pub struct LearningStore<'a>(pub(crate) &'a Memory);

impl LearningStore<'_> {
    /// Returns the newest request with an id that its client was told. `tenant` is `None` for all tenants. A recorder also
    /// knows those that are not written yet.
    pub fn find_request(&self, tenant: Option<&str>, id: &str) -> Result<Option<KnownRequest>> {
        self.0.read(|reading| super::known::find(reading, tenant, id))
    }

    /// Writes an annotation at once.
    pub fn annotate(&self, annotation: &Annotation) -> Result<()> {
        self.0.annotate(annotation)
    }

    pub fn status(&self) -> Result<LearningStatus> {
        self.0.read(super::status::status)
    }

    /// Notes how long this process keeps trajectories, for [`LearningStatus`].
    pub fn note_retention(&self) -> Result<()> {
        let retention = KeptFor::of(self.0.retention());
        self.0.write(|writing| retention.put(writing))
    }

    /// Passes each trajectory that has explicit feedback to `each`, the oldest first.
    pub fn examples(&self, query: &ExampleQuery, each: &mut dyn FnMut(Example) -> Result<()>) -> Result<()> {
        self.0.database.read(PATIENCE, &mut |reading| super::examples::each(reading, &self.0.names, query, each))
    }

    /// Returns the newest trajectories with explicit feedback of a user, or of requests that name no user: the oldest
    /// of them first.
    pub fn newest_examples(&self, tenant: &str, user: Option<&str>, count: usize) -> Result<Vec<Example>> {
        self.0.read(|reading| super::examples::newest(reading, &self.0.names, (tenant, user), count))
    }

    /// Returns where to look for changes from.
    pub fn changes_mark(&self) -> Result<i64> {
        self.0.read(super::changes::mark)
    }

    /// Returns what was said since a mark, by any process.
    pub fn changes(&self, since: i64) -> Result<LearningChanges> {
        self.0.read(|reading| super::changes::changes(reading, since))
    }

    /// Forgets what is stored of a request, a user or a tenant. `written_by` is the id of who asks for it, for the log.
    pub fn forget(&self, what: &Forget, written_by: &str) -> Result<Forgotten> {
        what.check()?;
        let forgotten = super::forget::forget(self.0, what, written_by)?;
        if forgotten == Forgotten::default() {
            return Err(MemoryError::NotFound { kind: what.scope(), name: what.name().to_owned(), is_tenants: false });
        }
        // Frees the pages on disk that held it.
        self.0.database.tidy()?;
        Ok(forgotten)
    }

    /// Returns what was forgotten since a time, as the log says: whoever learned from these requests has to undo it.
    pub fn forgotten(&self, since_ms: i64) -> Result<Vec<(i64, Forgetting)>> {
        self.0.read(|reading| super::forget::forgotten(reading, since_ms))
    }
}
