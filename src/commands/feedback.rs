//! `ruvllm feedback`: what you think of an answer.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use ruvllm_memory::{Annotation, Feedback, KnownRequest, Memory, Said, check_user, now_ms};
use serde_json::json;

use crate::flags::memory::MemoryLocationFlags;
use crate::output;

/// A server writes its entries within a second.
const PATIENCE: Duration = Duration::from_secs(2);

/// Say what you think of an answer
///
/// The feedback becomes an entry of the witness log that points to the request; of several, the last counts. Its texts
/// are kept only where those of the request are (see `ruvllm learn --help`).
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ruvllm feedback chatcmpl-0123456789abcdef --score up\n  \
                        ruvllm feedback req-00c0ffee00c0ffee --score -0.5 --correction \"It is 42.\"")]
pub struct GiveFeedback {
    /// Id of the request (x-request-id) or of its response
    id: String,
    /// From -1 (wrong) to 1 (right); up and down stand for these
    #[arg(long, value_name = "SCORE", allow_hyphen_values = true, value_parser = parse_score)]
    score: Option<f64>,
    /// The answer that would have been right
    #[arg(long, value_name = "TEXT")]
    correction: Option<String>,
    /// Why
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// End user who says so
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Tenant of the request [default: any]
    #[arg(long, value_name = "PATH")]
    tenant: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

fn parse_score(text: &str) -> Result<f64, String> {
    let score = match text {
        "up" => Some(1.0),
        "down" => Some(-1.0),
        text => text.parse().ok(),
    };
    score.filter(|score| (-1.0..=1.0).contains(score)).ok_or_else(|| "must be up, down, or from -1 to 1".to_owned())
}

impl GiveFeedback {
    pub fn execute(self) -> Result<()> {
        let feedback =
            Feedback { score: self.score, correction: self.correction, reason: self.reason, withheld: Vec::new() };
        feedback.check()?;
        if let Some(user) = &self.user {
            check_user(user)?;
        }
        let memory = self.memory.open()?;
        let Some(known) = find(&memory, self.tenant.as_deref(), &self.id)? else {
            bail!("there is no request {:?} in the witness log; `ruvllm witness search` lists them", self.id);
        };
        let feedback = if known.keeps_text { feedback } else { feedback.without_texts() };
        let withheld = feedback.withheld.clone();
        let request = format!("feedback@{}", now_ms());
        memory.learning().annotate(&Annotation {
            request: request.clone(),
            at_ms: now_ms(),
            tenant: known.tenant,
            about: Some(known.request.clone()),
            user: self.user,
            model: known.model,
            said: Said::Feedback(feedback),
        })?;
        if self.json {
            let about = known.request;
            return output::json(
                &json!({ "id": request, "request_id": about, "stored": "durable", "withheld": withheld }),
            );
        }
        output::line(&format!("noted for {}", output::printable(&known.request)))?;
        if !withheld.is_empty() {
            let names = withheld.join(" and ");
            output::remark(&format!(
                "{names}: not kept, since the texts of this request are not; see `ruvllm learn --help`"
            ));
        }
        Ok(())
    }
}

/// Finds a request, also one that a server has answered just now.
fn find(memory: &Memory, tenant: Option<&str>, id: &str) -> Result<Option<KnownRequest>> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = memory.learning().find_request(tenant, id)?;
        if found.is_some() || Instant::now() >= deadline {
            return Ok(found);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[cfg(test)]
mod tests {
    use super::parse_score;

    #[test]
    fn scores_are_words_or_numbers() {
        for (text, score) in [("up", 1.0), ("down", -1.0), ("-0.5", -0.5), ("0", 0.0)] {
            assert_eq!(parse_score(text), Ok(score));
        }
        for wrong in ["", "7", "-1.1", "NaN", "inf", "good"] {
            assert!(parse_score(wrong).is_err(), "{wrong}");
        }
    }
}
