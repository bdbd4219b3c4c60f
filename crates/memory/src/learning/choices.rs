//! Choices between models in the witness log, with what came of them.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::database::{Reading, Value};
use crate::error::{MemoryError, Result};
use crate::names::Names;
use crate::witness::{FEEDBACK, FORGETTING, Feedback, ModelChoice, WitnessEntry};

/// A request whose model was chosen, and what is known of its answer.
#[derive(Clone, Debug, PartialEq)]
pub struct ChoiceOutcome {
    pub entry: WitnessEntry,
    pub choice: ModelChoice,
    /// What was said last.
    pub feedback: Option<Feedback>,
    /// Whether the same was asked again for another answer.
    pub is_asked_again: bool,
}

/// What happened in the log since a mark that choices between models depend on. Also by other processes that share it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChoiceChanges {
    /// Where to look from the next time.
    pub mark: i64,
    /// Tenants with another choice, or of whose requests something was said.
    pub tenants: BTreeSet<String>,
    /// Whether anything was forgotten.
    pub has_forgotten: bool,
}

pub(super) fn changes(database: &mut dyn Reading, since: i64) -> Result<ChoiceChanges> {
    let mut changes = ChoiceChanges { mark: since, ..ChoiceChanges::default() };
    let sql = format!(
        "SELECT id, tenant, kind FROM witness WHERE id > $1 AND (choice IS NOT NULL OR about IS NOT NULL \
         OR kind = '{FORGETTING}') ORDER BY id"
    );
    let mut tenants = BTreeSet::new();
    database.rows(&sql, &[since.into()], &mut |row| {
        changes.mark = row[0].integer()?;
        changes.has_forgotten |= row[2].optional(Value::as_text_owned)?.is_some_and(|kind| kind == FORGETTING);
        tenants.insert(row[1].integer()?);
        Ok(())
    })?;
    if !tenants.is_empty() {
        let names = Names::all(database)?;
        let name = |number: &i64| u32::try_from(*number).ok().and_then(|number| names.get(&number).cloned());
        changes.tenants = tenants.iter().filter_map(name).collect();
    }
    Ok(changes)
}

/// Returns the newest choices of a tenant, the oldest of them first.
pub(super) fn newest(
    database: &mut dyn Reading,
    names: &Names,
    tenant: &str,
    count: usize,
) -> Result<Vec<ChoiceOutcome>> {
    let Some(tenant) = names.find(database, tenant)? else { return Ok(Vec::new()) };
    let sql = format!(
        "SELECT w.id, b.body FROM witness w JOIN witness_bodies b ON b.id = w.id \
         WHERE w.tenant = $1 AND w.choice IS NOT NULL ORDER BY w.id DESC LIMIT {count}"
    );
    let mut entries: Vec<WitnessEntry> = Vec::new();
    let mut first = i64::MAX;
    database.rows(&sql, &[i64::from(tenant).into()], &mut |row| {
        first = row[0].integer()?;
        entries.push(parse(&row[1])?);
        Ok(())
    })?;
    let since: [Value; 2] = [i64::from(tenant).into(), first.into()];
    let mut feedback: HashMap<String, Feedback> = HashMap::new();
    let sql = format!(
        "SELECT w.about, b.body FROM witness w JOIN witness_bodies b ON b.id = w.id \
         WHERE w.tenant = $1 AND w.id > $2 AND w.kind = '{FEEDBACK}' ORDER BY w.id"
    );
    database.rows(&sql, &since, &mut |row| {
        if let Some(about) = row[0].optional(Value::as_text_owned)? {
            feedback.insert(about, parse(&row[1])?);
        }
        Ok(())
    })?;
    let mut asked_again: HashSet<String> = HashSet::new();
    let sql = "SELECT about FROM witness WHERE tenant = $1 AND id > $2 AND kind IS NULL AND about IS NOT NULL";
    database.rows(sql, &since, &mut |row| {
        asked_again.insert(row[0].as_text_owned()?);
        Ok(())
    })?;
    let outcome = |mut entry: WitnessEntry| {
        Some(ChoiceOutcome {
            choice: entry.routing.choice.take()?,
            feedback: feedback.remove(&entry.request),
            is_asked_again: asked_again.contains(&entry.request),
            entry,
        })
    };
    Ok(entries.into_iter().rev().filter_map(outcome).collect())
}

fn parse<T: serde::de::DeserializeOwned>(body: &Value) -> Result<T> {
    serde_json::from_str(body.as_text()?)
        .map_err(|error| MemoryError::damaged(format!("an entry cannot be read: {error}")))
}
