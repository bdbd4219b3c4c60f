//! Entries that are no requests: feedback on an answer, that something was forgotten, and what was done with what was
//! learned.
//!
//! The log is chained, so nothing is added to an entry that is stored. What is learned later of a request is an entry of its own
//! that names the request.

use serde::{Deserialize, Serialize};

use super::chain;
use crate::error::{MemoryError, Result};

/// Maximum sizes of what people write about an answer.
pub const CORRECTION_BYTES_MAX: usize = 256 << 10;
pub const REASON_BYTES_MAX: usize = 8 << 10;

/// An entry of the log that is no request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Annotation {
    /// Id of the request, or of the command, that wrote it.
    pub request: String,
    pub at_ms: i64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    /// The request that it is about, by the id that the log knows it by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// Who says it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The model that answered.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    #[serde(flatten)]
    pub said: Said,
}

/// What an annotation says. Its `kind` in the body is its name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Said {
    Feedback(Feedback),
    Forgetting(Forgetting),
    Learning(LearningChange),
}

/// What somebody thinks of an answer. Of several for one answer, the last counts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Feedback {
    /// From -1, wrong, to 1, right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// The answer that would have been right.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correction: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Names of the texts that were given and not kept, since those of the request are not kept either.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub withheld: Vec<String>,
}

/// Which entries were blanked, and which requests they were: whatever was learned from those has to go as well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forgetting {
    /// `request`, `user` or `tenant`. The user is not named: that, too, is forgotten.
    pub scope: String,
    /// Ids of the blanked entries.
    pub entries: Vec<i64>,
    /// The requests of which a trajectory or an entry was kept.
    pub requests: Vec<String>,
}

/// A scope is served with another version than before. Its tenant, user and model are those of the annotation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LearningChange {
    /// `promoted`, `forced`, `rolled_back`, `reset` or `withdrawn`.
    pub action: String,
    /// The version that is served from now on, and the one before; 0 is the model alone.
    pub version: i64,
    pub before: i64,
    /// Digest of the adapter that is served from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter: Option<String>,
}

impl Annotation {
    /// Returns the word for its kind, as it is stored.
    pub fn kind(&self) -> &'static str {
        match self.said {
            Said::Feedback(_) => FEEDBACK,
            Said::Forgetting(_) => FORGETTING,
            Said::Learning(_) => LEARNING,
        }
    }

    pub(crate) fn feedback(&self) -> Option<&Feedback> {
        match &self.said {
            Said::Feedback(feedback) => Some(feedback),
            Said::Forgetting(_) | Said::Learning(_) => None,
        }
    }
}

/// Kinds of entries. All but that of a request are stored.
const REQUEST: &str = "request";
pub(crate) const FEEDBACK: &str = "feedback";
pub(crate) const FORGETTING: &str = "forgetting";
pub(crate) const FORGOTTEN: &str = "forgotten";
pub(crate) const LEARNING: &str = "learning";

impl Feedback {
    /// Refuses what says nothing, or too much.
    pub fn check(&self) -> Result<()> {
        if self.score.is_none() && self.correction.is_none() && self.reason.is_none() {
            return Err(MemoryError::invalid("score", "give a score, a correction or a reason"));
        }
        if self.score.is_some_and(|score| !(-1.0..=1.0).contains(&score)) {
            return Err(MemoryError::invalid("score", "a score is from -1 (wrong) to 1 (right)"));
        }
        check_text("correction", self.correction.as_deref(), CORRECTION_BYTES_MAX)?;
        check_text("reason", self.reason.as_deref(), REASON_BYTES_MAX)
    }

    /// Returns the feedback without its texts, and with their names.
    pub fn without_texts(mut self) -> Self {
        for (name, text) in [("correction", self.correction.take()), ("reason", self.reason.take())] {
            self.withheld.extend(text.map(|_| name.to_owned()));
        }
        self
    }
}

fn check_text(field: &'static str, text: Option<&str>, bytes_max: usize) -> Result<()> {
    let Some(text) = text else { return Ok(()) };
    let problem = if text.len() > bytes_max {
        format!("it has {} bytes; up to {bytes_max} are kept", text.len())
    } else if text.contains('\0') {
        "it has a NUL character, which no text can have".to_owned()
    } else if text.trim().is_empty() {
        "it is empty; leave it out".to_owned()
    } else {
        return Ok(());
    };
    Err(MemoryError::invalid(field, problem))
}

