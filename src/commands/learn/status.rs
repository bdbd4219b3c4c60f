//! `ruvllm learn status`

use anyhow::Result;
use clap::Args;
use ruvllm_memory::{LearningStatus, TenantLearning};
use serde_json::json;

use crate::flags::memory::MemoryLocationFlags;
use crate::output::{self, times};

/// Show how much there is to learn from, by tenant
#[derive(Debug, Args)]
pub struct Status {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

impl Status {
    pub fn execute(self) -> Result<()> {
        let memory = self.memory.open()?;
        let status = memory.learning().status()?;
        if self.json {
            return output::json(&json!(status));
        }
        if status.tenants.is_empty() {
            output::remark("there is no feedback, and nothing is kept to learn from; see `ruvllm learn --help`");
        } else {
            output::table(&table(&status))?;
        }
        let kept = match status.retention {
            Some(kept) => format!("{} days, up to {}", kept.age_ms / 86_400_000, output::bytes(kept.bytes_max)),
            None => "as the server that keeps them is told (--learn-retention, --learn-size)".to_owned(),
        };
        output::remark(&format!("trajectories are kept for {kept}"));
        if status.forgotten_requests > 0 {
            output::remark(&format!("{} requests were forgotten", status.forgotten_requests));
        }
        Ok(())
    }
}

fn table(status: &LearningStatus) -> Vec<Vec<String>> {
    let heading =
        ["TENANT", "TRAJECTORIES", "USERS", "SIZE", "OLDEST", "CORRECTED", "UP", "DOWN", "FEEDBACK", "REGENERATED"];
    let row = |one: &TenantLearning| {
        let (rated, all) = (one.rated, one.feedback);
        let feedback = all.corrected + all.up + all.down + all.neutral;
        vec![
            if one.tenant.is_empty() { "(local)".to_owned() } else { output::printable(&one.tenant) },
            one.trajectories.to_string(),
            one.users.to_string(),
            output::bytes(one.bytes),
            one.first_ms.map_or_else(String::new, times::ago),
            rated.corrected.to_string(),
            rated.up.to_string(),
            rated.down.to_string(),
            feedback.to_string(),
            one.regenerations.to_string(),
        ]
    };
    std::iter::once(heading.map(str::to_owned).to_vec()).chain(status.tenants.iter().map(row)).collect()
}
