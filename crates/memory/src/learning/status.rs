//! How much there is to learn from, by tenant.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::database::{Reading, Writing};
use crate::error::{MemoryError, Result};
use crate::names::Names;
use crate::schema::{meta, set_meta};
use crate::witness::{FEEDBACK, Feedback, Retention};

/// Feedback by what it says. Each is counted once, as the first of these that it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FeedbackCounts {
    pub corrected: u64,
    pub up: u64,
    pub down: u64,
    /// A reason alone, or a score of 0.
    pub neutral: u64,
}

impl FeedbackCounts {
    fn add(&mut self, feedback: &Feedback) {
        let is_corrected = feedback.correction.is_some() || feedback.withheld.iter().any(|name| name == "correction");
        let count = match feedback.score {
            _ if is_corrected => &mut self.corrected,
            Some(score) if score > 0.0 => &mut self.up,
            Some(score) if score < 0.0 => &mut self.down,
            _ => &mut self.neutral,
        };
        *count += 1;
    }
}

/// What is kept of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TenantLearning {
    pub tenant: String,
    pub trajectories: u64,
    /// End users with a name.
    pub users: u64,
    pub bytes: u64,
    pub first_ms: Option<i64>,
    pub last_ms: Option<i64>,
    /// The feedback that counts for the trajectories.
    pub rated: FeedbackCounts,
    /// All explicit feedback in the log, whether or not anything is kept to learn from.
    pub feedback: FeedbackCounts,
    /// Requests in the log that repeat an earlier one for another answer: an implicit signal.
    pub regenerations: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LearningStatus {
    pub tenants: Vec<TenantLearning>,
    /// Requests that were forgotten, as far as the log still says so.
    pub forgotten_requests: u64,
    /// How long the last server kept trajectories.
    pub retention: Option<KeptFor>,
}

/// Limits of what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptFor {
    pub age_ms: u64,
    pub bytes_max: u64,
}

impl KeptFor {
    const NAME: &str = "learn_retention";

    pub(super) fn of(retention: &Retention) -> Self {
        let age_ms = u64::try_from(retention.learn_age_max.as_millis()).unwrap_or(u64::MAX);
        Self { age_ms, bytes_max: retention.learn_bytes_max }
    }

    pub(super) fn put(&self, database: &mut dyn Writing) -> Result<()> {
        let text = serde_json::to_string(self);
        let text = text.map_err(|error| MemoryError::invalid("retention", error.to_string()))?;
        set_meta(database, Self::NAME, &text)
    }
}

pub(super) fn status(database: &mut dyn Reading) -> Result<LearningStatus> {
    let mut tenants: BTreeMap<u32, TenantLearning> = BTreeMap::new();
    let count = |value: i64| u64::try_from(value).unwrap_or_default();
    let number = |value: i64| u32::try_from(value).unwrap_or_default();
    let sql = "SELECT tenant, count(*), CAST(sum(bytes) AS BIGINT), min(at_ms), max(at_ms), count(DISTINCT end_user) \
               FROM trajectories GROUP BY tenant";
    database.rows(sql, &[], &mut |row| {
        let one = tenants.entry(number(row[0].integer()?)).or_default();
        (one.trajectories, one.bytes) = (count(row[1].integer()?), count(row[2].integer()?));
        (one.first_ms, one.last_ms) = (Some(row[3].integer()?), Some(row[4].integer()?));
        one.users = count(row[5].integer()?);
        Ok(())
    })?;
    database.rows("SELECT tenant, feedback FROM trajectories WHERE feedback IS NOT NULL", &[], &mut |row| {
        tenants.entry(number(row[0].integer()?)).or_default().rated.add(&parse(row[1].as_text()?)?);
        Ok(())
    })?;
    let sql = "SELECT w.tenant, b.body FROM witness w JOIN witness_bodies b ON b.id = w.id WHERE w.kind = $1";
    database.rows(sql, &[FEEDBACK.into()], &mut |row| {
        tenants.entry(number(row[0].integer()?)).or_default().feedback.add(&parse(row[1].as_text()?)?);
        Ok(())
    })?;
    let sql = "SELECT tenant, count(*) FROM witness WHERE about IS NOT NULL AND kind IS NULL GROUP BY tenant";
    database.rows(sql, &[], &mut |row| {
        tenants.entry(number(row[0].integer()?)).or_default().regenerations = count(row[1].integer()?);
        Ok(())
    })?;
    let names = Names::all(database)?;
    let named = |(number, mut one): (u32, TenantLearning)| {
        one.tenant = names.get(&number).cloned().unwrap_or_default();
        one
    };
    let forgotten = super::forget::forgotten(database, 0)?;
    let forgotten_requests = forgotten.iter().map(|(_, forgetting)| forgetting.requests.len() as u64).sum();
    let retention = meta(database, KeptFor::NAME)?.and_then(|text| serde_json::from_str(&text).ok());
    Ok(LearningStatus { tenants: tenants.into_iter().map(named).collect(), forgotten_requests, retention })
}

/// Parses feedback, alone or as part of an annotation.
fn parse(text: &str) -> Result<Feedback> {
    serde_json::from_str(text).map_err(|error| MemoryError::damaged(format!("feedback cannot be read: {error}")))
}
