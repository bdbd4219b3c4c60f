//! Schemas that must all hold, as a list of ways in which they can.
//!
//! Options that exclude each other are full of conditions that contradict each other: a name that must be there in one
//! and must not in another. Multiplied out blindly they would grow to thousands of ways; most of them are empty.

use serde_json::{Map, Value};

use super::disjoint::Comparison;
use super::written::{all_of, any_of, is_anything};

/// Ways that are looked at; beyond that, schemas are left as they are.
const WAYS_MAX: usize = 64;

/// Returns a schema that accepts what all of these do.
pub(super) fn distributed(schemas: Vec<Value>, definitions: &Map<String, Value>) -> Value {
    match ways(&schemas, definitions) {
        Some(ways) => any_of(ways.into_iter().map(all_of).collect()),
        None => all_of(schemas),
    }
}

/// Each way is a list of schemas that must all hold.
type Ways = Vec<Vec<Value>>;

fn ways(schemas: &[Value], definitions: &Map<String, Value>) -> Option<Ways> {
    let comparison = Comparison::without_patterns(definitions);
    let mut all: Ways = vec![Vec::new()];
    for schema in schemas {
        let options = options(schema)?;
        let mut next: Ways = Vec::new();
        for way in all {
            // Where one of the options holds anyway, the others add nothing.
            if options.iter().any(|option| option.iter().all(|part| way.contains(part))) {
                next.push(way);
                continue;
            }
            let holds_with = |option: &&Vec<Value>| {
                !option.iter().any(|part| way.iter().any(|other| comparison.are_disjoint(part, other)))
            };
            next.extend(options.iter().filter(holds_with).map(|option| joined(&way, option)));
            if next.len() > WAYS_MAX {
                return None;
            }
        }
        all = without_special_cases(next);
    }
    Some(all)
}

fn joined(way: &[Value], option: &[Value]) -> Vec<Value> {
    let new = option.iter().filter(|part| !way.contains(part));
    way.iter().chain(new).cloned().collect()
}

/// Leaves out every way that asks for all that another one does.
fn without_special_cases(ways: Ways) -> Ways {
    let is_special = |index: usize| {
        ways.iter().enumerate().any(|(other, wider)| {
            let asks_more = wider.len() < ways[index].len() || wider.len() == ways[index].len() && other < index;
            other != index && asks_more && wider.iter().all(|part| ways[index].contains(part))
        })
    };
    let kept: Vec<bool> = (0..ways.len()).map(|index| !is_special(index)).collect();
    ways.into_iter().zip(kept).filter_map(|(way, is_kept)| is_kept.then_some(way)).collect()
}

/// The ways in which one schema can hold, as far as alternatives stand at its top.
fn options(schema: &Value) -> Option<Ways> {
    let only = |keyword: &str| match schema {
        Value::Object(fields) if fields.len() == 1 => fields.get(keyword).and_then(Value::as_array),
        _ => None,
    };
    if is_anything(schema) {
        return Some(vec![Vec::new()]);
    }
    if schema == &Value::Bool(false) {
        return Some(Vec::new());
    }
    if let Some(alternatives) = only("anyOf") {
        let mut all = Ways::new();
        for alternative in alternatives {
            all.extend(options(alternative)?);
        }
        return (all.len() <= WAYS_MAX).then_some(all);
    }
    if let Some(parts) = only("allOf") {
        let mut all: Ways = vec![Vec::new()];
        for part in parts {
            let more = options(part)?;
            all = all.iter().flat_map(|way| more.iter().map(|option| joined(way, option))).collect();
            if all.len() > WAYS_MAX {
                return None;
            }
        }
        return Some(all);
    }
    Some(vec![vec![schema.clone()]])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_contradicts_itself_or_says_nothing_new_is_left_out() {
        let with = |name: &str| json!({ "type": "object", "required": [name] });
        let without = |name: &str| json!({ "type": "object", "properties": { name: false } });
        let check = |schemas: Vec<Value>, expected: Value| {
            assert_eq!(distributed(schemas.clone(), &Map::new()), expected, "{schemas:?}");
        };
        check(
            vec![with("a"), json!({ "anyOf": [without("a"), with("b")] })],
            json!({ "allOf": [with("a"), with("b")] }),
        );
        check(vec![with("a"), json!({ "anyOf": [with("a"), with("b")] })], with("a"));
        check(vec![with("a"), without("a")], json!(false));
        check(vec![json!({ "anyOf": [with("a"), json!({ "allOf": [with("a"), with("b")] })] })], with("a"));
        check(vec![json!(true), json!({})], json!(true));
    }

    #[test]
    fn too_many_ways_are_left_as_they_are() {
        let either =
            |name: String| json!({ "anyOf": [{ "required": [name] }, { "minProperties": 7, "required": [name] }] });
        let many: Vec<Value> = (0..12).map(|index| either(format!("n{index}"))).collect();
        assert_eq!(distributed(many.clone(), &Map::new()), all_of(many));
    }
}
