//! What a schema does not accept, as a schema.
//!
//! Works on schemas that were written anew and are exact: what a relaxed schema does not accept would be too little.

use serde_json::{Map, Value, json};

use super::super::limits::NUMBER_MAX;
use super::distribution::distributed;
use super::pattern;
use super::values::type_of;
use super::written::{any_of, is_anything};

/// Schemas that may be looked at, and within each other.
const FUEL_MAX: usize = 2_000;
const DEPTH_MAX: usize = 32;

/// Stands beside what is narrowed, with all that the schema does not accept that it was written for. Only we read it.
pub(super) const NEGATION: &str = "(negation)";
/// Names of which every subset is looked at.
const NAMES_MAX: usize = 2;
/// The first items, among which one that is wrong stands.
const PLACES: usize = 4;

pub(super) struct Negation<'d> {
    definitions: &'d Map<String, Value>,
    /// Whether to negate what grows much thereby, or needs counts of properties, which fail beside some schemas.
    is_thorough: bool,
    is_in_items: bool,
    fuel: usize,
    depth: usize,
    /// Something was left out that the schema does not accept either.
    pub is_narrowed: bool,
}

impl<'d> Negation<'d> {
    pub(super) fn new(definitions: &'d Map<String, Value>) -> Self {
        Self { definitions, is_thorough: false, is_in_items: false, fuel: FUEL_MAX, depth: 0, is_narrowed: false }
    }

    /// Also negates what is worth it only if the schema would be refused otherwise.
    pub(super) fn thorough(self) -> Self {
        Self { is_thorough: true, ..self }
    }

    /// Returns a schema for everything that this one does not accept; `None` if there is none that we can write.
    pub(super) fn of(&mut self, schema: &Value) -> Option<Value> {
        self.fuel = self.fuel.checked_sub(1)?;
        let fields = match schema {
            Value::Bool(anything) => return Some(Value::Bool(!anything)),
            Value::Object(fields) => fields,
            _ => return None,
        };
        if let Some(negation) = fields.get(NEGATION) {
            return Some(negation.clone());
        }
        if self.depth >= DEPTH_MAX {
            return None;
        }
        self.depth += 1;
        // One keyword that is violated is enough.
        let each = fields.iter().map(|(keyword, value)| self.of_keyword(keyword, value, fields));
        let each = each.collect::<Option<Vec<_>>>();
        self.depth -= 1;
        each.map(any_of)
    }

    fn of_keyword(&mut self, keyword: &str, value: &Value, fields: &Map<String, Value>) -> Option<Value> {
        let count = || value.as_u64();
        let fewer = |kind: &str, max: &str, count: u64| match count.checked_sub(1) {
            Some(less) => json!({ "type": kind, max: less }),
            None => Value::Bool(false),
        };
        Some(match keyword {
            "type" => self.of_types(value),
            "const" => of_constants(std::slice::from_ref(value))?,
            "enum" => of_constants(value.as_array()?)?,
            "required" => {
                let names = value.as_array()?.iter().filter_map(Value::as_str);
                any_of(names.map(|name| json!({ "type": "object", "properties": { name: false } })).collect())
            }
            "minimum" => json!({ "type": "number", "exclusiveMaximum": value }),
            "maximum" => json!({ "type": "number", "exclusiveMinimum": value }),
            "exclusiveMinimum" => json!({ "type": "number", "maximum": value }),
            "exclusiveMaximum" => json!({ "type": "number", "minimum": value }),
            "minLength" => fewer("string", "maxLength", count()?),
            "maxLength" => json!({ "type": "string", "minLength": count()? + 1 }),
            "minItems" => fewer("array", "maxItems", count()?),
            "maxItems" => json!({ "type": "array", "minItems": count()? + 1 }),
            "minProperties" => fewer("object", "maxProperties", count()?),
            // More names than one that are free could not be counted.
            "maxProperties" if count()? == 0 => json!({ "type": "object", "minProperties": 1 }),
            "pattern" => json!({ "type": "string", "pattern": of_pattern(value.as_str()?)? }),
            "properties" => self.of_properties(value.as_object()?)?,
            "prefixItems" => self.of_tuple(value.as_array()?)?,
            "additionalProperties" | "items" if is_anything(value) => Value::Bool(false),
            "items" if value == &Value::Bool(false) => {
                let tuple = fields.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
                json!({ "type": "array", "minItems": tuple + 1 })
            }
            "items" => self.of_items(value, fields)?,
            "patternProperties" => self.of_patterns(value.as_object()?)?,
            "additionalProperties" => self.of_additional(value, fields)?,
            "anyOf" => {
                let each = value.as_array()?.iter().map(|schema| self.of(schema)).collect::<Option<_>>()?;
                distributed(each, self.definitions)
            }
            "allOf" => any_of(value.as_array()?.iter().map(|schema| self.of(schema)).collect::<Option<_>>()?),
            "$ref" => self.of(self.definitions.get(value.as_str()?.strip_prefix("#/$defs/")?)?)?,
            _ => return None,
        })
    }

