//! Objects: patterns for names, and how many there are.

use serde_json::{Map, Value, json};

use super::super::limits::{PATTERN_CHECKS_MAX, PATTERN_PROPERTIES_MAX};
use super::disjoint::Comparison;
use super::strings::Names;
use super::written::{Written, all_of, any_of, is_anything};
use super::{GrammarError, Position, Rewriter, Strictness, pattern};

/// Names of which one must be there.
const ONE_OF_NAMES_MAX: usize = 32;

impl Rewriter<'_> {
    pub(super) fn schemas_by_name(
        &mut self,
        keyword: &str,
        value: &Value,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        let fields = value.as_object().ok_or_else(|| position.wrong(keyword, "must be an object of schemas"))?;
        let mut out = Map::new();
        for (name, schema) in fields {
            let (schema, cost) = self.schema(schema, &position.below(keyword, name))?;
            written.add_children([cost]);
            out.insert(name.clone(), schema);
        }
        written.set(keyword, Value::Object(out));
        Ok(())
    }

    /// llguidance takes patterns of which no two match the same name.
    pub(super) fn pattern_properties(
        &mut self,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        let Some(Value::Object(patterns)) = written.fields.shift_remove("patternProperties") else { return Ok(()) };
        let unenforceable = |problem: &str| position.unenforceable("patternProperties", problem);
        if patterns.len() > PATTERN_PROPERTIES_MAX {
            self.relax(unenforceable(&format!("has more than {PATTERN_PROPERTIES_MAX} patterns")))?;
            return self.allow_other_names(position, written);
        }
        // Names that may have any value are of interest only where others may not.
        let others_are_free = written.fields.get("additionalProperties").is_none_or(is_anything);
        let (mut kept, mut are_all_kept): (Vec<(String, Value)>, _) = (Vec::new(), true);
        for (pattern, schema) in patterns.into_iter().filter(|(_, schema)| !(others_are_free && is_anything(schema))) {
            match self.checked_pattern(&pattern) {
                Ok(pattern) if pattern::is_universal(&pattern) => {
                    // Holds for all names, so that none are left to be additional.
                    written.conjuncts.push(json!({ "additionalProperties": schema }));
                    written.fields.shift_remove("additionalProperties");
                }
                Ok(pattern) => kept.push((pattern, schema)),
                Err(problem) => {
                    are_all_kept = false;
                    self.relax(unenforceable(&format!("cannot be enforced: {pattern:?} {problem}")))?;
                }
            }
        }
        if !are_all_kept {
            self.allow_other_names(position, written)?;
        }
        let disjoint = self.disjoint_patterns(kept, position)?;
        if !disjoint.is_empty() {
            written.set("patternProperties", Value::Object(disjoint));
        }
        Ok(())
    }

    /// What a pattern that is not enforced would have allowed must not be shut out.
    fn allow_other_names(&mut self, position: &Position, written: &mut Written) -> Result<(), GrammarError> {
        match written.fields.shift_remove("additionalProperties") {
            Some(_) => self
                .relax(position.unenforceable("additionalProperties", "depends on patterns that cannot be enforced")),
            None => Ok(()),
        }
    }

    /// Patterns that overlap become one. If they ask for the same, that is exact; else a name that one of them matches must
    /// have what both ask for, or, where that may be, what either does.
    fn disjoint_patterns(
        &mut self,
        mut patterns: Vec<(String, Value)>,
        position: &Position,
    ) -> Result<Map<String, Value>, GrammarError> {
        let mut disjoint: Vec<(String, Value)> = Vec::new();
        while let Some((pattern, schema)) = patterns.pop() {
            self.pattern_checks += disjoint.len();
            let may_look = self.pattern_checks <= PATTERN_CHECKS_MAX;
            let are_disjoint = |other: &str| may_look && pattern::are_disjoint(&pattern, other).unwrap_or(false);
            let overlapping = disjoint.iter().position(|(other, _)| !are_disjoint(other));
            let Some(index) = overlapping else {
                disjoint.push((pattern, schema));
                continue;
            };
            let (other, of_other) = disjoint.remove(index);
            let merged = if schema == of_other {
                schema
            } else if self.strictness == Strictness::Strict && self.may_both_hold(&schema, &of_other) {
                self.narrow();
                all_of(vec![schema, of_other])
            } else {
                let problem = format!("has patterns that may match the same name: {pattern:?} and {other:?}");
                self.relax(position.unenforceable("patternProperties", problem))?;
                any_of(vec![schema, of_other])
            };
            patterns.push((format!("(?:{pattern})|(?:{other})"), merged));
        }
        disjoint.reverse();
        Ok(disjoint.into_iter().collect())
    }

    fn may_both_hold(&self, one: &Value, other: &Value) -> bool {
        !Comparison::new(&self.definitions).are_disjoint(one, other)
    }

    /// llguidance counts properties only where none that the schema lists is optional.
    pub(super) fn property_counts(&mut self, position: &Position, written: &mut Written) -> Result<(), GrammarError> {
        let (min, max) = (written.number("minProperties").unwrap_or(0), written.number("maxProperties"));
        let required: Vec<String> = written.required().into_iter().map(str::to_owned).collect();
        let listed: Vec<String> = match written.fields.get("properties") {
            Some(Value::Object(properties)) => properties.keys().cloned().collect(),
            _ => Vec::new(),
        };
        let optional: Vec<&String> = listed.iter().filter(|name| !required.contains(name)).collect();
        let are_names_free = written.fields.get("additionalProperties") != Some(&Value::Bool(false))
            || written.fields.contains_key("patternProperties");
        if min <= required.len() as u64 {
            written.fields.shift_remove("minProperties");
        }
        if max.is_some_and(|max| !are_names_free && max >= listed.len() as u64) {
            written.fields.shift_remove("maxProperties");
        }
        let (min, max) = (written.number("minProperties").unwrap_or(0), written.number("maxProperties"));
        if min == 0 && max.is_none() {
            return Ok(());
        }
        let missing = min.saturating_sub(required.len() as u64);
        if !self.effort.counts_properties() {
            return self.without_counts("belongs to a schema that is too large", position, written);
        }
        if optional.is_empty() {
            // Names that the schema does not list may come twice; they would count twice while they are written, but a
            // reader of the result counts one.
            let problem = "cannot be enforced where names are free; list them in properties and required";
            return if missing > 1 && are_names_free {
                self.without_counts(problem, position, written)
            } else {
                Ok(())
            };
        }
        let max_more = max.map_or(1, |max| max.saturating_sub(required.len() as u64));
        if !are_names_free && missing <= 1 && max_more == 1 {
            return Ok(());
        }
        if missing == 1 && max.is_none() && optional.len() <= ONE_OF_NAMES_MAX {
            let mut ways: Vec<Value> = optional.iter().map(|name| json!({ "required": [name] })).collect();
            if are_names_free {
                let none: Map<String, Value> = optional.iter().map(|&name| (name.clone(), json!(false))).collect();
                ways.push(json!({ "properties": none, "minProperties": min }));
            }
            written.fields.shift_remove("minProperties");
            let ways = ways.into_iter().map(|way| with_type(way, "object")).chain([not_an_object(written)]);
            return self.conjunct("minProperties", any_of(ways.collect()), position, written);
        }
        self.without_counts("cannot be enforced beside properties that are optional", position, written)
    }

    fn without_counts(
        &mut self,
        problem: &str,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        for keyword in ["minProperties", "maxProperties"] {
            if written.fields.shift_remove(keyword).is_some() {
                self.relax(position.unenforceable(keyword, problem))?;
            }
        }
        Ok(())
    }

    pub(super) fn property_names(
        &mut self,
        value: &Value,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        let Some(schema) = self.exact("propertyNames", value, position)? else { return Ok(()) };
        match Names::of(&schema, &self.definitions, 0) {
            Some(names) => self.conjunct("propertyNames", names.into_schema(), position, written),
            None => self.relax(position.unenforceable("propertyNames", "cannot be said in one pattern")),
        }
    }
}

fn with_type(mut schema: Value, kind: &str) -> Value {
    if let Value::Object(fields) = &mut schema {
        fields.insert("type".to_owned(), Value::from(kind));
    }
    schema
}

/// What keywords for objects do not speak of, unless the schema speaks of objects only.
fn not_an_object(written: &Written) -> Value {
    match written.fields.get("type") {
        Some(kind) if kind == "object" => Value::Bool(false),
        _ => json!({ "type": ["null", "boolean", "number", "string", "array"] }),
    }
}
