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
mod conditions;
mod cost;
mod disjoint;
mod draft;
mod effort;
mod keywords;
mod negation;
mod objects;
mod options;
mod pattern;
mod resources;
mod strings;
#[cfg(test)]
mod tests;
mod unevaluated;
mod uri;
mod values;
mod written;

use std::collections::{HashMap, HashSet};

use llguidance::JsonCompileOptions;
use serde_json::{Map, Value, json};

use super::limits::{REFERENCE_DEPTH_MAX, SCHEMA_DEPTH_MAX, SCHEMA_NODES_MAX, SCHEMA_STEPS_MAX, WHITESPACE_MAX};
use super::{GrammarError, NotEnforced, Strictness};
use cost::Cost;
pub(super) use effort::Effort;
use keywords::Use;
use resources::{Resources, Scope};
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
    scope: Scope,
}

impl Position {
    fn root(scope: Scope) -> Self {
        Self { pointer: "#".to_owned(), depth: 1, scope }
    }

    fn below(&self, keyword: &str, key: impl std::fmt::Display) -> Self {
        let key = escaped(&key.to_string());
        let slash = if key.is_empty() && keyword != "properties" { "" } else { "/" };
        let pointer = format!("{}/{keyword}{slash}{key}", self.pointer);
        Self { pointer, depth: self.depth + 1, scope: self.scope.clone() }
    }

    /// The keyword's value makes no sense.
    fn wrong(&self, keyword: &str, problem: impl Into<String>) -> GrammarError {
        GrammarError::Keyword { keyword: keyword.to_owned(), pointer: self.pointer.clone(), problem: problem.into() }
    }

    /// The keyword makes sense, but not to the grammar.
    fn unenforceable(&self, keyword: &str, problem: impl Into<String>) -> GrammarError {
        let (keyword, pointer) = (keyword.to_owned(), self.pointer.clone());
        GrammarError::NotEnforceable { keyword, pointer, problem: problem.into() }
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
    /// Names of definitions by the pointers that refer to them, and how many names were given.
    names: HashMap<String, String>,
    names_given: usize,
    /// The pointers in the order of their names.
    pointers: Vec<String>,
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
            pointers: Vec::new(),
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

    /// Leaves a keyword out where that may be, and is an error where not.
    fn relax(&mut self, error: GrammarError) -> Result<(), GrammarError> {
        match (&error, self.strictness, self.trials) {
            (GrammarError::NotEnforceable { keyword, pointer, .. }, Strictness::Relaxed, 0) => {
                self.not_enforced.add_constraint(keyword, pointer);
                self.mark_inexact();
                Ok(())
            }
            _ => Err(error),
        }
    }

    fn mark_inexact(&mut self) {
        self.inexact_count += 1;
        self.inexact.extend(self.open.iter().cloned());
    }

    fn narrow(&mut self) {
        self.narrowed_count += 1;
        self.narrowed.extend(self.open.iter().cloned());
        self.mark_inexact();
    }

    /// Runs something whose result is of use only if it is exact; otherwise nothing of it remains.
    fn exactly<T>(
        &mut self,
        keyword: &str,
        position: &Position,
        run: impl FnOnce(&mut Self) -> Result<T, GrammarError>,
    ) -> Result<T, GrammarError> {
        let (pointers, inexact_count) = (self.pointers.len(), self.inexact_count);
        self.trials += 1;
        let result = run(self);
        self.trials -= 1;
        let result = match result {
            Ok(_) if self.inexact_count != inexact_count => {
                Err(position.unenforceable(keyword, "is not supported here"))
            }
            other => other,
        };
        if result.is_err() {
            for pointer in self.pointers.split_off(pointers) {
                let name = self.names.remove(&pointer).unwrap_or_default();
                self.definitions.shift_remove(&name);
                self.costs.remove(&name);
                self.open.retain(|open| *open != name);
            }
        }
        result
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
        position.scope = position.scope.within(schema);
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
        let says_more =
            fields.keys().any(|keyword| !matches!(keywords::usage(keyword), Use::Annotation | Use::Unknown));
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
            Use::Unique if value == &Value::Bool(false) => {}
            Use::Unique => self.unique_items(value, fields, position)?,
            Use::PropertyNames => self.property_names(value, position, written)?,
        }
        Ok(())
    }

    /// Adds a keyword whose alternatives are multiplied with those that are there.
    fn combine(
        &mut self,
        keyword: &str,
        written_as: &str,
        value: Value,
        cost: Cost,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        let combined = written.cost.and(cost);
        if combined.nodes() > SCHEMA_NODES_MAX {
            let problem = "combines too many alternatives; write them out or use fewer";
            return self.relax(position.unenforceable(keyword, problem));
        }
        written.cost = combined;
        if written.fields.contains_key(written_as) {
            written.conjuncts.push(Value::Object(Map::from_iter([(written_as.to_owned(), value)])));
        } else {
            written.set(written_as, value);
        }
        Ok(())
    }

