//! `ruvllm learn router`

use std::collections::BTreeSet;

use anyhow::Result;
use clap::Args;
use ruvllm_learning::routing::{CHOICES_MAX, LoggedChoice, Network, RewardRule, RouterReport, RouterVerdict, train};
use ruvllm_memory::{LearnedScope, Memory, NewVersion, ROUTER_MODEL, now_ms};
use ruvllm_runtime::{RoutedOutcome, routed_outcomes};
use serde_json::json;

use super::evaluate::{print, told};
use crate::flags::memory::MemoryLocationFlags;
use crate::flags::reward::RewardFlags;
use crate::flags::scope::describe;
use crate::output;

/// Train a network that chooses between models, and let it choose if it has beaten the bandit
///
/// Requests with the model "auto" are answered by the model that a linear bandit expects most of, from what became of the same
/// tenant's earlier requests. This trains a FastGRNN network on the same log, on choices whose probabilities are known. On a quarter
/// of the requests, held out by their contents, it must be better than the bandit by a doubly robust estimate with a 95 % interval
/// that excludes no gain; otherwise the bandit chooses as before. Either way it is kept as a version of the model "auto": see
/// `ruvllm learn history auto`, `promote`, `rollback` and `reset`. A running server follows within seconds.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ruvllm serve smollm2 gemma3:270m --learn --explore 0.05\n  ruvllm learn router\n  \
                        ruvllm learn router --tenant acme --json\n  ruvllm learn rollback auto --tenant acme"
)]
pub struct Router {
    /// Whose choices are learned from, and who is answered by what is learned [default: local users]
    #[arg(long, value_name = "PATH")]
    tenant: Option<String>,
    #[command(flatten)]
    reward: RewardFlags,
    /// Everything random follows from it
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

impl Router {
    pub fn execute(self) -> Result<()> {
        let read_ms = now_ms();
        let memory = self.memory.open()?;
        let tenant = self.tenant.clone().unwrap_or_default();
        let scope = LearnedScope { tenant, user: None, model: ROUTER_MODEL.to_owned() };
        let rule = self.reward.rule()?;
        let outcomes = routed_outcomes(&memory, &scope.tenant, rule, CHOICES_MAX)?;
        let choices: Vec<LoggedChoice> = outcomes.iter().map(|outcome| outcome.logged.clone()).collect();
        let (network, report) = train(&choices, self.seed)?;
        let version = keep(&memory, &scope, (&network, &report, rule), &outcomes, read_ms)?;
        if self.json {
            return output::json(&json!({ "scope": scope, "version": version, "rule": rule, "report": report }));
        }
        print(&report.evaluation)?;
        if let Some(gain) = report.evaluation.network_against_bandit {
            output::line(&format!("against the bandit: {}", told(gain)))?;
        }
        match report.verdict {
            RouterVerdict::Promoted => output::line(&format!("version {version} of {} is promoted", describe(&scope))),
            RouterVerdict::Refused => {
                output::line(&format!(
                    "version {version} of {} is refused, and the bandit chooses:",
                    describe(&scope)
                ))?;
                report.reasons.iter().try_for_each(|reason| output::line(&format!("  {reason}")))
            }
        }
    }
}

/// Keeps a network with its figures, and lets it choose if it was promoted. Returns its number.
fn keep(
    memory: &Memory,
    scope: &LearnedScope,
    (network, report, rule): (&Network, &RouterReport, RewardRule),
    outcomes: &[RoutedOutcome],
    read_ms: i64,
) -> Result<i64> {
    let learning = memory.learning();
    let contents = serde_json::to_value(network)?;
    let text = contents.to_string();
    let users: BTreeSet<&String> = outcomes.iter().filter_map(|outcome| outcome.user.as_ref()).collect();
    let items = json!({
        "training": report.training, "validation": report.validation, "held_out": report.evaluation.choices,
    });
    let new = NewVersion {
        adapter: blake3::hash(text.as_bytes()).to_hex().to_string(),
        bytes: text.len() as u64,
        router: Some(contents),
        parent: learning.scope_state(scope)?.version,
        requests: outcomes.iter().map(|outcome| outcome.request.clone()).collect(),
        users: users.into_iter().cloned().collect(),
        report: json!({ "router": report, "items": items, "rule": rule }),
        ..NewVersion::default()
    };
    let promotes = report.verdict == RouterVerdict::Promoted;
    Ok(learning.add_version(scope, &new, (promotes, read_ms), &format!("learn@{read_ms}"))?)
}
