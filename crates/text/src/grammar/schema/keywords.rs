//! What each keyword means to us.

use serde_json::{Map, Value};

use super::values::{self, Check};
use super::{GrammarError, Position};

pub(super) enum Use {
    /// Says nothing about which values are valid.
    Annotation,
    /// `$schema`.
    Draft,
    /// Enforced; has a plain value, which is checked.
    Literal(Check),
    /// Enforced; holds one schema, or a list or a table of them.
    Schema,
    SchemasByName,
    Items,
    Tuple,
    Alternatives,
    All,
    Reference,
    /// Part of JSON Schema, but not enforced.
    Unsupported,
    /// `false` is what goes without saying.
    VacuousUnlessTrue,
    Unknown,
}

pub(super) fn usage(keyword: &str) -> Use {
    match keyword {
        "title" | "description" | "default" | "examples" | "deprecated" | "readOnly" | "writeOnly" | "$comment"
        | "$id" | "$anchor" | "$defs" | "definitions" | "contentMediaType" | "contentEncoding" | "contentSchema" => {
            Use::Annotation
        }
        "$schema" => Use::Draft,
        "type" => Use::Literal(values::types),
        "const" => Use::Literal(values::constant),
        "enum" => Use::Literal(values::constants),
        "required" => Use::Literal(values::names),
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => Use::Literal(values::number),
        "multipleOf" => Use::Literal(values::positive_number),
        "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
            Use::Literal(values::count)
        }
        "pattern" => Use::Literal(values::pattern),
        "format" => Use::Literal(values::format),
        "properties" | "patternProperties" => Use::SchemasByName,
        "additionalProperties" => Use::Schema,
        "items" => Use::Items,
        "prefixItems" => Use::Tuple,
        "anyOf" | "oneOf" => Use::Alternatives,
        "allOf" => Use::All,
        "$ref" => Use::Reference,
        "uniqueItems" => Use::VacuousUnlessTrue,
        // Read together with `items`.
        "additionalItems" => Use::Annotation,
        "not"
        | "if"
        | "then"
        | "else"
        | "contains"
        | "minContains"
        | "maxContains"
        | "propertyNames"
        | "dependencies"
        | "dependentRequired"
        | "dependentSchemas"
        | "unevaluatedItems"
        | "unevaluatedProperties"
        | "$dynamicRef"
        | "$dynamicAnchor"
        | "$recursiveRef"
        | "$recursiveAnchor"
        | "$vocabulary" => Use::Unsupported,
        _ => Use::Unknown,
    }
}

/// How many types a value may have as far as `type` says; one if nothing depends on it.
pub(super) fn possible_types(fields: &Map<String, Value>) -> usize {
    let depends_on_type = |keyword: &String| match usage(keyword) {
        Use::Literal(_) => !["type", "const", "enum"].contains(&keyword.as_str()),
        Use::Schema | Use::SchemasByName | Use::Items | Use::Tuple => true,
        _ => false,
    };
    match fields.get("type") {
        Some(Value::Array(types)) => types.len().max(1),
        None if fields.keys().any(depends_on_type) => 6,
        _ => 1,
    }
}

const DRAFTS: [&str; 4] = [
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema",
    "http://json-schema.org/draft-07/schema",
    "http://json-schema.org/draft-06/schema",
];

pub(super) fn check_draft(value: &Value, position: &Position) -> Result<(), GrammarError> {
    let is_known = value.as_str().is_some_and(|draft| DRAFTS.contains(&draft.trim_end_matches('#')));
    if is_known { Ok(()) } else { Err(position.error("$schema", format!("must be one of {}", DRAFTS.join(", ")))) }
}

/// Keywords that are enforced alone but not together.
pub(super) fn check_combinations(fields: &Map<String, Value>, position: &Position) -> Result<(), GrammarError> {
    let has_list = fields.get("items").is_some_and(Value::is_array);
    if has_list && fields.contains_key("prefixItems") {
        return Err(position.error("items", "must be a schema where prefixItems stands beside it"));
    }
    if fields.contains_key("additionalItems") && fields.contains_key("prefixItems") {
        return Err(position.error("additionalItems", "has no meaning beside prefixItems; use items"));
    }
    // Names that the schema does not list may come twice; they would count twice while they are written, but a reader
    // of the result counts one.
    let required = fields.get("required").and_then(Value::as_array).map_or(0, Vec::len);
    let wanted = fields.get("minProperties").and_then(Value::as_f64).unwrap_or(0.0);
    let names_are_free = fields.get("additionalProperties") != Some(&Value::Bool(false))
        || fields.get("patternProperties").is_some_and(|patterns| patterns != &Value::Object(Map::new()));
    if wanted > required as f64 + 1.0 && names_are_free {
        let problem = "cannot be enforced where names are free; list them in properties and required";
        return Err(position.error("minProperties", problem));
    }
    Ok(())
}
