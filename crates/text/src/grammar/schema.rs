//! JSON Schema, checked and brought into the form that llguidance enforces completely.
//!
//! llguidance drops keywords that it does not know, follows no anchors and reads references literally. So a schema is
//! written anew: every keyword is either one that is enforced, or an annotation and left out, or an error that names
//! it. Whatever references point to is moved to `$defs` under a plain name. Nothing is ever fetched.

mod cost;
mod keywords;
mod references;
mod values;

use std::collections::HashMap;

use llguidance::JsonCompileOptions;
use serde_json::{Map, Value, json};

use super::GrammarError;
use super::limits::{PATTERN_PROPERTIES_MAX, SCHEMA_DEPTH_MAX, SCHEMA_NODES_MAX, WHITESPACE_MAX};
use super::regex;
use cost::Cost;
use keywords::Use;

const WHAT: &str = "JSON schema";

/// The schema for llguidance, with its options.
pub(super) fn prepared(schema: &Value) -> Result<Value, GrammarError> {
    check_depth(schema)?;
    let mut rewriter =
        Rewriter { root: schema, definitions: Map::new(), names: HashMap::new(), costs: HashMap::new(), patterns: 0 };
    let (written, _) = rewriter.schema(schema, &Position::root())?;
    let definitions = rewriter.definitions;
    let mut root = match written {
        Value::Bool(false) => return Err(Position::root().schema_error("is false: nothing satisfies it")),
        Value::Object(fields) => Value::Object(fields),
        _ => json!({}),
    };
    if !definitions.is_empty() {
        root["$defs"] = Value::Object(definitions);
    }
    let options = JsonCompileOptions {
        whitespace_pattern: Some(format!(r"[\x20\x0A\x0D\x09]{{1,{WHITESPACE_MAX}}}")),
        // With \u, a name could be spelled in two ways, and the second would escape what is said about the first.
        json_allowed_escapes: Some("nrbtf\\\"".to_owned()),
        ..Default::default()
    };
    options.apply_to(&mut root);
    Ok(root)
}

/// Refuses what is nested too deep, without recursing.
pub(crate) fn check_depth(value: &Value) -> Result<(), GrammarError> {
    let mut open = vec![(value, 1)];
    while let Some((value, depth)) = open.pop() {
        if depth > SCHEMA_DEPTH_MAX {
            return Err(GrammarError::TooDeep { what: WHAT, max: SCHEMA_DEPTH_MAX });
        }
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(fields) => open.extend(fields.values().map(|field| (field, depth + 1))),
            _ => {}
        }
    }
    Ok(())
}

/// Where a keyword occurs in schemas; a few places are enough to find it.
pub(super) fn places_of(keyword: &str, schemas: Vec<&Value>) -> Vec<String> {
    const SHOWN_MAX: usize = 3;
    let mut found = Vec::new();
    let mut open: Vec<(String, &Value)> = schemas.into_iter().map(|schema| ("#".to_owned(), schema)).collect();
    while let Some((pointer, value)) = open.pop() {
        match value {
            Value::Array(items) => {
                open.extend(items.iter().enumerate().map(|(index, item)| (format!("{pointer}/{index}"), item)));
            }
            Value::Object(fields) => {
                if fields.contains_key(keyword) && found.len() < SHOWN_MAX {
                    found.push(pointer.clone());
                }
                open.extend(fields.iter().map(|(name, field)| (format!("{pointer}/{}", escaped(name)), field)));
            }
            _ => {}
        }
    }
    found
}

/// A key as part of a JSON pointer.
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// Where in the schema we are.
#[derive(Clone)]
struct Position {
    pointer: String,
    /// Subschemas on the way here, references followed.
    depth: usize,
    /// Below a `$id`, where references mean something else.
    is_embedded: bool,
}

impl Position {
    fn root() -> Self {
        Self { pointer: "#".to_owned(), depth: 1, is_embedded: false }
    }