    fn of_types(&mut self, types: &Value) -> Value {
        let names: Vec<&str> = match types {
            Value::Array(types) => types.iter().filter_map(Value::as_str).collect(),
            single => single.as_str().into_iter().collect(),
        };
        let are_numbers = names.contains(&"number") || names.contains(&"integer");
        // Numbers that are not whole are numbers as well, but have no keyword of their own.
        self.is_narrowed |= names.contains(&"integer") && !names.contains(&"number");
        let others = ["null", "boolean", "number", "string", "array", "object"];
        let others: Vec<&str> =
            others.into_iter().filter(|name| !(names.contains(name) || are_numbers && *name == "number")).collect();
        if others.is_empty() { Value::Bool(false) } else { json!({ "type": others }) }
    }

    fn of_properties(&mut self, properties: &Map<String, Value>) -> Option<Value> {
        let each = properties.iter().filter(|(_, schema)| !is_anything(schema)).map(|(name, schema)| {
            let negated = self.of(schema)?;
            Some(match negated {
                Value::Bool(false) => Value::Bool(false),
                negated => json!({ "type": "object", "properties": { name: negated }, "required": [name] }),
            })
        });
        Some(any_of(each.collect::<Option<_>>()?))
    }

    /// One of the first names that match is wrong, and there are no others.
    fn of_patterns(&mut self, patterns: &Map<String, Value>) -> Option<Value> {
        let mut ways = Vec::new();
        for (pattern, schema) in patterns.iter().filter(|(_, schema)| !is_anything(schema)) {
            if !self.is_thorough {
                return None;
            }
            self.is_narrowed = true;
            let wrong = json!({ pattern: self.of(schema)? });
            ways.push(json!({
                "type": "object", "patternProperties": wrong, "additionalProperties": false, "minProperties": 1
            }));
        }
        Some(any_of(ways))
    }

    /// There is a name that is not listed: beside none of those that are, or beside some.
    fn of_additional(&mut self, additional: &Value, fields: &Map<String, Value>) -> Option<Value> {
        let names = fields.get("properties").and_then(Value::as_object).map_or(Vec::new(), |map| map.keys().collect());
        if !self.is_thorough || names.len() > NAMES_MAX || fields.contains_key("patternProperties") {
            return None;
        }
        let wrong = self.of(additional)?;
        // Others that are not listed are right, but must be wrong as well.
        self.is_narrowed |= !is_anything(&wrong);
        let ways = (0usize..1 << names.len()).map(|chosen| {
            let is_there = |index: usize| chosen >> index & 1 == 1;
            let each = names.iter().enumerate();
            let properties: Map<String, Value> =
                each.clone().map(|(index, name)| ((*name).clone(), Value::Bool(is_there(index)))).collect();
            let required: Vec<&String> = each.filter(|(index, _)| is_there(*index)).map(|(_, name)| *name).collect();
            let count = required.len() + 1;
            json!({
                "type": "object", "properties": properties, "required": required, "additionalProperties": wrong,
                "minProperties": count
            })
        });
        Some(any_of(ways.collect()))
    }

