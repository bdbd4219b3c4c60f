//! `ruvllm learn forget`

use anyhow::Result;
use clap::Args;
use ruvllm_memory::{Forget, Forgotten, now_ms};
use serde_json::json;

use crate::flags::memory::MemoryLocationFlags;
use crate::output;

/// Forget a request, a user or a tenant
///
/// Removes texts, token ids and embeddings in all tables, the sessions that hold them, and all feedback on them. In
/// the witness log the digests of the entries stay, so that it still verifies, and a new entry names what was
/// forgotten. Versions that were learned from some of it are taken out of service and removed. What a running server
/// has answered in the last second may not be written yet: forget it over HTTP, or again. Backups and exports are
/// files of their own.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ruvllm learn forget --request chatcmpl-0123456789abcdef\n  \
                        ruvllm learn forget --user ada --tenant acme\n  ruvllm learn forget --tenant acme")]
pub struct ForgetCommand {
    /// Id of the request or of its response
    #[arg(long, value_name = "ID", required_unless_present_any = ["user", "tenant"])]
    request: Option<String>,
    /// Everything of this end user
    #[arg(long, value_name = "NAME", conflicts_with = "request")]
    user: Option<String>,
    /// Everything of this tenant; with --request or --user, only of this tenant [default: of all]
    #[arg(long, value_name = "PATH")]
    tenant: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

impl ForgetCommand {
    pub fn execute(self) -> Result<()> {
        let what = match (self.request, self.user, self.tenant) {
            (Some(id), _, tenant) => Forget::Request { tenant, id },
            (None, Some(name), tenant) => Forget::User { tenant, name },
            (None, None, tenant) => Forget::Tenant(tenant.unwrap_or_default()),
        };
        let memory = self.memory.open()?;
        let forgotten = memory.learning().forget(&what, &format!("forget@{}", now_ms()))?;
        if forgotten.versions > 0 {
            // Their weights could give away what they were learned from.
            self.memory.learned_files()?.sweep(&memory.learning().version_adapters()?, false)?;
        }
        if self.json {
            return output::json(&json!(forgotten));
        }
        let Forgotten { requests, feedback, trajectories, sessions, embeddings, versions } = forgotten;
        output::line(&format!(
            "forgotten: {requests} requests, {feedback} entries of feedback, {trajectories} trajectories, \
             {sessions} sessions, {embeddings} embeddings"
        ))?;
        if versions > 0 {
            output::line(&format!("versions learned from some of it, not served any more and removed: {versions}"))?;
        }
        Ok(())
    }
}
