//! What each keyword means to us.

use serde_json::{Map, Value};

use super::values::{self, Check};

pub(super) enum Use {
    /// Says nothing about which values are valid.
    Annotation,
    /// Not part of JSON Schema, so an annotation too.
    Unknown,
    /// An annotation that must be a string.
    Text,
    /// Has a plain value, which is checked.
    Literal(Check),
    /// `exclusiveMinimum` and `exclusiveMaximum`, which were booleans once.
    Limit,
    /// `multipleOf`, which can say less than it does where only integers are asked for.
    Multiple,
    Pattern,
    Format,
    /// Holds one schema, or a list or a table of them.
    Schema,
    SchemasByName,
    Items,
    Tuple,
    Alternatives,
    Exclusive,
    All,
    Reference,
    PropertyNames,
    /// Rewritten once the others are written.
    ReadWithOthers,
}

pub(super) fn usage(keyword: &str) -> Use {
    match keyword {
        "title" | "description" | "default" | "examples" | "deprecated" | "readOnly" | "writeOnly" | "$comment"
        | "id" | "$id" | "$anchor" | "$defs" | "definitions" | "contentMediaType" | "contentEncoding"
        | "contentSchema" | "$dynamicAnchor" | "$recursiveAnchor" | "$vocabulary" => Use::Annotation,
        "$schema" => Use::Text,
        "type" => Use::Literal(values::types),
        "const" => Use::Literal(values::constant),
        "enum" => Use::Literal(values::constants),
        "required" => Use::Literal(values::names),
        "minimum" | "maximum" => Use::Literal(values::number),
        "exclusiveMinimum" | "exclusiveMaximum" => Use::Limit,
        "multipleOf" => Use::Multiple,
        "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => {
            Use::Literal(values::count)
        }
        "pattern" => Use::Pattern,
        "format" => Use::Format,
        "properties" | "patternProperties" => Use::SchemasByName,
        "additionalProperties" => Use::Schema,
        "items" => Use::Items,
        "prefixItems" => Use::Tuple,
        "anyOf" => Use::Alternatives,
        "oneOf" => Use::Exclusive,
        "allOf" => Use::All,
        "$ref" | "$dynamicRef" | "$recursiveRef" => Use::Reference,
        "propertyNames" => Use::PropertyNames,
        "additionalItems"
        | "not"
        | "if"
        | "then"
        | "else"
        | "contains"
        | "minContains"
        | "maxContains"
        | "uniqueItems"
        | "dependencies"
        | "dependentRequired"
        | "dependentSchemas"
        | "unevaluatedItems"
        | "unevaluatedProperties" => Use::ReadWithOthers,
        _ => Use::Unknown,
    }
}

/// Returns whether a keyword says something about which values are valid.
pub(super) fn constrains(keyword: &str) -> bool {
    !matches!(usage(keyword), Use::Annotation | Use::Unknown)
}

/// How many types a value may have as far as `type` says; one if nothing depends on it.
pub(super) fn possible_types(fields: &Map<String, Value>) -> usize {
    let depends_on_type = |keyword: &String| match usage(keyword) {
        Use::Literal(_) => !["type", "const", "enum"].contains(&keyword.as_str()),
        Use::Limit
        | Use::Multiple
        | Use::Pattern
        | Use::Format
        | Use::Schema
        | Use::SchemasByName
        | Use::Items
        | Use::Tuple => true,
        _ => false,
    };
    match fields.get("type") {
        Some(Value::Array(types)) => types.len().max(1),
        None if fields.keys().any(depends_on_type) => 6,
        _ => 1,
    }
}
