//! Whether two schemas have no value in common, as far as that is easy to see.

use std::cell::Cell;

use serde_json::{Map, Value};

use super::pattern;
use super::values::type_of;

const DEPTH_MAX: usize = 8;
/// What one list of options may take: schemas that are looked at, and patterns.
const SCHEMAS_MAX: usize = 50_000;
const PATTERNS_MAX: usize = 100;

/// Bits for the types; integers are numbers.
type Types = u8;
const TYPES: [&str; 6] = ["null", "boolean", "number", "string", "array", "object"];
const ALL: Types = 0b11_1111;
const NUMBER: Types = 1 << 2;
const STRING: Types = 1 << 3;
const ARRAY: Types = 1 << 4;
const OBJECT: Types = 1 << 5;

/// Compares schemas that were written anew, as long as there is fuel. If relaxed schemas are disjoint, so are the originals.
pub(super) struct Comparison<'d> {
    definitions: &'d Map<String, Value>,
    schemas_left: Cell<usize>,
    patterns_left: Cell<usize>,
}

impl<'d> Comparison<'d> {
    pub(super) fn new(definitions: &'d Map<String, Value>) -> Self {
        Self { definitions, schemas_left: Cell::new(SCHEMAS_MAX), patterns_left: Cell::new(PATTERNS_MAX) }
    }

    /// Does not look at patterns, which takes longest.
    pub(super) fn without_patterns(definitions: &'d Map<String, Value>) -> Self {
        Self { patterns_left: Cell::new(0), ..Self::new(definitions) }
    }

    /// Returns whether two schemas have no value in common, for all we can see.
    pub(super) fn are_disjoint(&self, one: &Value, other: &Value) -> bool {
        disjoint(one, other, self, 0)
    }

    fn take(left: &Cell<usize>) -> bool {
        left.replace(left.get().saturating_sub(1)) > 0
    }
}

fn disjoint(one: &Value, other: &Value, context: &Comparison, depth: usize) -> bool {
    if depth > DEPTH_MAX || !Comparison::take(&context.schemas_left) {
        return false;
    }
    let definitions = context.definitions;
    if one == &Value::Bool(false) || other == &Value::Bool(false) {
        return true;
    }
    let types = types(one, definitions, depth) & types(other, definitions, depth);
    if types == 0 {
        return true;
    }
    let (parts, others) = (parts(one, definitions, depth), parts(other, definitions, depth));
    let apart = |part: &Map<String, Value>, other: &Map<String, Value>| {
        are_apart(part, other, types, context, depth) || are_apart(other, part, types, context, depth)
    };
    if parts.iter().any(|part| others.iter().any(|other| apart(part, other))) {
        return true;
    }
    // All alternatives of one are disjoint from the other.
    let alternatives = |parts: &[&Map<String, Value>], from: &Value| {
        parts.iter().filter_map(|part| part.get("anyOf")?.as_array()).any(|options| {
            options.len() <= 64 && options.iter().all(|option| disjoint(option, from, context, depth + 1))
        })
    };
    alternatives(&parts, other) || alternatives(&others, one)
}

/// The schemas that must all hold where one does.
fn parts<'s>(schema: &'s Value, definitions: &'s Map<String, Value>, depth: usize) -> Vec<&'s Map<String, Value>> {
    let Value::Object(fields) = schema else { return Vec::new() };
    let mut all = vec![fields];
    if depth <= DEPTH_MAX {
        if let Some(target) = referred_to(fields, definitions) {
            all.extend(parts(target, definitions, depth + 1));
        }
        if let Some(Value::Array(schemas)) = fields.get("allOf") {
            all.extend(schemas.iter().flat_map(|schema| parts(schema, definitions, depth + 1)));
        }
    }
    all
}

fn referred_to<'s>(fields: &Map<String, Value>, definitions: &'s Map<String, Value>) -> Option<&'s Value> {
    definitions.get(fields.get("$ref")?.as_str()?.strip_prefix("#/$defs/")?)
}