    /// One of the first items behind the tuple is wrong.
    fn of_items(&mut self, items: &Value, fields: &Map<String, Value>) -> Option<Value> {
        let tuple = fields.get("prefixItems").and_then(Value::as_array).map_or(0, Vec::len);
        // Items in items would multiply.
        if !self.is_thorough || self.is_in_items {
            return None;
        }
        self.is_in_items = true;
        let wrong = self.of(items);
        self.is_in_items = false;
        let wrong = wrong?;
        self.is_narrowed = true;
        let ways = (tuple..tuple + PLACES).map(|index| {
            let mut prefix = vec![Value::Bool(true); index];
            prefix.push(wrong.clone());
            json!({ "type": "array", "minItems": index + 1, "prefixItems": prefix })
        });
        Some(any_of(ways.collect()))
    }

    fn of_tuple(&mut self, tuple: &[Value]) -> Option<Value> {
        let each = tuple.iter().enumerate().filter(|(_, schema)| !is_anything(schema)).map(|(index, schema)| {
            let mut prefix = vec![Value::Bool(true); index];
            prefix.push(self.of(schema)?);
            Some(json!({ "type": "array", "minItems": index + 1, "prefixItems": prefix }))
        });
        Some(any_of(each.collect::<Option<_>>()?))
    }
}

/// Everything but some constants.
fn of_constants(constants: &[Value]) -> Option<Value> {
    let is_beyond = |value: &Value| value.as_f64().is_some_and(|number| number.abs() > NUMBER_MAX);
    if constants.iter().any(|value| value.is_array() || value.is_object() || is_beyond(value)) {
        return None;
    }
    let of_type = |kind: &str| constants.iter().filter(move |value| type_of(value) == kind).collect::<Vec<_>>();
    let mut ways = vec![json!({ "type": ["array", "object"] })];
    if of_type("null").is_empty() {
        ways.push(json!({ "type": "null" }));
    }
    ways.extend(
        [true, false].into_iter().filter(|flag| !constants.contains(&json!(flag))).map(|flag| json!({ "const": flag })),
    );
    let words: Vec<&str> = constants.iter().filter_map(Value::as_str).collect();
    ways.push(match words.is_empty() {
        true => json!({ "type": "string" }),
        false => json!({ "type": "string", "pattern": pattern::all_but(&words)? }),
    });
    let mut numbers: Vec<f64> = constants.iter().filter_map(Value::as_f64).collect();
    numbers.sort_by(f64::total_cmp);
    numbers.dedup();
    let bound = |number: &f64| if number.fract() == 0.0 { json!(*number as i64) } else { json!(number) };
    match (numbers.first(), numbers.last()) {
        (Some(first), Some(last)) => {
            ways.push(json!({ "type": "number", "exclusiveMaximum": bound(first) }));
            ways.extend(numbers.windows(2).map(|pair| {
                json!({ "type": "number", "exclusiveMinimum": bound(&pair[0]), "exclusiveMaximum": bound(&pair[1]) })
            }));
            ways.push(json!({ "type": "number", "exclusiveMinimum": bound(last) }));
        }
        _ => ways.push(json!({ "type": "number" })),
    }
    Some(any_of(ways))
}

/// A pattern for what a pattern does not match: for a list of words, or of beginnings.
fn of_pattern(pattern: &str) -> Option<String> {
    let rest = pattern.strip_prefix('^')?;
    let (rest, is_whole) = match rest.strip_suffix('$') {
        Some(rest) if !rest.ends_with('\\') => (rest, true),
        _ => (rest, false),
    };
    let inner = rest.strip_prefix("(?:").or_else(|| rest.strip_prefix('(')).and_then(|rest| rest.strip_suffix(')'));
    let rest = match inner {
        Some(inner) if !inner.contains(['(', ')']) => inner,
        _ if rest.contains('|') => return None,
        _ => rest,
    };
    let words: Vec<String> = rest.split('|').map(literal).collect::<Option<_>>()?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    if is_whole { pattern::all_but(&words) } else { pattern::not_beginning_with(&words) }
}