/// What is left of an entry that was forgotten: enough to recompute the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForgottenEntry {
    pub kind: String,
    pub request: String,
    pub at_ms: i64,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tenant: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub model: String,
    /// BLAKE3 of the body that it had, and its length.
    pub digest: String,
    pub bytes: i64,
}

impl ForgottenEntry {
    /// Returns what is left of an entry with this body.
    pub(crate) fn of(entry: &LogEntry, body: &str) -> Self {
        let (request, at_ms, tenant, model) = match entry {
            LogEntry::Request(entry) => (&entry.request, entry.at_ms, &entry.tenant, &entry.model),
            LogEntry::Annotation(entry) => (&entry.request, entry.at_ms, &entry.tenant, &entry.model),
            LogEntry::Forgotten(entry) => (&entry.request, entry.at_ms, &entry.tenant, &entry.model),
        };
        Self {
            kind: FORGOTTEN.to_owned(),
            request: request.clone(),
            at_ms,
            tenant: tenant.clone(),
            model: model.clone(),
            digest: blake3::Hash::from_bytes(chain::body_digest(body)).to_hex().to_string(),
            bytes: body.len() as i64,
        }
    }
}

/// An entry of any kind.
#[derive(Clone, Debug, PartialEq)]
pub enum LogEntry {
    Request(Box<super::WitnessEntry>),
    Annotation(Box<Annotation>),
    Forgotten(ForgottenEntry),
}

impl LogEntry {
    /// Returns the word for its kind.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Request(_) => REQUEST,
            Self::Annotation(annotation) => annotation.kind(),
            Self::Forgotten(_) => FORGOTTEN,
        }
    }

    /// Parses the body of an entry whose `kind` column is known.
    pub(crate) fn parse(kind: Option<&str>, body: &str) -> serde_json::Result<Self> {
        Ok(match kind {
            None => Self::Request(serde_json::from_str(body)?),
            Some(FORGOTTEN) => Self::Forgotten(serde_json::from_str(body)?),
            Some(_) => Self::Annotation(serde_json::from_str(body)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feedback_that_says_nothing_or_too_much_is_refused_by_field() {
        let score = |score| Feedback { score: Some(score), ..Feedback::default() };
        let correction = |text: String| Feedback { correction: Some(text), ..Feedback::default() };
        assert!(score(-1.0).check().is_ok() && correction("No: 7.".into()).check().is_ok());
        for (feedback, field) in [
            (Feedback::default(), "score"),
            (score(7.0), "score"),
            (score(f64::NAN), "score"),
            (correction("x".repeat(10 << 20)), "correction"),
            (correction("a\0b".into()), "correction"),
            (correction(" ".into()), "correction"),
            (Feedback { reason: Some("x".repeat(REASON_BYTES_MAX + 1)), ..Feedback::default() }, "reason"),
        ] {
            let error = feedback.check().unwrap_err().to_string();
            assert!(error.starts_with(&format!("{field}:")) && error.len() < 200, "{error}");
        }
    }

    #[test]
    fn annotations_are_read_as_they_were_written() {
        let feedback = Feedback { score: Some(0.1), correction: Some("Grüße".into()), ..Feedback::default() };
        let forgetting = Forgetting { scope: "user".into(), entries: vec![i64::MAX, 3], requests: vec!["r".into()] };
        let change = LearningChange { action: "promoted".into(), version: 2, before: 0, adapter: Some("ab".into()) };
        for said in [Said::Feedback(feedback), Said::Forgetting(forgetting), Said::Learning(change)] {
            let annotation = Annotation {
                request: "req-1".into(),
                at_ms: 1_800_000_000_000,
                tenant: "acme".into(),
                about: Some("req-0".into()),
                user: None,
                model: String::new(),
                said,
            };
            let body = serde_json::to_string(&annotation).unwrap();
            assert!(body.contains(&format!("\"kind\":\"{}\"", annotation.kind())), "{body}");
            let read = LogEntry::parse(Some(annotation.kind()), &body).unwrap();
            assert_eq!(read, LogEntry::Annotation(Box::new(annotation)));
        }
    }
}
