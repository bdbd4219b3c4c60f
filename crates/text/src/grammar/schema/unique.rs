//! Items that differ from each other, where only so many values are possible that they can be told.

use serde_json::{Map, Value, json};

use super::disjoint::Comparison;
use super::written::{Written, any_of};
use super::{GrammarError, Position, Rewriter};

/// Sequences of items that are told.
const WAYS_MAX: usize = 32;
const VALUES_MAX: usize = 16;
const DEPTH_MAX: usize = 8;

impl Rewriter<'_> {
    /// Arrays of few values are told one by one: in any order, or, if these are too many, in that of the schema.
    pub(super) fn unique_items(
        &mut self,
        fields: &Map<String, Value>,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        match fields.get("uniqueItems") {
            None | Some(Value::Bool(false)) => return Ok(()),
            Some(Value::Bool(true)) => {}
            Some(_) => return Err(position.wrong("uniqueItems", "must be true or false")),
        }
        let tuple = written.fields.get("prefixItems").and_then(Value::as_array).cloned().unwrap_or_default();
        let rest = written.fields.get("items").cloned();
        let mut len_max = written.number("maxItems").unwrap_or(u64::MAX);
        if rest == Some(Value::Bool(false)) {
            len_max = len_max.min(tuple.len() as u64);
        }
        if len_max <= 1 {
            return Ok(());
        }
        let unique = Unique { definitions: &self.definitions, tuple, rest, len_max, is_narrowed: false };
        let Some((mut ways, is_narrowed)) = unique.ways().filter(|_| self.effort.rewrites()) else {
            let problem = "is not supported, but for items of few possible values";
            return self.relax(position.unenforceable("uniqueItems", problem));
        };
        if written.fields.get("type").is_none_or(|kind| kind != "array") {
            ways.push(json!({ "type": ["null", "boolean", "number", "string", "object"] }));
        }
        if is_narrowed {
            self.narrow();
        }
        self.conjunct("uniqueItems", any_of(ways), position, written)
    }
}

/// An array whose items differ.
struct Unique<'d> {
    definitions: &'d Map<String, Value>,
    tuple: Vec<Value>,
    rest: Option<Value>,
    len_max: u64,
    is_narrowed: bool,
}