    /// Adds a schema that must hold as well.
    fn conjunct(
        &mut self,
        keyword: &str,
        (schema, cost): (Value, Cost),
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        let combined = written.cost.and(cost);
        if combined.nodes() > SCHEMA_NODES_MAX {
            return self.relax(position.unenforceable(keyword, "combines too many alternatives"));
        }
        written.cost = combined;
        written.conjuncts.push(schema);
        Ok(())
    }

    fn schemas(
        &mut self,
        keyword: &str,
        value: &Value,
        position: &Position,
    ) -> Result<(Vec<Value>, Vec<Cost>), GrammarError> {
        let list = value.as_array().filter(|list| !list.is_empty());
        let list = list.ok_or_else(|| position.wrong(keyword, "must be a non-empty array of schemas"))?;
        let written =
            list.iter().enumerate().map(|(index, schema)| self.schema(schema, &position.below(keyword, index)));
        Ok(written.collect::<Result<Vec<_>, _>>()?.into_iter().unzip())
    }

    /// Each of them by itself, so that one that is too much does not take the others with it.
    fn all_of(
        &mut self,
        value: &Value,
        fields: &Map<String, Value>,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        let members = value.as_array().filter(|list| !list.is_empty());
        let members = members.ok_or_else(|| position.wrong("allOf", "must be a non-empty array of schemas"))?;
        let done = self.cases(members, fields, position, written)?;
        let mut kept = Vec::new();
        for (index, member) in members.iter().enumerate().filter(|(index, _)| !done.contains(index)) {
            let (schema, cost) = self.schema(member, &position.below("allOf", index))?;
            let combined = written.cost.and(cost);
            if combined.nodes() > SCHEMA_NODES_MAX {
                let problem = "combines too many alternatives; write them out or use fewer";
                self.relax(position.unenforceable("allOf", problem))?;
            } else {
                written.cost = combined;
                kept.push(schema);
            }
        }
        if !kept.is_empty() {
            written.set("allOf", Value::Array(kept));
        }
        Ok(())
    }

    fn references(
        &mut self,
        keyword: &str,
        value: &Value,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        let text = value.as_str().ok_or_else(|| position.wrong(keyword, "must be a string"))?;
        let is_static = match keyword {
            "$dynamicRef" => self.resources.is_static(text),
            "$recursiveRef" => self.resources.recursion_is_static(),
            _ => true,
        };
        if !is_static {
            return self
                .relax(position.unenforceable(keyword, "depends on where the schema is used, which is not supported"));
        }
        match self.reference(keyword, text, position) {
            // llguidance takes a definition that nothing satisfies for an error, wherever it is referred to.
            Ok((reference, _)) if self.refers_to_nothing(&reference) => {
                written.conjuncts.push(Value::Bool(false));
                Ok(())
            }
            Ok((reference, cost)) => self.combine(keyword, "$ref", reference, cost.referred_to(), position, written),
            Err(error) => self.relax(error),
        }
    }

    fn refers_to_nothing(&self, reference: &Value) -> bool {
        let name = reference.as_str().and_then(|path| path.strip_prefix("#/$defs/"));
        name.and_then(|name| self.definitions.get(name)) == Some(&Value::Bool(false))
    }

    /// Replaces a reference by one to a definition, which is written now if it is new.
    fn reference(&mut self, keyword: &str, text: &str, position: &Position) -> Result<(Value, Cost), GrammarError> {
        let target = self
            .resources
            .resolve(text, &position.scope.base)
            .map_err(|problem| position.unenforceable(keyword, format!("is {text:?}, which {problem}")))?;
        let name = match self.names.get(&target.pointer) {
            Some(name) => name.clone(),
            None => {
                let name = format!("d{}", self.names_given);
                self.names_given += 1;
                self.names.insert(target.pointer.clone(), name.clone());
                self.pointers.push(target.pointer.clone());
                // Reserves the position, so that definitions stand in the order in which they are met.
                self.definitions.insert(name.clone(), Value::Bool(true));
                self.open.push(name.clone());
                let inside = Position { pointer: target.pointer, depth: position.depth + 1, scope: target.scope };
                let (schema, cost) = self.schema(target.schema, &inside)?;
                self.open.pop();
                self.definitions.insert(name.clone(), schema);
                self.costs.insert(name.clone(), cost);
                name
            }
        };
        if self.narrowed.contains(&name) {
            self.narrow();
        } else if self.inexact.contains(&name) || self.open.contains(&name) {
            self.mark_inexact();
        }
        // A schema that refers to itself is not multiplied out.
        let cost = self.costs.get(&name).copied().unwrap_or(Cost::ANYTHING);
        Ok((Value::String(format!("#/$defs/{name}")), cost))
    }

