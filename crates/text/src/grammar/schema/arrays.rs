//! Arrays: tuples, items that must be there, items that differ.

use serde_json::{Map, Value, json};

use super::super::limits::CONTAINS_WAYS_MAX;
use super::draft::Draft;
use super::negation::{NEGATION, Negation};
use super::written::{Written, any_of, is_anything};
use super::{GrammarError, Position, Rewriter, Strictness, values};

impl Rewriter<'_> {
    /// Until draft 2019-09, a list in `items` meant what `prefixItems` means now, and `additionalItems` the rest.
    pub(super) fn items(
        &mut self,
        value: &Value,
        fields: &Map<String, Value>,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        let rest = match value {
            Value::Array(_) if fields.contains_key("prefixItems") => {
                return Err(position.wrong("items", "must be a schema where prefixItems stands beside it"));
            }
            Value::Array(tuple) => {
                if !tuple.is_empty() {
                    let (schemas, costs) = self.schemas("items", value, position)?;
                    written.add_children(costs);
                    written.set("prefixItems", Value::Array(schemas));
                }
                fields.get("additionalItems").map(|rest| ("additionalItems", rest))
            }
            _ => Some(("items", value)),
        };
        if let Some((keyword, rest)) = rest {
            let (schema, cost) = self.schema(rest, &position.below(keyword, ""))?;
            written.add_children([cost]);
            written.set("items", schema);
        }
        Ok(())
    }

    /// An array that must contain something has it among its first items.
    pub(super) fn contains(
        &mut self,
        fields: &Map<String, Value>,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        let Some(value) = fields.get("contains") else { return Ok(()) };
        let counts_are_known = position.scope.draft >= Draft::Draft2019;
        let count = |keyword: &str| match fields.get(keyword).filter(|_| counts_are_known) {
            Some(count) => values::count(keyword, count, position).map(|count| count.as_u64()),
            None => Ok(None),
        };
        let (min, max) = (count("minContains")?.unwrap_or(1), count("maxContains")?);
        if min == 0 && max.is_none() {
            return Ok(());
        }
        let Some(schema) = self.exact("contains", value, position)? else { return Ok(()) };
        let ways = if is_anything(&schema) {
            let max = max.map_or(json!({}), |max| json!({ "maxItems": max }));
            Some(vec![json!({ "allOf": [{ "minItems": min }, max], "type": "array" })])
        } else {
            let others = max.map_or(Some(Value::Bool(true)), |_| self.negation(&schema));
            others.and_then(|others| ways(&schema, &others, min, max))
        };
        let Some(mut ways) = ways else {
            return self.relax(position.unenforceable("contains", "is not supported"));
        };
        if written.fields.get("type").is_none_or(|kind| kind != "array") {
            ways.push(json!({ "type": ["null", "boolean", "number", "string", "object"] }));
        }
        let mut ways = any_of(ways);
        if !is_anything(&schema) {
            match self.without_any(&schema, min, max) {
                Some(negation) if ways.is_object() => {
                    ways = json!({ "allOf": [ways], NEGATION: negation });
                    self.narrow_reversibly();
                }
                _ => self.narrow(),
            }
        }
        self.conjunct("contains", ways, position, written)
    }

    /// The arrays that do not contain what they must.
    fn without_any(&self, schema: &Value, min: u64, max: Option<u64>) -> Option<Value> {
        if min != 1 || max.is_some() {
            return None;
        }
        let mut negation = Negation::new(&self.definitions);
        let others = negation.of(schema)?;
        (!negation.is_narrowed).then(|| json!({ "type": "array", "items": others }))
    }

    /// Returns what a schema that is exact does not accept.
    pub(super) fn negation(&mut self, schema: &Value) -> Option<Value> {
        let mut negation = Negation::new(&self.definitions);
        if self.strictness == Strictness::Strict {
            negation = negation.thorough();
        }
        let negated = negation.of(schema);
        if negation.is_narrowed {
            self.narrow();
        }
        negated
    }
}

/// The arrays with `min` to `max` items of a kind, which stand among the first.
fn ways(schema: &Value, others: &Value, min: u64, max: Option<u64>) -> Option<Vec<Value>> {
    let mut all = Vec::new();
    if schema == &Value::Bool(false) && min > 0 || max.is_some_and(|max| max < min) {
        return Some(all);
    }
    for count in min..=max.unwrap_or(min) {
        let room = CONTAINS_WAYS_MAX.saturating_sub(all.len());
        let count = usize::try_from(count).ok().filter(|&count| count <= 4 && room > 0)?;
        let places = (count..).take_while(|&places| choices(places, count) <= room.min(8)).last()?;
        for chosen in chosen(places, count) {
            let len = chosen.last().map_or(0, |last| last + 1);
            let prefix = (0..len).map(|index| if chosen.contains(&index) { schema.clone() } else { others.clone() });
            let prefix: Vec<Value> = prefix.collect();
            let mut way = json!({ "type": "array", "minItems": len });
            if len > 0 {
                way["prefixItems"] = Value::Array(prefix);
            }
            if max.is_some() {
                way["items"] = others.clone();
            }
            all.push(way);
        }
    }
    Some(all)
}

/// In how many ways `count` of `places` can be chosen.
fn choices(places: usize, count: usize) -> usize {
    (0..count).fold(1, |ways, index| ways * (places - index) / (index + 1)) + if count == 0 { places } else { 0 }
}

/// All ways to choose, each in ascending order.
fn chosen(places: usize, count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let last = |last: usize| {
        chosen(last, count - 1).into_iter().map(move |mut chosen| {
            chosen.push(last);
            chosen
        })
    };
    (count - 1..places).flat_map(last).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_complete() {
        assert_eq!(chosen(3, 2), [[0, 1], [0, 2], [1, 2]]);
        assert_eq!(chosen(5, 0), [Vec::<usize>::new()]);
        assert_eq!(chosen(4, 1).len(), choices(4, 1));
        assert_eq!(chosen(6, 3).len(), choices(6, 3));
    }
}
