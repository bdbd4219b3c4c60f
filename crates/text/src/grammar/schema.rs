//! JSON Schema, checked and brought into the form that llguidance enforces completely.
//!
//! llguidance knows part of JSON Schema, drops keywords that it does not know, follows no anchors and reads references
//! literally. So a schema is written anew, with the keywords that llguidance enforces and no others. A keyword is enforced
//! as it is; or rewritten into others that mean the same (`not`, `if`, `oneOf`, `dependentRequired`, `unevaluatedProperties`
//! and so on); or it is an annotation and left out; or it cannot be enforced: then it is an error that names it, or,
//! where the schema is relaxed, it is left out or widened and named in [`NotEnforced`]. Whatever references point to is
//! moved to `$defs` under a plain name. Nothing is ever fetched.
//!
//! Two words are used throughout. A schema that is *relaxed* accepts more than was written. One that is *narrowed* accepts
//! less, but nothing that is wrong: an array that must contain something has it among its first items. Only what is
//! neither may be negated.

mod arrays;
mod cases;
mod combinations;
mod conditions;
mod cost;
mod disjoint;
mod distribution;
mod draft;
mod effort;
mod exactness;
mod keywords;
mod negation;
mod objects;
mod options;
mod pattern;
mod position;
mod references;
mod resources;
mod strings;
#[cfg(test)]
mod tests;
mod unevaluated;
mod unique;
mod uri;
mod values;
mod written;

use std::collections::{HashMap, HashSet};

use llguidance::JsonCompileOptions;
use serde_json::{Map, Value, json};

use super::limits::{REFERENCE_DEPTH_MAX, SCHEMA_DEPTH_MAX, SCHEMA_STEPS_MAX, WHITESPACE_MAX};
use super::{GrammarError, NotEnforced, Strictness};
use cost::Cost;
pub(super) use effort::Effort;
use keywords::Use;
use position::Position;
use resources::Resources;
use written::Written;

const WHAT: &str = "JSON schema";

/// A schema for llguidance, with its options.
pub(super) struct Prepared {
    pub schema: Value,
    pub not_enforced: NotEnforced,
    /// How large it is when alternatives are multiplied out.
    pub nodes: u64,
    /// Accepts less than was written.
    pub is_narrowed: bool,
}

