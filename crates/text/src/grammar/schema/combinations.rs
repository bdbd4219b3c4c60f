//! Schemas that must hold together, and how large they may grow together.

use serde_json::{Map, Value};

use super::super::limits::SCHEMA_NODES_MAX;
use super::cost::Cost;
use super::written::Written;
use super::{GrammarError, Position, Rewriter};

impl Rewriter<'_> {
    /// Adds a keyword whose alternatives are multiplied with those that are there.
    pub(super) fn combine(
        &mut self,
        keyword: &str,
        written_as: &str,
        value: Value,
        cost: Cost,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        let combined = written.cost.and(cost);
        if combined.nodes() > SCHEMA_NODES_MAX {
            let problem = "combines too many alternatives; write them out or use fewer";
            return self.relax(position.unenforceable(keyword, problem));
        }
        written.cost = combined;
        if written.fields.contains_key(written_as) {
            written.conjuncts.push(Value::Object(Map::from_iter([(written_as.to_owned(), value)])));
        } else {
            written.set(written_as, value);
        }
        Ok(())
    }

    /// Adds a schema that must hold as well.
    pub(super) fn conjunct(
        &mut self,
        keyword: &str,
        schema: Value,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        let combined = written.cost.and(Cost::of(&schema, &self.costs));
        if combined.nodes() > SCHEMA_NODES_MAX {
            return self.relax(position.unenforceable(keyword, "combines too many alternatives"));
        }
        written.cost = combined;
        written.conjuncts.push(schema);
        Ok(())
    }

    pub(super) fn schemas(
        &mut self,
        keyword: &str,
        value: &Value,
        position: &Position,
    ) -> Result<(Vec<Value>, Vec<Cost>), GrammarError> {
        let list = value.as_array().filter(|list| !list.is_empty());
        let list = list.ok_or_else(|| position.wrong(keyword, "must be a non-empty array of schemas"))?;
        let written =
            list.iter().enumerate().map(|(index, schema)| self.schema(schema, &position.below(keyword, index)));
        Ok(written.collect::<Result<Vec<_>, _>>()?.into_iter().unzip())
    }

    /// Each of them by itself, so that one that is too much does not take the others with it.
    pub(super) fn all_of(
        &mut self,
        value: &Value,
        fields: &Map<String, Value>,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        let members = value.as_array().filter(|list| !list.is_empty());
        let members = members.ok_or_else(|| position.wrong("allOf", "must be a non-empty array of schemas"))?;
        let done = self.cases(members, fields, position, written)?;
        let mut kept = Vec::new();
        for (index, member) in members.iter().enumerate().filter(|(index, _)| !done.contains(index)) {
            let (schema, cost) = self.schema(member, &position.below("allOf", index))?;
            let combined = written.cost.and(cost);
            if combined.nodes() > SCHEMA_NODES_MAX {
                let problem = "combines too many alternatives; write them out or use fewer";
                self.relax(position.unenforceable("allOf", problem))?;
            } else {
                written.cost = combined;
                kept.push(schema);
            }
        }
        if !kept.is_empty() {
            written.set("allOf", Value::Array(kept));
        }
        Ok(())
    }

    /// Where several schemas for one value are too much, keeps the one that says most.
    pub(super) fn one_part(&mut self, position: &Position, written: &mut Written) -> Result<(), GrammarError> {
        const APPLIED: [&str; 3] = ["$ref", "anyOf", "allOf"];
        if self.effort.merges() {
            return Ok(());
        }
        let mut parts: Vec<&str> =
            APPLIED.into_iter().filter(|keyword| written.fields.contains_key(*keyword)).collect();
        let says_itself = written.fields.keys().any(|keyword| !APPLIED.contains(&keyword.as_str()));
        let is_one = parts.len() + usize::from(says_itself) + written.conjuncts.len() <= 1;
        let merges = written.fields.get("allOf").and_then(Value::as_array).is_some_and(|all| all.len() > 1);
        if is_one && !merges {
            return Ok(());
        }
        if !written.fields.contains_key("properties") && parts.first().is_some_and(|part| *part != "allOf") {
            let others: Vec<String> = written.fields.keys().filter(|keyword| *keyword != parts[0]).cloned().collect();
            for other in others {
                written.fields.shift_remove(&other);
            }
            parts = Vec::new();
        }
        for part in parts {
            written.fields.shift_remove(part);
        }
        written.conjuncts.clear();
        self.relax(position.unenforceable("(too large)", "is too large"))
    }
}
