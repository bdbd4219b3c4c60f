//! `ruvllm witness show`

use anyhow::{Result, bail};
use clap::Args;
use ruvllm_memory::{Annotation, Memory, ModelChoice, Routing, Said, WitnessEntry};
use serde::Serialize;
use serde_json::json;

use crate::flags::memory::MemoryLocationFlags;
use crate::output::{self, times};

/// Show everything about a request
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ruvllm witness show req-00c0ffee00c0ffee")]
pub struct Show {
    /// Id of the request, as the server returned it in x-request-id, or of its response, or number of the entry
    request: String,
    /// Also show similar requests, and what is similar to those, up to N steps away
    #[arg(long, value_name = "N", default_value_t = 1)]
    steps: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

/// Maximum number of similar requests that are shown.
const SHOWN_MAX: usize = 20;

/// A request that is similar, directly or over others.
#[derive(Debug, Serialize)]
struct Similar {
    request: String,
    similarity: f64,
    steps: usize,
}

impl Show {
    pub fn execute(self) -> Result<()> {
        let memory = self.memory.open()?;
        let Some((id, entry)) = self.find(&memory)? else {
            bail!("there is no request {:?} in the witness log; `ruvllm witness search` lists them", self.request);
        };
        let mut similar = Vec::new();
        for (steps, edge) in memory.witness().reachable(id, self.steps, 0.0, SHOWN_MAX)? {
            if let Some(other) = memory.witness().get(edge.target)? {
                similar.push(Similar { request: other.request, similarity: edge.weight, steps });
            }
        }
        let feedback = memory.witness().feedback(&entry)?;
        if self.json {
            return output::json(&json!({ "id": id, "entry": entry, "feedback": feedback, "similar": similar }));
        }
        print(&entry, &feedback, &similar)
    }

    fn find(&self, memory: &Memory) -> Result<Option<(i64, WitnessEntry)>> {
        let by_name = memory.witness().by_request(&self.request)?.into_iter().next();
        Ok(match (by_name, self.request.parse::<i64>()) {
            (Some(found), _) => Some(found),
            (None, Ok(number)) => memory.witness().get(number)?.map(|entry| (number, entry)),
            (None, Err(_)) => None,
        })
    }
}

fn print(entry: &WitnessEntry, feedback: &[Annotation], similar: &[Similar]) -> Result<()> {
    let (latency, routing) = (entry.latency, &entry.routing);
    let mut rows: Vec<(&str, String)> = vec![
        ("request", entry.request.clone()),
        ("time", format!("{} UTC", times::moment(entry.at_ms))),
        ("response", entry.response.clone().unwrap_or_default()),
        ("tenant", entry.tenant.clone()),
        ("user", entry.user.clone().unwrap_or_default()),
        ("session", entry.session.clone().unwrap_or_default()),
        ("model", entry.model.clone()),
        ("chosen", routing.choice.as_ref().map(|choice| chosen(choice, routing)).unwrap_or_default()),
        ("backend", entry.backend.clone()),
        ("policy", routing.policy.clone().unwrap_or_default()),
        ("sampling", format!("temperature {}, top-p {}", routing.temperature, routing.top_p)),
        (
            "tokens",
            format!(
                "{} prompt ({} cached), {} answer",
                entry.tokens.prompt, entry.cache.cached_tokens, entry.tokens.answer
            ),
        ),
        (
            "latency",
            format!(
                "{:.1} ms: queue {:.2}, retrieval {:.3}, routing {:.3}, prefill {:.1}, decode {:.1}",
                latency.total_ms,
                latency.queue_ms,
                latency.retrieval_ms,
                latency.routing_ms,
                latency.prefill_ms,
                latency.decode_ms
            ),
        ),
        ("finish", entry.finish.clone().unwrap_or_default()),
    ];
    if let Some(quality) = &entry.quality {
        let sources: Vec<String> = quality.sources.iter().map(|(name, score)| format!("{name} {score:.2}")).collect();
        rows.push(("quality", format!("{:.2} ({})", quality.score, sources.join(", "))));
    }
    rows.push(("regenerates", entry.regenerates.clone().unwrap_or_default()));
    rows.extend(feedback.iter().map(|annotation| ("feedback", summary(annotation))));
    if let Some(error) = &entry.error {
        rows.push(("error", format!("{}: {}", error.kind, error.message)));
    }
    for Similar { request, similarity, steps } in similar {
        let away = if *steps > 1 { format!(", {steps} steps away") } else { String::new() };
        rows.push(("similar", format!("{request} ({similarity:.2}{away})")));
    }
    if let Some(texts) = &entry.texts {
        rows.push(("asked", texts.prompt.clone()));
        rows.push(("answered", texts.answer.clone()));
    }
    let rows = rows.into_iter().filter(|(_, value)| !value.is_empty());
    let rows: Vec<Vec<String>> = rows.map(|(name, value)| vec![name.to_owned(), output::printable(&value)]).collect();
    output::table(&rows)
}

/// Says what chose the model, and how likely each was.
fn chosen(choice: &ModelChoice, routing: &Routing) -> String {
    let candidates = routing.probabilities.iter().map(|(model, share)| format!("{model} {share:.3}"));
    format!("by {}: {}", choice.by, candidates.collect::<Vec<_>>().join(", "))
}

/// Returns what an annotation says, in one line.
fn summary(annotation: &Annotation) -> String {
    let Said::Feedback(feedback) = &annotation.said else { return String::new() };
    let parts = [
        feedback.score.map(|score| format!("score {score}")),
        feedback.correction.as_ref().map(|text| format!("should be: {text}")),
        feedback.reason.as_ref().map(|text| format!("because: {text}")),
        (!feedback.withheld.is_empty()).then(|| format!("not kept: {}", feedback.withheld.join(", "))),
        annotation.user.as_ref().map(|user| format!("by {user}")),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}