pub(super) fn prepared(schema: &Value, strictness: Strictness, effort: Effort) -> Result<Prepared, GrammarError> {
    check_depth(schema)?;
    let mut rewriter = Rewriter::new(schema, strictness, effort);
    let (written, cost) = rewriter.schema(schema, &Position::root(rewriter.resources.root_scope()))?;
    let definitions = rewriter.reachable_definitions(&written);
    let mut root = match written {
        Value::Bool(false) => return Err(rewriter.nothing()),
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
    let nodes = rewriter.costs.values().fold(cost.nodes(), |nodes, cost| nodes.saturating_add(cost.nodes()));
    Ok(Prepared { schema: root, not_enforced: rewriter.not_enforced, nodes, is_narrowed: rewriter.narrowed_count > 0 })
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

/// Returns the draft that a schema is written for: 4, 6, 7, 2019 or 2020.
pub(super) fn draft_number(schema: &Value) -> u32 {
    match schema.as_object().map_or(draft::Draft::Draft2020, |fields| draft::Draft::Draft2020.of_schema(fields)) {
        draft::Draft::Draft4 => 4,
        draft::Draft::Draft6 => 6,
        draft::Draft::Draft7 => 7,
        draft::Draft::Draft2019 => 2019,
        draft::Draft::Draft2020 => 2020,
    }
}

struct Rewriter<'s> {
    resources: Resources<'s>,
    strictness: Strictness,
    effort: Effort,
    not_enforced: NotEnforced,
    /// How often something was relaxed or narrowed so far, or referred to what was.
    inexact_count: usize,
    /// How often something was narrowed, or referred to what was.
    narrowed_count: usize,
    /// Subschemas that were written, those included that were written again or in vain.
    steps: usize,
    /// While something is tried out, whatever cannot be enforced is an error.
    trials: usize,
    definitions: Map<String, Value>,
    /// Names of definitions by what they define, and how many names were given.
    names: HashMap<String, String>,
    names_given: usize,
    /// What they define, in the order of their names.
    keys: Vec<String>,
    costs: HashMap<String, Cost>,
    /// Definitions that are being written.
    open: Vec<String>,
    /// Definitions that are relaxed or narrowed, or refer to one that is or is not finished.
    inexact: HashSet<String>,
    narrowed: HashSet<String>,
    patterns: HashMap<String, Result<String, String>>,
    /// How often patterns were looked at.
    pattern_checks: usize,
    /// Definitions that are being looked through for what they evaluate.
    evaluating: Vec<String>,
}

impl<'s> Rewriter<'s> {
    fn new(schema: &'s Value, strictness: Strictness, effort: Effort) -> Self {
        Self {
            resources: Resources::of(schema),
            strictness,
            effort,
            not_enforced: NotEnforced::default(),
            inexact_count: 0,
            narrowed_count: 0,
            steps: 0,
            trials: 0,
            definitions: Map::new(),
            names: HashMap::new(),
            names_given: 0,
            keys: Vec::new(),
            costs: HashMap::new(),
            open: Vec::new(),
            inexact: HashSet::new(),
            narrowed: HashSet::new(),
            patterns: HashMap::new(),
            pattern_checks: 0,
            evaluating: Vec::new(),
        }
    }

    fn nothing(&self) -> GrammarError {
        GrammarError::Schema { pointer: "#".to_owned(), problem: "is false: nothing satisfies it".to_owned() }
    }

    fn schema(&mut self, schema: &Value, position: &Position) -> Result<(Value, Cost), GrammarError> {
        let fields = match schema {
            Value::Bool(_) => return Ok((schema.clone(), Cost::ANYTHING)),
            Value::Object(fields) => fields,
            _ => {
                let problem = "must be an object or a boolean".to_owned();
                return Err(GrammarError::Schema { pointer: position.pointer.clone(), problem });
            }
        };
        self.steps += 1;
        if position.depth > self.effort.depth_max() || self.steps > SCHEMA_STEPS_MAX {
            return self.cut(fields, position);
        }
        let mut position = position.clone();
        position.scope = self.resources.entered(position.scope.within(schema));
        let alone;
        let fields = match fields.get("$ref") {
            Some(reference) if position.scope.draft.references_stand_alone() && reference.is_string() => {
                alone = Map::from_iter([("$ref".to_owned(), reference.clone())]);
                &alone
            }
            _ => fields,
        };
        let mut written = Written::new(fields);
        for (keyword, value) in fields {
            self.keyword(keyword, value, fields, &position, &mut written)?;
        }
        self.finish(fields, &position, written)
    }

    /// What depends on several keywords, once each of them is written.
    fn finish(
        &mut self,
        fields: &Map<String, Value>,
        position: &Position,
        mut written: Written,
    ) -> Result<(Value, Cost), GrammarError> {
        self.lengths(position, &mut written)?;
        self.pattern_properties(position, &mut written)?;
        self.property_counts(position, &mut written)?;
        self.conditional(fields, position, &mut written)?;
        self.contains(fields, position, &mut written)?;
        self.unique_items(fields, position, &mut written)?;
        self.unevaluated(fields, position, &mut written)?;
        self.recursion(position, &mut written)?;
        self.one_part(position, &mut written)?;
        Ok(written.finish())
    }

    /// A schema that is too deep.
    fn cut(&mut self, fields: &Map<String, Value>, position: &Position) -> Result<(Value, Cost), GrammarError> {
        if position.depth > REFERENCE_DEPTH_MAX && self.strictness == Strictness::Strict {
            return Err(GrammarError::TooDeep { what: WHAT, max: REFERENCE_DEPTH_MAX });
        }
        let types = fields.get("type").and_then(|types| values::types("type", types, position).ok());
        let says_more = fields.keys().any(|keyword| keywords::constrains(keyword));
        if says_more && (types.is_none() || fields.len() > 1) {
            self.relax(position.unenforceable("(too large)", "is too large"))?;
        }
        let cut = types.map_or(Map::new(), |types| Map::from_iter([("type".to_owned(), types)]));
        Ok((Value::Object(cut), Cost::ANYTHING))
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
            Use::Annotation | Use::ReadWithOthers => {}
            Use::Unknown => self.not_enforced.add_annotation(keyword, &position.pointer),
            Use::Text if value.is_string() => {}
            Use::Text => return Err(position.wrong(keyword, "must be a string")),
            Use::Literal(check) => self.literal(keyword, check(keyword, value, position), value, written)?,
            Use::Limit => self.limit(keyword, value, fields, position, written)?,
            Use::Multiple => self.multiple_of(value, fields, position, written)?,
            Use::Pattern => self.pattern(value, position, written)?,
            Use::Format => self.format(value, position, written)?,
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
                written.set(keyword, Value::Array(schemas));
            }
            Use::Alternatives => {
                let (schemas, costs) = self.schemas(keyword, value, position)?;
                let cost = costs.into_iter().reduce(Cost::or).unwrap_or(Cost::ANYTHING);
                self.combine(keyword, "anyOf", Value::Array(schemas), cost, position, written)?;
            }
            Use::Exclusive => self.one_of(value, position, written)?,
            Use::All => self.all_of(value, fields, position, written)?,
            Use::Reference => self.references(keyword, value, position, written)?,
            Use::PropertyNames => self.property_names(value, position, written)?,
        }
        Ok(())
    }
}