impl Unique<'_> {
    /// Returns the arrays, each with all that begin like it, and whether others were left out; `None` if they are too many
    /// or cannot be told.
    fn ways(mut self) -> Option<(Vec<Value>, bool)> {
        let mut places: Vec<Place> = self.tuple.iter().map(|schema| self.place(schema)).collect();
        match self.rest.as_ref().map(|rest| self.place(rest)) {
            Some(Place::Values(values)) => {
                // No array is longer than there are values for it.
                let more = values.len().min(usize::try_from(self.len_max).unwrap_or(usize::MAX));
                places.extend(std::iter::repeat_n(Place::Values(values), more.saturating_sub(self.tuple.len())));
            }
            // What may follow a tuple is rarely meant to.
            None if !places.is_empty() => self.is_narrowed |= self.len_max > places.len() as u64,
            _ => return None,
        }
        let mut sequences = self.sequences(&places, Order::Any);
        if sequences.is_none() && self.tuple.is_empty() {
            self.is_narrowed = true;
            sequences = self.sequences(&places, Order::AsListed);
        }
        let ways = sequences?.into_iter().map(|sequence| match sequence.is_empty() {
            true => json!({ "type": "array", "maxItems": 0 }),
            false => json!({ "type": "array", "prefixItems": sequence, "items": false }),
        });
        Some((ways.collect(), self.is_narrowed))
    }

    fn place(&self, schema: &Value) -> Place {
        match values(schema, self.definitions, 0) {
            Some(values) => Place::Values(values),
            None => Place::Other(schema.clone()),
        }
    }

    fn sequences(&self, places: &[Place], order: Order) -> Option<Vec<Vec<Value>>> {
        let comparison = Comparison::new(self.definitions);
        let mut open: Vec<(Vec<Value>, usize)> = vec![(Vec::new(), 0)];
        let mut complete = Vec::new();
        // The number of steps is bounded with that of the sequences.
        while let Some((sequence, listed_from)) = open.pop() {
            let before = open.len();
            match places.get(sequence.len()) {
                Some(Place::Values(values)) => {
                    for (index, value) in values.iter().enumerate().skip(listed_from).rev() {
                        let item = json!({ "const": value });
                        if !sequence.contains(&item) && differs_from_others(&item, &sequence, &comparison)? {
                            let from = if order == Order::AsListed { index + 1 } else { 0 };
                            open.push((sequence.iter().cloned().chain([item]).collect(), from));
                        }
                    }
                }
                Some(Place::Other(schema)) if differs_from_others(schema, &sequence, &comparison)? => {
                    open.push((sequence.iter().cloned().chain([schema.clone()]).collect(), 0));
                }
                _ => {}
            }
            if open.len() == before {
                complete.push(sequence);
            }
            if complete.len() + open.len() > WAYS_MAX {
                return None;
            }
        }
        Some(complete)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Order {
    Any,
    AsListed,
}

#[derive(Clone)]
enum Place {
    Values(Vec<Value>),
    Other(Value),
}

/// Returns whether an item can never be one of those before it; `None` if that cannot be told.
fn differs_from_others(item: &Value, others: &[Value], comparison: &Comparison) -> Option<bool> {
    others.iter().all(|other| comparison.are_disjoint(item, other)).then_some(true)
}

/// The values that a schema accepts, if they are few.
fn values(schema: &Value, definitions: &Map<String, Value>, depth: usize) -> Option<Vec<Value>> {
    let fields = match schema {
        Value::Bool(false) => return Some(Vec::new()),
        Value::Object(fields) if depth < DEPTH_MAX => fields,
        _ => return None,
    };
    let mut keywords: Vec<&str> = fields.keys().map(String::as_str).collect();
    keywords.sort_unstable();
    let all = match keywords.as_slice() {
        ["const"] | ["const", "type"] => vec![fields["const"].clone()],
        ["enum"] | ["enum", "type"] => fields["enum"].as_array()?.clone(),
        ["type"] if fields["type"] == "boolean" => vec![json!(true), json!(false)],
        ["type"] if fields["type"] == "null" => vec![Value::Null],
        ["anyOf"] => {
            let each = fields["anyOf"].as_array()?.iter().map(|option| values(option, definitions, depth + 1));
            each.collect::<Option<Vec<_>>>()?.concat()
        }
        ["$ref"] => {
            let target = definitions.get(fields["$ref"].as_str()?.strip_prefix("#/$defs/")?)?;
            values(target, definitions, depth + 1)?
        }
        _ => return None,
    };
    let mut different: Vec<Value> = Vec::new();
    for value in all {
        if !different.contains(&value) && has_type(&value, fields.get("type")) {
            different.push(value);
        }
    }
    (different.len() <= VALUES_MAX).then_some(different)
}

fn has_type(value: &Value, types: Option<&Value>) -> bool {
    let is = |kind: &Value| match kind.as_str() {
        Some("integer") => value.is_i64(),
        Some(kind) => kind == super::values::type_of(value),
        None => false,
    };
    match types {
        None => true,
        Some(Value::Array(types)) => types.iter().any(is),
        Some(kind) => is(kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways(tuple: Value, rest: Option<Value>, len_max: u64) -> Option<(usize, bool)> {
        let tuple = tuple.as_array().cloned().unwrap_or_default();
        let unique = Unique { definitions: &Map::new(), tuple, rest, len_max, is_narrowed: false };
        unique.ways().map(|(ways, is_narrowed)| (ways.len(), is_narrowed))
    }

    #[test]
    fn few_values_come_in_any_order_and_more_in_that_of_the_schema() {
        let of = |count: usize| Some(json!({ "enum": (0..count).collect::<Vec<_>>() }));
        assert_eq!(ways(json!([]), of(3), u64::MAX), Some((6, false)));
        assert_eq!(ways(json!([]), of(6), 2), Some((30, false)));
        assert_eq!(ways(json!([]), of(6), u64::MAX), Some((32, true)));
        assert_eq!(ways(json!([]), of(9), u64::MAX), None);
        assert_eq!(ways(json!([]), Some(json!({ "type": "string" })), u64::MAX), None);
    }

    #[test]
    fn tuples_are_told_apart_by_value_and_by_type() {
        let flag = json!({ "type": "boolean" });
        assert_eq!(ways(json!([flag, flag]), Some(json!(false)), 2), Some((2, false)));
        assert_eq!(ways(json!([flag, flag]), None, u64::MAX), Some((2, true)));
        assert_eq!(ways(json!([{ "type": "string" }, { "type": "integer" }]), None, 2), Some((1, false)));
        assert_eq!(ways(json!([{ "type": "string" }, { "type": "string" }]), None, 2), None);
    }
}
