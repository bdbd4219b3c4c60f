//! Schemas as those who write them for models mean them.
//!
//! To JSON Schema, an object may have any properties beside those that are listed. Whoever lists the arguments of a tool or the
//! fields of an answer wants no others made up; and what has no others is still what the schema accepts.

use serde_json::{Map, Value};

use super::limits::SCHEMA_DEPTH_MAX;

/// Keywords that look at an object from several places at once: closing one of them would shut out what another asks for.
const COMBINING: [&str; 9] = [
    "allOf",
    "not",
    "if",
    "dependentSchemas",
    "patternProperties",
    "propertyNames",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
];
/// Keywords that speak of the same object as a reference or an alternative beside them.
const BESIDE: [&str; 5] = ["properties", "required", "additionalProperties", "minProperties", "dependentRequired"];
/// Keywords with one schema, and with several.
const WITH_SCHEMA: [&str; 3] = ["items", "additionalItems", "additionalProperties"];
const WITH_SCHEMAS: [&str; 7] = ["properties", "$defs", "definitions", "anyOf", "oneOf", "prefixItems", "items"];

/// The same schema, in which objects that list their properties have no others unless they say so.
pub fn closed(schema: &Value) -> Value {
    if mentions(schema, &COMBINING, 0) { schema.clone() } else { close(schema) }
}

/// Returns whether one of the keywords occurs anywhere, or the schema is nested too deep to look: then it is refused anyway.
fn mentions(value: &Value, keywords: &[&str], depth: usize) -> bool {
    let within = |value: &Value| mentions(value, keywords, depth + 1);
    depth > SCHEMA_DEPTH_MAX
        || match value {
            Value::Array(items) => items.iter().any(within),
            Value::Object(fields) => {
                looks_twice(fields)
                    || fields.iter().any(|(key, value)| keywords.contains(&key.as_str()) || within(value))
            }
            _ => false,
        }
}

/// Returns whether an object is described beside a reference or alternatives that describe it as well, or where a property
/// asks for others by a schema.
fn looks_twice(fields: &Map<String, Value>) -> bool {
    let refers = ["$ref", "anyOf", "oneOf"].iter().filter(|keyword| fields.contains_key(**keyword)).count();
    let describes = |value: &Value| value.get("properties").is_some() || value.get("$ref").is_some();
    let alternatives = ["anyOf", "oneOf"].iter().filter_map(|keyword| fields.get(*keyword)?.as_array()).flatten();
    let has_beside = BESIDE.iter().any(|keyword| fields.contains_key(*keyword));
    let by_schema = fields.get("dependencies").and_then(Value::as_object);
    refers > 1
        || has_beside && (fields.contains_key("$ref") || alternatives.into_iter().any(describes))
        || by_schema.is_some_and(|dependencies| dependencies.values().any(|value| !value.is_array()))
}

/// Returns whether an object's properties are listed, all those included that must be there.
fn lists_what_it_asks_for(fields: &Map<String, Value>) -> bool {
    let Some(Value::Object(properties)) = fields.get("properties") else { return false };
    let dependencies =
        ["dependentRequired", "dependencies"].iter().filter_map(|keyword| fields.get(*keyword)?.as_object());
    let lists =
        fields.get("required").into_iter().chain(dependencies.flat_map(Map::values)).filter_map(Value::as_array);
    lists.flatten().filter_map(Value::as_str).all(|name| properties.contains_key(name))
}

/// Recurses no deeper than the check before.
fn close(schema: &Value) -> Value {
    let Value::Object(fields) = schema else { return schema.clone() };
    let each = |values: &Value| match values {
        Value::Array(values) => values.iter().map(close).collect(),
        Value::Object(values) => Value::Object(values.iter().map(|(key, value)| (key.clone(), close(value))).collect()),
        other => other.clone(),
    };
    let inner = |(key, value): (&String, &Value)| {
        let value = match key.as_str() {
            key if WITH_SCHEMA.contains(&key) && !value.is_array() => close(value),
            key if WITH_SCHEMAS.contains(&key) => each(value),
            _ => value.clone(),
        };
        (key.clone(), value)
    };
    let mut fields: Map<String, Value> = fields.iter().map(inner).collect();
    let is_whole = ["anyOf", "oneOf", "$ref"].iter().all(|keyword| !fields.contains_key(*keyword));
    if lists_what_it_asks_for(&fields) && !fields.contains_key("additionalProperties") && is_whole {
        fields.insert("additionalProperties".to_owned(), Value::Bool(false));
    }
    Value::Object(fields)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_have_the_properties_that_are_listed() {
        let open = json!({
            "properties": { "a": { "properties": {} }, "b": { "items": { "properties": { "c": {} } } } },
            "$defs": { "d": { "properties": { "e": true } } },
            "definitions": { "t": { "items": [{ "properties": { "f": {} } }], "additionalItems": { "properties": {} } } },
            "dependencies": { "a": ["b"] },
            "required": ["a"],
        });
        let expected = json!({
            "properties": {
                "a": { "properties": {}, "additionalProperties": false },
                "b": { "items": { "properties": { "c": {} }, "additionalProperties": false } },
            },
            "$defs": { "d": { "properties": { "e": true }, "additionalProperties": false } },
            "definitions": { "t": {
                "items": [{ "properties": { "f": {} }, "additionalProperties": false }],
                "additionalItems": { "properties": {}, "additionalProperties": false },
            } },
            "dependencies": { "a": ["b"] },
            "required": ["a"],
            "additionalProperties": false,
        });
        assert_eq!(closed(&open), expected);
    }

    #[test]
    fn what_is_said_about_others_stays() {
        for schema in [
            json!({ "type": "object" }),
            json!({ "properties": { "a": {} }, "additionalProperties": { "type": "string" } }),
            json!({ "properties": { "a": {} }, "required": ["b"] }),
            json!({ "properties": { "a": {} }, "dependentRequired": { "a": ["b"] } }),
            json!({ "properties": { "a": {} }, "allOf": [{ "properties": { "b": {} } }] }),
            json!({ "properties": { "a": {} }, "anyOf": [{ "required": ["b"] }] }),
            json!({ "properties": { "a": {} }, "patternProperties": { "^x": {} } }),
            json!({ "enum": [{ "properties": 1 }] }),
            // What is beside would be shut out.
            json!({ "properties": { "a": {} }, "required": ["a"], "anyOf": [{ "properties": { "b": {} } }] }),
            json!({ "$defs": { "d": { "properties": { "a": {} } } }, "$ref": "#/$defs/d", "required": ["b"] }),
            json!({ "properties": { "a": {} }, "dependencies": { "a": { "properties": { "b": {} } } } }),
            json!({ "anyOf": [{ "properties": { "a": {} } }], "oneOf": [{ "required": ["b"] }] }),
        ] {
            assert_eq!(closed(&schema), schema);
        }
    }
}
