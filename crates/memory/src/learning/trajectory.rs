//! A request and its answer, as a trainer needs them.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::database::{Writing, first_row};
use crate::error::{MemoryError, Result};
use crate::witness::{FEEDBACK, Feedback, Quality};

/// Maximum size of a trajectory as it is stored. What is longer is of no use to a trainer.
pub const TRAJECTORY_BYTES_MAX: usize = 4 << 20;

/// What was asked and answered, in texts and in tokens.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trajectory {
    /// As in the witness log.
    pub request: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<String>,
    pub at_ms: i64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    pub model: String,
    /// Fingerprint of the model's file: token ids mean nothing without it.
    pub model_digest: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
    /// Parameters of the sampler.
    pub sampling: Json,
    pub prompt: TrajectoryPrompt,
    /// A message of the assistant.
    pub answer: Json,
    /// The prompt as the model read it, and the answer as it was sampled, with the token that ended it.
    pub prompt_tokens: Vec<u32>,
    pub answer_tokens: Vec<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finish: Option<String>,
    /// What was measured of the answer; nobody's opinion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<Quality>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrajectoryPrompt {
    /// A conversation, as chat messages.
    Messages(Vec<Json>),
    /// A text to continue.
    Text(String),
}

impl Default for TrajectoryPrompt {
    fn default() -> Self {
        Self::Messages(Vec::new())
    }
}

/// Stores the trajectory of an entry.
pub(crate) fn put(database: &mut dyn Writing, (id, tenant): (i64, u32), trajectory: &Trajectory) -> Result<()> {
    let body = serde_json::to_string(trajectory);
    let body = body.map_err(|error| MemoryError::invalid("trajectory", error.to_string()))?;
    if body.len() > TRAJECTORY_BYTES_MAX {
        let problem = format!("it takes {} bytes; up to {TRAJECTORY_BYTES_MAX} are kept", body.len());
        return Err(MemoryError::invalid("trajectory", problem));
    }
    let sql = "INSERT INTO trajectories (id, tenant, request, response, end_user, at_ms, bytes, body) \
               VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    let values = [
        id.into(),
        i64::from(tenant).into(),
        trajectory.request.as_str().into(),
        trajectory.response.as_deref().into(),
        trajectory.user.as_deref().into(),
        trajectory.at_ms.into(),
        (body.len() as i64).into(),
        body.into(),
    ];
    database.execute(sql, &values).map(drop)
}

/// Makes feedback the one that counts for the newest trajectory of a request, if there is one.
pub(crate) fn rate(database: &mut dyn Writing, of: (i64, &str), feedback: &Feedback) -> Result<()> {
    let text = serde_json::to_string(feedback);
    set_feedback(database, of, Some(text.map_err(|error| MemoryError::invalid("feedback", error.to_string()))?))
}

/// Makes the last feedback that is left in the log the one that counts: another was forgotten.
pub(super) fn rate_again(database: &mut dyn Writing, of: (i64, &str)) -> Result<()> {
    let sql = "SELECT b.body FROM witness w JOIN witness_bodies b ON b.id = w.id \
               WHERE w.tenant = $1 AND w.about = $2 AND w.kind = $3 ORDER BY w.id DESC LIMIT 1";
    let left = first_row(database, sql, &[of.0.into(), of.1.into(), FEEDBACK.into()])?;
    let left = left.map(|row| {
        let feedback = serde_json::from_str::<Feedback>(row[0].as_text()?);
        feedback.map_err(|error| MemoryError::damaged(format!("feedback cannot be read: {error}")))
    });
    match left.transpose()? {
        Some(feedback) => rate(database, of, &feedback),
        None => set_feedback(database, of, None),
    }
}

fn set_feedback(database: &mut dyn Writing, (tenant, request): (i64, &str), text: Option<String>) -> Result<()> {
    let sql = "UPDATE trajectories SET bytes = bytes - coalesce(octet_length(feedback), 0) + $1, feedback = $2 \
               WHERE id = (SELECT max(id) FROM trajectories WHERE request = $3 AND tenant = $4)";
    let bytes = text.as_ref().map_or(0, String::len) as i64;
    database.execute(sql, &[bytes.into(), text.into(), request.into(), tenant.into()]).map(drop)
}
