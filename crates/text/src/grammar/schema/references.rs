//! References: whatever they point to becomes a definition under a plain name.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::cost::Cost;
use super::written::Written;
use super::{GrammarError, Position, Rewriter};

impl Rewriter<'_> {
    pub(super) fn references(
        &mut self,
        keyword: &str,
        value: &Value,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        let text = value.as_str().ok_or_else(|| position.wrong(keyword, "must be a string"))?;
        match self.reference(keyword, text, position) {
            // llguidance takes a definition that nothing satisfies for an error, wherever it is referred to.
            Ok((reference, _)) if self.refers_to_nothing(&reference) => {
                written.conjuncts.push(Value::Bool(false));
                Ok(())
            }
            Ok((reference, cost)) => self.combine(keyword, "$ref", reference, cost.referred_to(), position, written),
            Err(error) => self.relax(error),
        }
    }

    pub(super) fn refers_to_nothing(&self, reference: &Value) -> bool {
        let name = reference.as_str().and_then(|path| path.strip_prefix("#/$defs/"));
        name.and_then(|name| self.definitions.get(name)) == Some(&Value::Bool(false))
    }

    /// Replaces a reference by one to a definition, which is written now if it is new.
    pub(super) fn reference(
        &mut self,
        keyword: &str,
        text: &str,
        position: &Position,
    ) -> Result<(Value, Cost), GrammarError> {
        let target = self
            .resources
            .target(keyword, text, &position.scope)
            .map_err(|problem| position.unenforceable(keyword, format!("is {text:?}, which {problem}")))?;
        let key = target.key();
        let name = match self.names.get(&key) {
            Some(name) => name.clone(),
            None => {
                let name = format!("d{}", self.names_given);
                self.names_given += 1;
                self.names.insert(key.clone(), name.clone());
                self.keys.push(key);
                // Reserves the position, so that definitions stand in the order in which they are met.
                self.definitions.insert(name.clone(), Value::Bool(true));
                self.open.push(name.clone());
                let inside = Position { pointer: target.pointer, depth: position.depth + 1, scope: target.scope };
                let (schema, cost) = self.schema(target.schema, &inside)?;
                self.open.pop();
                self.definitions.insert(name.clone(), schema);
                self.costs.insert(name.clone(), cost);
                name
            }
        };
        if self.narrowed.contains(&name) {
            self.narrow_reversibly();
        }
        if self.inexact.contains(&name) || self.open.contains(&name) {
            self.mark_inexact();
        }
        // A schema that refers to itself is not multiplied out.
        let cost = self.costs.get(&name).copied().unwrap_or(Cost::ANYTHING);
        Ok((Value::String(format!("#/$defs/{name}")), cost))
    }

    /// llguidance cannot merge a schema with one that is not finished: one that it stands in itself.
    pub(super) fn recursion(&mut self, position: &Position, written: &mut Written) -> Result<(), GrammarError> {
        let is_open = |keyword: &&str| {
            written.fields.get(*keyword).is_some_and(|value| keyword_refers_to(keyword, value, &self.open))
        };
        let open: Vec<&str> = ["$ref", "anyOf", "allOf"].into_iter().filter(is_open).collect();
        let parts = written.fields.len() + written.conjuncts.len();
        let is_alone = |keyword: &str| match written.fields.get(keyword) {
            Some(Value::Array(schemas)) if keyword == "allOf" => schemas.len() == 1,
            _ => true,
        };
        match open.as_slice() {
            [] => Ok(()),
            [one] if parts == 1 && is_alone(one) => Ok(()),
            [one] if *one != "allOf" => {
                // The reference says more than what stands beside it.
                let others: Vec<String> =
                    written.fields.keys().filter(|keyword| keyword.as_str() != *one).cloned().collect();
                for other in others {
                    self.relax(position.unenforceable(&other, "is not supported beside a reference to itself"))?;
                    written.fields.shift_remove(&other);
                }
                if !written.conjuncts.is_empty() {
                    self.relax(position.unenforceable("allOf", "is not supported beside a reference to itself"))?;
                    written.conjuncts.clear();
                }
                Ok(())
            }
            several => {
                for keyword in several.iter().copied() {
                    self.relax(
                        position.unenforceable(keyword, "refers to itself beside others, which is not supported"),
                    )?;
                    written.fields.shift_remove(keyword);
                }
                Ok(())
            }
        }
    }

    /// The definitions that what was written still refers to.
    pub(super) fn reachable_definitions(&mut self, root: &Value) -> Map<String, Value> {
        let mut reached = HashSet::new();
        let mut open = vec![root];
        while let Some(value) = open.pop() {
            match value {
                Value::Array(items) => open.extend(items),
                Value::Object(fields) => {
                    open.extend(fields.values());
                    let name =
                        fields.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix("#/$defs/"));
                    if let Some((name, schema)) = name.and_then(|name| self.definitions.get_key_value(name))
                        && reached.insert(name.clone())
                    {
                        open.push(schema);
                    }
                }
                _ => {}
            }
        }
        let mut definitions = std::mem::take(&mut self.definitions);
        definitions.retain(|name, _| reached.contains(name));
        self.costs.retain(|name, _| reached.contains(name));
        definitions
    }
}

/// Returns whether a schema is, or is an alternative or a part of, a reference to one of these definitions.
fn refers_in_place_to(schema: &Value, names: &[String]) -> bool {
    let Value::Object(fields) = schema else { return false };
    fields.iter().any(|(keyword, value)| keyword_refers_to(keyword, value, names))
}

fn keyword_refers_to(keyword: &str, value: &Value, names: &[String]) -> bool {
    match (keyword, value) {
        ("$ref", Value::String(path)) => {
            path.strip_prefix("#/$defs/").is_some_and(|name| names.iter().any(|open| open == name))
        }
        ("anyOf" | "allOf", Value::Array(schemas)) => schemas.iter().any(|schema| refers_in_place_to(schema, names)),
        _ => false,
    }
}
