//! The policies of a memory.

use std::sync::Arc;

use super::{Policies, Policy, PolicyQuery};
use crate::Memory;
use crate::error::Result;
use crate::memory::now_ms;

/// Handle to the policies, from [`Memory::policies`].
#[derive(Clone, Copy, Debug)]
pub struct PolicyStore<'a>(pub(crate) &'a Memory);

impl PolicyStore<'_> {
    /// Returns the policies in force for a tenant, with the built-in ones, as the store has them now.
    pub fn in_force(&self, tenant: &str) -> Result<Arc<Policies>> {
        self.refresh()?;
        Ok(self.known(tenant))
    }

    /// Returns the policies in force for a tenant as of the last refresh, without asking the store.
    pub fn known(&self, tenant: &str) -> Arc<Policies> {
        self.0.policy_cache.of_tenant(tenant)
    }

    /// Reads the stored policies again if another program has changed them.
    pub fn refresh(&self) -> Result<()> {
        let version = || self.0.read(super::version);
        self.0.policy_cache.refresh(version, || self.list(&PolicyQuery::default()))
    }

    /// Returns stored policies. Built-in ones are not among them.
    pub fn list(&self, query: &PolicyQuery) -> Result<Vec<Policy>> {
        let found = self.0.read(|reading| super::list(reading, &self.0.names, query))?;
        Ok(found.into_iter().map(|(_, policy)| policy).collect())
    }

    /// Stores a policy, and replaces one of the same tenant, type and name.
    pub fn put(&self, policy: &Policy, embedding: Option<&[f32]>) -> Result<()> {
        let code = self.0.quantize(embedding)?;
        self.0.write(|writing| super::put(writing, &self.0.names, policy, code.as_ref(), now_ms()))?;
        self.refresh()
    }

    /// Returns whether there was such a policy.
    pub fn remove(&self, tenant: &str, kind: &str, name: &str) -> Result<bool> {
        let removed = self.0.write(|writing| super::remove(writing, &self.0.names, tenant, kind, name))?;
        self.refresh()?;
        Ok(removed)
    }
}
