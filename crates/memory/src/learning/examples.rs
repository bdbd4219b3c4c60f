//! Trajectories with explicit feedback, as a trainer reads them.

use serde_json::{Value as Json, json};

use super::{Trajectory, TrajectoryPrompt};
use crate::database::{Reading, Value};
use crate::error::{MemoryError, Result};
use crate::names::Names;
use crate::witness::Feedback;

/// Trajectories that are read at a time.
const AT_ONCE: usize = 100;

/// Selects trajectories. All given conditions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExampleQuery {
    /// `None` for all tenants.
    pub tenant: Option<String>,
    pub user: Option<String>,
    pub model: Option<String>,
    pub since_ms: Option<i64>,
}

/// A trajectory and the feedback that counts for it.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    pub trajectory: Trajectory,
    pub feedback: Feedback,
}

impl Example {
    /// Returns the answer to learn: the correction, or the answer itself if it was found right.
    pub fn preferred(&self) -> Option<Json> {
        match (&self.feedback.correction, self.feedback.score) {
            (Some(correction), _) => Some(json!({ "role": "assistant", "content": correction })),
            (None, Some(score)) if score > 0.0 => Some(self.trajectory.answer.clone()),
            (None, _) => None,
        }
    }

    /// Returns the answer not to give: the one that was corrected, or found wrong.
    pub fn rejected(&self) -> Option<&str> {
        let is_rejected = self.feedback.correction.is_some() || self.feedback.score.is_some_and(|score| score < 0.0);
        let text = self.trajectory.answer.get("content").and_then(Json::as_str)?;
        Some(text).filter(|text| is_rejected && !text.is_empty() && Some(*text) != self.feedback.correction.as_deref())
    }

    /// Returns the line of a trainer's data: `messages`, or `prompt` and `completion`, and `rejected` where an answer was.
    /// `None` if there is nothing to learn.
    pub fn line(&self) -> Option<Json> {
        let (preferred, rejected) = (self.preferred(), self.rejected());
        if preferred.is_none() && rejected.is_none() {
            return None;
        }
        let mut line = match &self.trajectory.prompt {
            TrajectoryPrompt::Messages(messages) => {
                json!({ "messages": messages.iter().cloned().chain(preferred).collect::<Vec<_>>() })
            }
            TrajectoryPrompt::Text(text) => {
                let mut line = json!({ "prompt": text });
                if let Some(preferred) = preferred {
                    line["completion"] = preferred["content"].clone();
                }
                line
            }
        };
        if let Some(rejected) = rejected {
            line["rejected"] = rejected.into();
        }
        Some(line)
    }
}

/// Passes each trajectory with feedback to `each`, the oldest first.
pub(super) fn each(
    database: &mut dyn Reading,
    names: &Names,
    query: &ExampleQuery,
    each: &mut dyn FnMut(Example) -> Result<()>,
) -> Result<()> {
    let mut conditions = String::from("feedback IS NOT NULL");
    let mut params: Vec<Value> = Vec::new();
    let mut condition = |text: &str, value: Value| {
        params.push(value);
        conditions.push_str(&format!(" AND {text} ${}", params.len()));
    };
    if let Some(tenant) = &query.tenant {
        let Some(number) = names.find(database, tenant)? else { return Ok(()) };
        condition("tenant =", i64::from(number).into());
    }
    if let Some(user) = &query.user {
        condition("end_user =", user.as_str().into());
    }
    if let Some(since_ms) = query.since_ms {
        condition("at_ms >=", since_ms.into());
    }
    let mut last = 0;
    loop {
        let sql = format!(
            "SELECT id, body, feedback FROM trajectories WHERE {conditions} AND id > {last} ORDER BY id LIMIT {AT_ONCE}"
        );
        let mut count = 0;
        database.rows(&sql, &params, &mut |row| {
            (last, count) = (row[0].integer()?, count + 1);
            let example = Example { trajectory: parse(&row[1])?, feedback: parse(&row[2])? };
            let is_wanted = query.model.as_ref().is_none_or(|model| *model == example.trajectory.model);
            if is_wanted { each(example) } else { Ok(()) }
        })?;
        if count < AT_ONCE {
            return Ok(());
        }
    }
}

/// Returns the newest trajectories with feedback of a user, or of requests that name no user: the oldest of them first.
pub(super) fn newest(
    database: &mut dyn Reading,
    names: &Names,
    (tenant, user): (&str, Option<&str>),
    count: usize,
) -> Result<Vec<Example>> {
    let Some(number) = names.find(database, tenant)? else { return Ok(Vec::new()) };
    let mut params: Vec<Value> = vec![i64::from(number).into()];
    let of_user = match user {
        Some(user) => {
            params.push(user.into());
            "end_user = $2"
        }
        None => "end_user IS NULL",
    };
    let sql = format!(
        "SELECT body, feedback FROM trajectories WHERE feedback IS NOT NULL AND tenant = $1 AND {of_user} \
         ORDER BY id DESC LIMIT {count}"
    );
    let mut found = Vec::new();
    database.rows(&sql, &params, &mut |row| {
        found.push(Example { trajectory: parse(&row[0])?, feedback: parse(&row[1])? });
        Ok(())
    })?;
    found.reverse();
    Ok(found)
}

fn parse<T: serde::de::DeserializeOwned>(text: &Value) -> Result<T> {
    serde_json::from_str(text.as_text()?)
        .map_err(|error| MemoryError::damaged(format!("a trajectory cannot be read: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example(feedback: Feedback) -> Example {
        let prompt = TrajectoryPrompt::Messages(vec![json!({ "role": "user", "content": "2 + 2?" })]);
        let answer = json!({ "role": "assistant", "content": "5" });
        Example { trajectory: Trajectory { prompt, answer, ..Trajectory::default() }, feedback }
    }

    #[test]
    fn a_correction_is_learned_and_the_answer_it_corrects_rejected() {
        let asked = json!({ "role": "user", "content": "2 + 2?" });
        let line = |feedback| example(feedback).line();
        let corrected = line(Feedback { correction: Some("4".into()), score: Some(-1.0), ..Feedback::default() });
        let right = json!({ "role": "assistant", "content": "4" });
        assert_eq!(corrected, Some(json!({ "messages": [asked, right], "rejected": "5" })));
        let liked = line(Feedback { score: Some(1.0), ..Feedback::default() });
        assert_eq!(liked, Some(json!({ "messages": [asked, { "role": "assistant", "content": "5" }] })));
        let disliked = line(Feedback { score: Some(-0.5), ..Feedback::default() });
        assert_eq!(disliked, Some(json!({ "messages": [asked], "rejected": "5" })));
        assert_eq!(line(Feedback { reason: Some("hm".into()), ..Feedback::default() }), None);
        let mut text = example(Feedback { score: Some(1.0), ..Feedback::default() });
        text.trajectory.prompt = TrajectoryPrompt::Text("2 + 2 =".into());
        assert_eq!(text.line(), Some(json!({ "prompt": "2 + 2 =", "completion": "5" })));
    }
}