fn types(schema: &Value, definitions: &Map<String, Value>, depth: usize) -> Types {
    let of_name = |name: &str| {
        let name = if name == "integer" { "number" } else { name };
        TYPES.iter().position(|known| *known == name).map_or(0, |index| 1 << index)
    };
    let of_value = |value: &Value| of_name(type_of(value));
    let Value::Object(fields) = schema else { return ALL };
    if depth > DEPTH_MAX {
        return ALL;
    }
    let mut all = ALL;
    for (keyword, value) in fields {
        all &= match (keyword.as_str(), value) {
            ("type", Value::String(name)) => of_name(name),
            ("type", Value::Array(names)) => {
                names.iter().filter_map(Value::as_str).fold(0, |types, name| types | of_name(name))
            }
            ("const", value) => of_value(value),
            ("enum", Value::Array(values)) => values.iter().fold(0, |types, value| types | of_value(value)),
            ("anyOf", Value::Array(options)) => {
                options.iter().fold(0, |all, option| all | types(option, definitions, depth + 1))
            }
            ("allOf", Value::Array(schemas)) => {
                schemas.iter().fold(ALL, |all, schema| all & types(schema, definitions, depth + 1))
            }
            ("$ref", _) => referred_to(fields, definitions).map_or(ALL, |target| types(target, definitions, depth + 1)),
            _ => ALL,
        };
    }
    all
}

/// Whether parts of two schemas contradict each other, for a value that can only have these types.
fn are_apart(
    one: &Map<String, Value>,
    other: &Map<String, Value>,
    types: Types,
    context: &Comparison,
    depth: usize,
) -> bool {
    if let (Some(values), Some(others)) = (constants(one), constants(other)) {
        return !values.iter().any(|value| others.iter().any(|other| are_equal(value, other)));
    }
    let number = |fields: &Map<String, Value>, keyword: &str| fields.get(keyword).and_then(Value::as_f64);
    let exceeds = |min: &str, max: &str| match (number(one, min), number(other, max)) {
        (Some(min), Some(max)) => min > max,
        _ => false,
    };
    match types {
        NUMBER => {
            let reaches = |min: &str, max: &str| match (number(one, min), number(other, max)) {
                (Some(min), Some(max)) => min >= max,
                _ => false,
            };
            exceeds("minimum", "maximum")
                || reaches("exclusiveMinimum", "maximum")
                || reaches("minimum", "exclusiveMaximum")
                || reaches("exclusiveMinimum", "exclusiveMaximum")
        }
        STRING => {
            exceeds("minLength", "maxLength")
                || match (constants(one), other.get("pattern").and_then(Value::as_str)) {
                    (Some(values), Some(pattern)) => {
                        let mut words = values.iter().filter_map(|value| value.as_str());
                        words.all(|word| {
                            Comparison::take(&context.patterns_left) && pattern::matches(pattern, word) == Ok(false)
                        })
                    }
                    _ => false,
                }
                || match (one.get("pattern"), other.get("pattern")) {
                    (Some(Value::String(one)), Some(Value::String(other))) => {
                        Comparison::take(&context.patterns_left) && pattern::are_disjoint(one, other).unwrap_or(false)
                    }
                    _ => false,
                }
        }
        ARRAY => {
            let required = number(one, "minItems").unwrap_or(0.0).max(number(other, "minItems").unwrap_or(0.0));
            let items = |fields: &Map<String, Value>, index: usize| {
                let tuple = fields.get("prefixItems").and_then(Value::as_array);
                tuple.and_then(|tuple| tuple.get(index)).or_else(|| fields.get("items")).cloned()
            };
            exceeds("minItems", "maxItems")
                || (0..(required as usize).min(16)).any(|index| match (items(one, index), items(other, index)) {
                    (Some(item), Some(of_other)) => disjoint(&item, &of_other, context, depth + 1),
                    _ => false,
                })
        }
        OBJECT => {
            let required = one.get("required").and_then(Value::as_array);
            exceeds("minProperties", "maxProperties")
                || required.into_iter().flatten().filter_map(Value::as_str).any(|name| {
                    let anything = Value::Bool(true);
                    let of_one = property(one, name).unwrap_or(&anything);
                    let of_other = property(other, name).unwrap_or(&anything);
                    disjoint(of_one, of_other, context, depth + 1)
                })
        }
        _ => false,
    }
}