/// The text that a pattern without any operators stands for.
fn literal(pattern: &str) -> Option<String> {
    let mut text = String::new();
    let mut rest = pattern.chars();
    while let Some(char) = rest.next() {
        match char {
            '\\' => text.push(rest.next().filter(|char| !char.is_alphanumeric())?),
            '.' | '*' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '^' | '$' | '|' => return None,
            plain => text.push(plain),
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn negated(schema: &Value) -> Option<Value> {
        Negation::new(&Map::new()).of(schema)
    }

    /// Samples of every type, which a schema or its negation must accept, and not both.
    fn samples() -> Vec<Value> {
        json!([
            null, true, false, 0, 1, 2.5, -3, 1000, "", "a", "ab", "abc", "x-a", [], [1], ["a"], [1, 2, 3], [true, "a"], {},
            {"a": 1}, {"a": "x"}, {"b": 1}, {"a": 1, "b": "x"}, {"a": null, "b": null, "c": null}
        ])
        .as_array()
        .cloned()
        .unwrap_or_default()
    }

    #[test]
    fn a_schema_or_its_negation_accepts_a_value_and_never_both() {
        for schema in [
            json!({}),
            json!({"type": "string"}),
            json!({"type": ["number", "null"]}),
            json!({"const": "ab"}),
            json!({"enum": ["a", "abc", 1, 2.5, true, null]}),
            json!({"required": ["a", "b"]}),
            json!({"minimum": 1, "exclusiveMaximum": 1000}),
            json!({"type": "string", "minLength": 1, "maxLength": 2}),
            json!({"minItems": 1, "maxItems": 2}),
            json!({"maxProperties": 0}),
            json!({"properties": {"a": {"type": "integer", "minimum": 0}, "b": true}, "required": ["a"]}),
            json!({"prefixItems": [{"const": 1}, {"minimum": 2}]}),
            json!({"prefixItems": [{"const": 1}], "items": false}),
            json!({"anyOf": [{"type": "string"}, {"type": "object", "required": ["a"]}]}),
            json!({"allOf": [{"type": "string"}, {"minLength": 2}]}),
            json!({"pattern": "^x-"}),
            json!({"pattern": "^(a|abc)$"}),
        ] {
            let negated = negated(&schema).unwrap_or_else(|| panic!("{schema}"));
            // The keyword has no negation for numbers that are not whole.
            let (one, other) =
                (jsonschema::validator_for(&schema).unwrap(), jsonschema::validator_for(&negated).unwrap());
            for value in samples() {
                let is_left_out = value == json!(2.5) && schema.to_string().contains("integer");
                assert!(
                    is_left_out || one.is_valid(&value) != other.is_valid(&value),
                    "{value} by {schema} and by {negated}"
                );
            }
        }
    }

    #[test]
    fn what_is_narrowed_accepts_nothing_that_the_schema_does() {
        for (schema, accepted) in [
            (json!({"items": {"type": "string"}}), json!([1])),
            (json!({"prefixItems": [true], "items": {"minimum": 3}}), json!([1, 2, 3])),
            (json!({"properties": {"a": true}, "additionalProperties": false}), json!({"b": 1})),
            (json!({"properties": {"a": {"const": 1}}, "additionalProperties": false}), json!({"a": 1, "b": "x"})),
            (json!({"additionalProperties": {"type": "string"}}), json!({"a": 1})),
            (json!({"patternProperties": {"^a": {"type": "string"}}}), json!({"a": 1})),
            (json!({NEGATION: {"type": "null"}, "type": "string"}), json!(null)),
        ] {
            let negated = Negation::new(&Map::new()).thorough().of(&schema).unwrap_or_else(|| panic!("{schema}"));
            let (one, other) =
                (jsonschema::validator_for(&schema).unwrap(), jsonschema::validator_for(&negated).unwrap());
            assert!(
                samples().iter().all(|value| !(one.is_valid(value) && other.is_valid(value))),
                "{schema} {negated}"
            );
            assert!(other.is_valid(&accepted), "{schema} {negated}");
        }
    }

    #[test]
    fn what_has_no_negation_is_known() {
        for schema in [
            json!({"pattern": "a"}),
            json!({"format": "date"}),
            json!({"multipleOf": 3}),
            json!({"items": {"type": "string"}}),
            json!({"additionalProperties": false}),
            json!({"patternProperties": {"^a": {"type": "string"}}}),
            json!({"const": [1]}),
            json!({"maxProperties": 3}),
        ] {
            assert_eq!(negated(&schema), None, "{schema}");
        }
        let definitions = Map::from_iter([("d0".to_owned(), json!({"properties": {"a": {"$ref": "#/$defs/d0"}}}))]);
        assert_eq!(Negation::new(&definitions).of(&json!({"$ref": "#/$defs/d0"})), None);
    }
}
