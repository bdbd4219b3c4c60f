//! `ruvllm learn evaluate`

use anyhow::Result;
use clap::Args;
use ruvllm_learning::routing::{CHOICES_MAX, Estimate, Evaluation, LoggedChoice, Network, PolicyEstimates, evaluate};
use ruvllm_memory::Memory;
use ruvllm_runtime::routed_outcomes;
use serde_json::json;

use crate::flags::memory::MemoryLocationFlags;
use crate::flags::reward::RewardFlags;
use crate::output;

/// Estimate what other choices between models would have given
///
/// Reads the choices that requests with the model "auto" were answered by, and estimates the mean reward of what was served, of
/// each model alone, of the bandit, and of the network that chooses now, if there is one: doubly robust, by inverse propensities,
/// and by a regression alone, each with a 95 % interval. A reward is what people said of an answer, -1 to 1, or else what its
/// measurements suggest, less the price of the time that it took.
///
/// Only choices that were left to chance say what another would have given: without `ruvllm serve --explore` nothing is estimated.
/// They are judged on a quarter of all requests, by their contents, from which neither bandit nor network have learned.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ruvllm serve smollm2 gemma3:270m --learn --explore 0.05\n  ruvllm learn evaluate\n  \
                        ruvllm learn evaluate --tenant acme --second-price 0.1 --json"
)]
pub struct Evaluate {
    /// Whose choices are meant [default: those of local users]
    #[arg(long, value_name = "PATH")]
    tenant: Option<String>,
    #[command(flatten)]
    reward: RewardFlags,
    /// What intervals are drawn with follows from it
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

impl Evaluate {
    pub fn execute(self) -> Result<()> {
        let memory = self.memory.open()?;
        let tenant = self.tenant.clone().unwrap_or_default();
        let rule = self.reward.rule()?;
        let outcomes = routed_outcomes(&memory, &tenant, rule, CHOICES_MAX)?;
        let choices: Vec<LoggedChoice> = outcomes.into_iter().map(|outcome| outcome.logged).collect();
        let network = served_network(&memory, &tenant)?;
        let evaluation = evaluate(&choices, network.as_ref(), self.seed)?;
        if self.json {
            let named = choices.iter().filter(|choice| choice.is_named).count();
            return output::json(&json!({
                "tenant": tenant, "rule": rule, "choices": choices.len(), "named": named, "evaluation": evaluation,
            }));
        }
        print(&evaluation)
    }
}

/// Returns the network that chooses for a tenant now.
fn served_network(memory: &Memory, tenant: &str) -> Result<Option<Network>> {
    let served = memory.learning().served_routers()?.into_iter().find(|served| served.tenant == tenant);
    let Some(served) = served else { return Ok(None) };
    let network: Network = serde_json::from_value(served.router)?;
    network.check()?;
    Ok(Some(network))
}

/// Prints the estimates of all ways to choose.
pub fn print(evaluation: &Evaluation) -> Result<()> {
    let heading = ["POLICY", "DOUBLY ROBUST", "BY PROPENSITY", "BY REGRESSION", "WORTH CHOICES"];
    let row = |one: &PolicyEstimates| {
        vec![
            output::printable(&one.policy),
            told(one.doubly_robust),
            told(one.inverse_propensity),
            told(one.direct),
            format!("{:.0}", one.effective_choices),
        ]
    };
    let rows = std::iter::once(heading.map(str::to_owned).to_vec()).chain(evaluation.policies.iter().map(row));
    output::table(&rows.collect::<Vec<_>>())?;
    output::remark(&format!(
        "mean rewards of {} choices that were left to chance, of {} different requests; 95 % intervals",
        evaluation.choices, evaluation.documents
    ));
    Ok(())
}

/// Returns an estimate and what it lies between, for people.
pub fn told(estimate: Estimate) -> String {
    format!("{:+.3} ({:+.3} to {:+.3})", estimate.value, estimate.low, estimate.high)
}
