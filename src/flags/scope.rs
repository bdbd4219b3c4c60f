//! Whose learning is meant: a model, a tenant, and perhaps one end user.

use anyhow::Result;
use clap::Args;
use ruvllm_memory::{LearnedScope, check_user};

use crate::loading::store;

#[derive(Clone, Debug, Args)]
pub struct ScopeFlags {
    /// The tenant whose feedback is meant, and who is served with what is learned from it [default: local users]
    #[arg(long, value_name = "PATH")]
    pub tenant: Option<String>,
    /// Only this end user's, for this user alone [default: all users of the tenant together]
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
}

impl ScopeFlags {
    /// Returns the scope for a model by its name in requests.
    pub fn of(&self, model: &str) -> Result<LearnedScope> {
        if let Some(user) = &self.user {
            check_user(user)?;
        }
        let (tenant, user) = (self.tenant.clone().unwrap_or_default(), self.user.clone());
        Ok(LearnedScope { tenant, user, model: model.to_owned() })
    }

    /// Returns the scope for a model as it is named on the command line. What the store does not know is taken as it
    /// is: a model may be gone, and what was learned with it is still there.
    pub fn of_named(&self, model: &str) -> Result<LearnedScope> {
        let known = store()?.resolve(model);
        self.of(&known.map_or_else(|_| model.to_owned(), |file| file.base.unwrap_or(file.name)))
    }
}

/// Names a scope for people.
pub fn describe(scope: &LearnedScope) -> String {
    let tenant = if scope.tenant.is_empty() { "local users" } else { &scope.tenant };
    match &scope.user {
        Some(user) => format!("{} for {user} of {tenant}", scope.model),
        None => format!("{} for {tenant}", scope.model),
    }
}