    /// llguidance cannot merge a schema with one that is not finished: one that it stands in itself.
    fn recursion(&mut self, position: &Position, written: &mut Written) -> Result<(), GrammarError> {
        let is_open = |keyword: &&str| {
            written.fields.get(*keyword).is_some_and(|value| keyword_refers_to(keyword, value, &self.open))
        };
        let open: Vec<&str> = ["$ref", "anyOf", "allOf"].into_iter().filter(is_open).collect();
        let parts = written.fields.len() + written.conjuncts.len();
        let is_alone = |keyword: &str| match written.fields.get(keyword) {
            Some(Value::Array(schemas)) if keyword == "allOf" => schemas.len() == 1,
            _ => true,
        };
        match open.as_slice() {
            [] => Ok(()),
            [one] if parts == 1 && is_alone(one) => Ok(()),
            [one] if *one != "allOf" => {
                // The reference says more than what stands beside it.
                let others: Vec<String> =
                    written.fields.keys().filter(|keyword| keyword.as_str() != *one).cloned().collect();
                for other in others {
                    self.relax(position.unenforceable(&other, "is not supported beside a reference to itself"))?;
                    written.fields.shift_remove(&other);
                }
                if !written.conjuncts.is_empty() {
                    self.relax(position.unenforceable("allOf", "is not supported beside a reference to itself"))?;
                    written.conjuncts.clear();
                }
                Ok(())
            }
            several => {
                for keyword in several.iter().copied() {
                    self.relax(
                        position.unenforceable(keyword, "refers to itself beside others, which is not supported"),
                    )?;
                    written.fields.shift_remove(keyword);
                }
                Ok(())
            }
        }
    }

    /// Where several schemas for one value are too much, keeps the one that says most.
    fn one_part(&mut self, position: &Position, written: &mut Written) -> Result<(), GrammarError> {
        const APPLIED: [&str; 3] = ["$ref", "anyOf", "allOf"];
        if self.effort.merges() {
            return Ok(());
        }
        let mut parts: Vec<&str> =
            APPLIED.into_iter().filter(|keyword| written.fields.contains_key(*keyword)).collect();
        let says_itself = written.fields.keys().any(|keyword| !APPLIED.contains(&keyword.as_str()));
        let is_one = parts.len() + usize::from(says_itself) + written.conjuncts.len() <= 1;
        let merges = written.fields.get("allOf").and_then(Value::as_array).is_some_and(|all| all.len() > 1);
        if is_one && !merges {
            return Ok(());
        }
        if !written.fields.contains_key("properties") && parts.first().is_some_and(|part| *part != "allOf") {
            let others: Vec<String> = written.fields.keys().filter(|keyword| *keyword != parts[0]).cloned().collect();
            for other in others {
                written.fields.shift_remove(&other);
            }
            parts = Vec::new();
        }
        for part in parts {
            written.fields.shift_remove(part);
        }
        written.conjuncts.clear();
        self.relax(position.unenforceable("(too large)", "is too large"))
    }

    /// The definitions that what was written still refers to.
    fn reachable_definitions(&mut self, root: &Value) -> Map<String, Value> {
        let mut reached = HashSet::new();
        let mut open = vec![root];
        while let Some(value) = open.pop() {
            match value {
                Value::Array(items) => open.extend(items),
                Value::Object(fields) => {
                    open.extend(fields.values());
                    let name =
                        fields.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix("#/$defs/"));
                    if let Some((name, schema)) = name.and_then(|name| self.definitions.get_key_value(name))
                        && reached.insert(name.clone())
                    {
                        open.push(schema);
                    }
                }
                _ => {}
            }
        }
        let mut definitions = std::mem::take(&mut self.definitions);
        definitions.retain(|name, _| reached.contains(name));
        self.costs.retain(|name, _| reached.contains(name));
        definitions
    }
}

/// Returns whether a schema is, or is an alternative or a part of, a reference to one of these definitions.
fn refers_in_place_to(schema: &Value, names: &[String]) -> bool {
    let Value::Object(fields) = schema else { return false };
    fields.iter().any(|(keyword, value)| keyword_refers_to(keyword, value, names))
}

fn keyword_refers_to(keyword: &str, value: &Value, names: &[String]) -> bool {
    match (keyword, value) {
        ("$ref", Value::String(path)) => {
            path.strip_prefix("#/$defs/").is_some_and(|name| names.iter().any(|open| open == name))
        }
        ("anyOf" | "allOf", Value::Array(schemas)) => schemas.iter().any(|schema| refers_in_place_to(schema, names)),
        _ => false,
    }
}