    fn below(&self, keyword: &str, key: impl std::fmt::Display) -> Self {
        let key = escaped(&key.to_string());
        let slash = if key.is_empty() && keyword != "properties" { "" } else { "/" };
        Self { pointer: format!("{}/{keyword}{slash}{key}", self.pointer), depth: self.depth + 1, ..*self }
    }

    fn error(&self, keyword: &str, problem: impl Into<String>) -> GrammarError {
        GrammarError::Keyword { keyword: keyword.to_owned(), pointer: self.pointer.clone(), problem: problem.into() }
    }

    fn schema_error(&self, problem: &str) -> GrammarError {
        GrammarError::Schema { pointer: self.pointer.clone(), problem: problem.to_owned() }
    }
}

struct Rewriter<'s> {
    root: &'s Value,
    definitions: Map<String, Value>,
    /// Names of definitions by the pointers that refer to them.
    names: HashMap<String, String>,
    costs: HashMap<String, Cost>,
    patterns: usize,
}

/// A schema as it is written anew.
struct Written {
    fields: Map<String, Value>,
    cost: Cost,
}

impl Written {
    fn set(&mut self, keyword: &str, value: Value) {
        self.fields.insert(keyword.to_owned(), value);
    }

    fn add_children(&mut self, costs: impl IntoIterator<Item = Cost>) {
        self.cost = costs.into_iter().fold(self.cost, Cost::with_child);
    }
}

