//! Schemas as those who write them for models mean them.
//!
//! To JSON Schema, an object may have any properties beside those that are listed. Whoever lists the arguments of a tool or the
//! fields of an answer wants no others made up; and what has no others is still what the schema accepts.

use serde_json::{Map, Value};

use super::limits::SCHEMA_DEPTH_MAX;

/// Keywords that look at an object from several places at once: closing one of them would shut out what another asks for.
const COMBINING: [&str; 8] = [
    "allOf",
    "not",
    "if",
    "dependentSchemas",
    "dependencies",
    "patternProperties",
    "unevaluatedProperties",
    "$dynamicRef",
];
/// Keywords with one schema, and with several.
const WITH_SCHEMA: [&str; 2] = ["items", "additionalProperties"];
const WITH_SCHEMAS: [&str; 6] = ["properties", "$defs", "definitions", "anyOf", "oneOf", "prefixItems"];

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
                fields.iter().any(|(key, value)| keywords.contains(&key.as_str()) || within(value))
            }
            _ => false,
        }
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
            key if WITH_SCHEMA.contains(&key) => close(value),
            key if WITH_SCHEMAS.contains(&key) => each(value),
            _ => value.clone(),
        };
        (key.clone(), value)
    };
    let mut fields: Map<String, Value> = fields.iter().map(inner).collect();
    let is_whole = ["anyOf", "oneOf", "$ref"].iter().all(|keyword| !fields.contains_key(*keyword));
    if fields.contains_key("properties") && !fields.contains_key("additionalProperties") && is_whole {
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
        });
        let expected = json!({
            "properties": {
                "a": { "properties": {}, "additionalProperties": false },
                "b": { "items": { "properties": { "c": {} }, "additionalProperties": false } },
            },
            "$defs": { "d": { "properties": { "e": true }, "additionalProperties": false } },
            "additionalProperties": false,
        });
        assert_eq!(closed(&open), expected);
    }

    #[test]
    fn what_is_said_about_others_stays() {
        for schema in [
            json!({ "type": "object" }),
            json!({ "properties": { "a": {} }, "additionalProperties": { "type": "string" } }),
            json!({ "properties": { "a": {} }, "allOf": [{ "properties": { "b": {} } }] }),
            json!({ "properties": { "a": {} }, "anyOf": [{ "required": ["b"] }] }),
            json!({ "properties": { "a": {} }, "patternProperties": { "^x": {} } }),
            json!({ "enum": [{ "properties": 1 }] }),
        ] {
            assert_eq!(closed(&schema), schema);
        }
    }
}
