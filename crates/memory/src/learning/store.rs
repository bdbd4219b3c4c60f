//! The learning part of a memory.

use std::collections::BTreeSet;

use super::status::KeptFor;
use super::versions;
use super::{
    ChoiceChanges, ChoiceOutcome, Example, ExampleQuery, Forget, Forgotten, KnownRequest, LearnedScope, LearnedVersion,
    LearningChanges, LearningStatus, NewVersion, ScopeState, ServedRouter, ServedVersion,
};
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

    /// Returns the versions of a scope, the oldest first.
    pub fn versions(&self, scope: &LearnedScope) -> Result<Vec<LearnedVersion>> {
        self.0.read(|reading| versions::versions(reading, &self.0.names, scope))
    }

    /// Returns what a scope is served with.
    pub fn scope_state(&self, scope: &LearnedScope) -> Result<ScopeState> {
        self.0.read(|reading| versions::state(reading, &self.0.names, scope))
    }

    /// Returns the newest choices between models of a tenant with what came of them, the oldest of them first.
    pub fn choices(&self, tenant: &str, count: usize) -> Result<Vec<ChoiceOutcome>> {
        self.0.read(|reading| super::choices::newest(reading, &self.0.names, tenant, count))
    }

    /// Returns what happened since a mark that choices between models depend on; the first one is that of
    /// [`changes_mark`](Self::changes_mark).
    pub fn choice_changes(&self, since: i64) -> Result<ChoiceChanges> {
        self.0.read(|reading| super::choices::changes(reading, since))
    }

    /// Returns the networks that choose between models, by tenant.
    pub fn served_routers(&self) -> Result<Vec<ServedRouter>> {
        self.0.read(versions::served_routers)
    }

    /// Returns the adapters that all scopes are served with.
    pub fn served_versions(&self) -> Result<Vec<ServedVersion>> {
        self.0.read(versions::served)
    }

    /// Returns a number that changes with what some scope is served with.
    pub fn served_change(&self) -> Result<i64> {
        self.0.read(versions::change_count)
    }

    /// Returns the digests of all adapters that some version may be served with.
    pub fn version_adapters(&self) -> Result<BTreeSet<String>> {
        self.0.read(versions::adapters)
    }

    /// Stores a version that was learned from what was read at `read_ms`, and serves it if the gate `promotes` it.
    /// Returns its number. `written_by` is who did this, for the log; so it is for all that follow.
    pub fn add_version(
        &self,
        scope: &LearnedScope,
        new: &NewVersion,
        (promotes, read_ms): (bool, i64),
        written_by: &str,
    ) -> Result<i64> {
        self.0.write(|writing| versions::add(writing, &self.0.names, scope, (new, promotes, read_ms), written_by))
    }

    /// Serves a version. One that the gate refused is served only if it is `forced`.
    pub fn promote(&self, scope: &LearnedScope, version: i64, forced: bool, written_by: &str) -> Result<()> {
        self.0.write(|writing| versions::promote(writing, &self.0.names, scope, (version, forced), written_by))
    }

    /// Serves what was served before. Returns its number; 0 is the model alone.
    pub fn roll_back(&self, scope: &LearnedScope, written_by: &str) -> Result<i64> {
        self.0.write(|writing| versions::roll_back(writing, &self.0.names, scope, written_by))
    }

    /// Serves the model alone.
    pub fn reset(&self, scope: &LearnedScope, written_by: &str) -> Result<()> {
        self.0.write(|writing| versions::reset(writing, &self.0.names, scope, written_by))
    }
}