impl Rewriter<'_> {
    fn schema(&mut self, schema: &Value, position: &Position) -> Result<(Value, Cost), GrammarError> {
        if position.depth > SCHEMA_DEPTH_MAX {
            return Err(GrammarError::TooDeep { what: WHAT, max: SCHEMA_DEPTH_MAX });
        }
        let fields = match schema {
            Value::Bool(_) => return Ok((schema.clone(), Cost::ANYTHING)),
            Value::Object(fields) => fields,
            _ => return Err(position.schema_error("must be an object or a boolean")),
        };
        let mut position = position.clone();
        position.is_embedded |= position.pointer != "#" && fields.contains_key("$id");
        keywords::check_combinations(fields, &position)?;
        let cost = Cost::of_types(keywords::possible_types(fields));
        let mut written = Written { fields: Map::new(), cost };
        for (keyword, value) in fields {
            self.keyword(keyword, value, fields, &position, &mut written)?;
        }
        if written.cost.nodes() > SCHEMA_NODES_MAX {
            return Err(position.schema_error("combines too many alternatives; write them out or use fewer"));
        }
        Ok((Value::Object(written.fields), written.cost))
    }

    fn keyword(
        &mut self,
        keyword: &str,
        value: &Value,
        fields: &Map<String, Value>,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        match keywords::usage(keyword) {
            Use::Annotation => {}
            Use::Draft => keywords::check_draft(value, position)?,
            Use::Literal(check) => {
                let value = check(keyword, value, position)?;
                written.cost = written.cost.with_literal(keyword, &value);
                written.set(keyword, value);
            }
            Use::Schema => {
                let (schema, cost) = self.schema(value, &position.below(keyword, ""))?;
                written.add_children([cost]);
                written.set(keyword, schema);
            }
            Use::SchemasByName => self.schemas_by_name(keyword, value, position, written)?,
            Use::Items => self.items(value, fields, position, written)?,
            Use::Tuple => {
                let (schemas, costs) = self.schemas(keyword, value, position)?;
                written.add_children(costs);
                written.set(keyword, schemas);
            }
            Use::Alternatives => {
                let (schemas, costs) = self.schemas(keyword, value, position)?;
                written.cost = written.cost.and(costs.into_iter().reduce(Cost::or).unwrap_or(Cost::ANYTHING));
                written.set(keyword, schemas);
            }
            Use::All => {
                let (schemas, costs) = self.schemas(keyword, value, position)?;
                written.cost = costs.into_iter().fold(written.cost, Cost::and);
                written.set(keyword, schemas);
            }
            Use::Reference => {
                let (reference, cost) = self.reference(value, position)?;
                written.cost = written.cost.and(cost.referred_to());
                written.set(keyword, reference);
            }
            Use::VacuousUnlessTrue if value == &Value::Bool(false) => {}
            Use::VacuousUnlessTrue | Use::Unsupported => return Err(position.error(keyword, "is not supported")),
            Use::Unknown => {
                let (keyword, pointer) = (keyword.to_owned(), position.pointer.clone());
                return Err(GrammarError::UnknownKeyword { keyword, pointer });
            }
        }
        Ok(())
    }

    fn schemas(
        &mut self,
        keyword: &str,
        value: &Value,
        position: &Position,
    ) -> Result<(Value, Vec<Cost>), GrammarError> {
        let list = value.as_array().filter(|list| !list.is_empty());
        let list = list.ok_or_else(|| position.error(keyword, "must be a non-empty array of schemas"))?;
        let written =
            list.iter().enumerate().map(|(index, schema)| self.schema(schema, &position.below(keyword, index)));
        let (schemas, costs): (Vec<Value>, Vec<Cost>) = written.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
        Ok((Value::Array(schemas), costs))
    }

    fn schemas_by_name(
        &mut self,
        keyword: &str,
        value: &Value,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        let fields = value.as_object().ok_or_else(|| position.error(keyword, "must be an object of schemas"))?;
        let mut out = Map::new();
        for (name, schema) in fields {
            if keyword == "patternProperties" {
                self.patterns += 1;
                if self.patterns > PATTERN_PROPERTIES_MAX {
                    return Err(
                        position.error(keyword, format!("has more than {PATTERN_PROPERTIES_MAX} patterns in all"))
                    );
                }
                regex::check_in_json(name)
                    .map_err(|error| position.error(keyword, format!("cannot be enforced: {error}")))?;
            }
            let (schema, cost) = self.schema(schema, &position.below(keyword, name))?;
            written.add_children([cost]);
            out.insert(name.clone(), schema);
        }
        written.set(keyword, Value::Object(out));
        Ok(())
    }

    /// Until draft 2019-09, a list in `items` meant what `prefixItems` means now, and `additionalItems` the rest.
    fn items(
        &mut self,
        value: &Value,
        fields: &Map<String, Value>,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        let rest = if value.is_array() {
            let (schemas, costs) = self.schemas("items", value, position)?;
            written.add_children(costs);
            written.set("prefixItems", schemas);
            fields.get("additionalItems").map(|rest| ("additionalItems", rest))
        } else {
            Some(("items", value))
        };
        if let Some((keyword, rest)) = rest {
            let (schema, cost) = self.schema(rest, &position.below(keyword, ""))?;
            written.add_children([cost]);
            written.set("items", schema);
        }
        Ok(())
    }

    /// Replaces a reference by one to a definition, which is written now if it is new.
    fn reference(&mut self, value: &Value, position: &Position) -> Result<(Value, Cost), GrammarError> {
        let text = value.as_str().ok_or_else(|| position.error("$ref", "must be a string"))?;
        let target = references::resolve(self.root, text, position)?;
        let name = match self.names.get(&target.pointer) {
            Some(name) => name.clone(),
            None => {
                let name = format!("d{}", self.names.len());
                self.names.insert(target.pointer.clone(), name.clone());
                // Reserves the position, so that definitions stand in the order in which they are met.
                self.definitions.insert(name.clone(), Value::Bool(true));
                let inside =
                    Position { pointer: target.pointer, depth: position.depth + 1, is_embedded: target.is_embedded };
                let (schema, cost) = self.schema(target.schema, &inside)?;
                self.definitions.insert(name.clone(), schema);
                self.costs.insert(name.clone(), cost);
                name
            }
        };
        // A schema that refers to itself is not multiplied out.
        let cost = self.costs.get(&name).copied().unwrap_or(Cost::ANYTHING);
        Ok((Value::String(format!("#/$defs/{name}")), cost))
    }
}
