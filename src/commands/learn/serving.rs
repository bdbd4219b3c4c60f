//! `ruvllm learn promote`, `rollback` and `reset`: which version a scope is served with.

use anyhow::{Result, bail};
use clap::Args;
use ruvllm_memory::{LearnedScope, Memory, ROUTER_MODEL, ScopeState, VersionState, now_ms};
use serde_json::json;

use crate::flags::memory::MemoryLocationFlags;
use crate::flags::scope::{ScopeFlags, describe};
use crate::output;

/// Serve a version that was learned
#[derive(Debug, Args)]
pub struct Promote {
    #[command(flatten)]
    which: Which,
    /// Its number, as in `ruvllm learn history`
    version: i64,
    /// Also one that the gate has refused; the witness log says that it was forced
    #[arg(long)]
    force: bool,
}

/// Serve what was served before, at once and bit for bit
#[derive(Debug, Args)]
pub struct Rollback {
    #[command(flatten)]
    which: Which,
}

/// Serve the model alone; versions stay, and so does the way back
#[derive(Debug, Args)]
pub struct Reset {
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, Args)]
struct Which {
    /// The model
    model: String,
    #[command(flatten)]
    scope: ScopeFlags,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

impl Promote {
    pub fn execute(self) -> Result<()> {
        let (version, force, files) = (self.version, self.force, self.which.memory.learned_files()?);
        self.which.change(|memory, scope, by| {
            let versions = memory.learning().versions(scope)?;
            if let Some(found) = versions.iter().find(|one| one.version == version)
                && found.state != VersionState::Withdrawn
                && found.body.router.is_none()
                && files.find(&found.body.adapter).is_none()
            {
                bail!("the adapter of version {version} is not on this machine: copy it here, or learn again");
            }
            Ok(memory.learning().promote(scope, version, force, by)?)
        })
    }
}

impl Rollback {
    pub fn execute(self) -> Result<()> {
        self.which.change(|memory, scope, by| Ok(memory.learning().roll_back(scope, by).map(drop)?))
    }
}

impl Reset {
    pub fn execute(self) -> Result<()> {
        self.which.change(|memory, scope, by| Ok(memory.learning().reset(scope, by)?))
    }
}

impl Which {
    /// Changes what the scope is served with, and says what that is now.
    fn change(&self, change: impl FnOnce(&Memory, &LearnedScope, &str) -> Result<()>) -> Result<()> {
        let memory = self.memory.open()?;
        let scope = self.scope.of_named(&self.model)?;
        change(&memory, &scope, &format!("learn@{}", now_ms()))?;
        let state = memory.learning().scope_state(&scope)?;
        if self.json {
            return output::json(&json!({ "scope": scope, "served": state }));
        }
        output::line(&format!("{}: {} from now on", describe(&scope), served(&scope, &state)))
    }
}

/// Says what a scope is answered with.
pub fn served(scope: &LearnedScope, state: &ScopeState) -> String {
    match (state.version, scope.model == ROUTER_MODEL) {
        (0, false) => "the model alone is served".to_owned(),
        (0, true) => "the bandit chooses between models".to_owned(),
        (version, false) => format!("version {version} is served"),
        (version, true) => format!("version {version} chooses between models"),
    }
}