/// What a schema says about a property.
fn property<'s>(fields: &'s Map<String, Value>, name: &str) -> Option<&'s Value> {
    if let Some(schema) = fields.get("properties").and_then(|properties| properties.get(name)) {
        return Some(schema);
    }
    // A pattern may match the name, and says something else.
    if fields.contains_key("patternProperties") { None } else { fields.get("additionalProperties") }
}

fn constants(fields: &Map<String, Value>) -> Option<Vec<&Value>> {
    match (fields.get("const"), fields.get("enum")) {
        (Some(value), _) => Some(vec![value]),
        (None, Some(Value::Array(values))) => Some(values.iter().collect()),
        _ => None,
    }
}

fn are_equal(one: &Value, other: &Value) -> bool {
    match (one.as_f64(), other.as_f64()) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(one: Value, other: Value, expected: bool) {
        let definitions = Map::from_iter([
            ("d0".to_owned(), json!({"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]})),
            ("d1".to_owned(), json!({"allOf": [{"$ref": "#/$defs/d1"}]})),
        ]);
        let comparison = Comparison::new(&definitions);
        assert_eq!(comparison.are_disjoint(&one, &other), expected, "{one} {other}");
        assert_eq!(comparison.are_disjoint(&other, &one), expected, "{other} {one}");
    }

    #[test]
    fn schemas_without_a_common_value_are_found() {
        check(json!({"type": "string"}), json!({"type": ["integer", "null"]}), true);
        check(json!({"enum": ["a", 1]}), json!({"enum": ["b", 2]}), true);
        check(json!({"type": "number", "maximum": 3}), json!({"type": "integer", "minimum": 4}), true);
        check(json!({"type": "number", "maximum": 3}), json!({"exclusiveMinimum": 3, "type": "number"}), true);
        check(json!({"type": "string", "maxLength": 3}), json!({"type": "string", "minLength": 4}), true);
        check(json!({"type": "string", "pattern": "^a"}), json!({"type": "string", "pattern": "^b"}), true);
        check(json!({"type": "array", "maxItems": 1}), json!({"type": "array", "minItems": 2}), true);
        let kind = |kind: &str| json!({"type": "object", "properties": {"k": {"const": kind}}, "required": ["k"]});
        check(kind("a"), kind("b"), true);
        check(json!({"$ref": "#/$defs/d0"}), kind("b"), true);
        check(
            json!({"$ref": "#/$defs/d0"}),
            json!({"type": "object", "properties": {}, "additionalProperties": false}),
            true,
        );
        check(json!({"anyOf": [kind("a"), kind("b")]}), json!({"allOf": [kind("c")]}), true);
    }

    #[test]
    fn schemas_that_may_overlap_are_not_called_disjoint() {
        check(json!({"type": "integer"}), json!({"type": "number"}), false);
        check(json!({"enum": [1]}), json!({"enum": [1.0]}), false);
        check(json!({"required": ["a"]}), json!({"required": ["b"]}), false);
        check(json!({"properties": {"k": {"const": 1}}}), json!({"properties": {"k": {"const": 2}}}), false);
        // Neither asks for an object.
        check(
            json!({"properties": {"k": {"const": 1}}, "required": ["k"]}),
            json!({"properties": {"k": {"const": 2}}, "required": ["k"]}),
            false,
        );
        check(json!({"$ref": "#/$defs/d1"}), json!({"type": "null"}), false);
        check(json!({"maximum": 3}), json!({"minimum": 4}), false);
    }
}
