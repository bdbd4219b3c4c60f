//! `unevaluatedProperties` and `unevaluatedItems`: what no other keyword speaks of, the ones in alternatives included.
//!
//! Which keywords speak of a property may depend on which alternatives hold. So a schema is taken apart into branches,
//! each with its conditions and with what is evaluated if they hold; a branch is then closed like an object with
//! `additionalProperties`. Where several alternatives hold at once, more is evaluated; of many alternatives, each is taken
//! alone, which narrows the schema.

use serde_json::{Map, Value, json};

use super::draft::Draft;
use super::written::{Written, all_of, any_of, is_anything};
use super::{GrammarError, Position, Rewriter, pattern};

const BRANCHES_MAX: usize = 32;
/// Alternatives of which every combination is taken.
const COMBINED_MAX: usize = 3;

/// What is evaluated if some schemas hold.
#[derive(Clone, Debug, Default, PartialEq)]
struct Branch {
    conditions: Vec<Value>,
    names: Vec<String>,
    patterns: Vec<String>,
    are_all_names: bool,
    /// How many of the first items.
    items: usize,
    are_all_items: bool,
    /// Items that satisfy one of these, wherever they stand.
    contained: Vec<Value>,
}

impl Branch {
    fn and(mut self, other: &Self) -> Self {
        self.conditions.extend(other.conditions.iter().cloned());
        self.names.extend(other.names.iter().cloned());
        self.patterns.extend(other.patterns.iter().cloned());
        self.are_all_names |= other.are_all_names;
        self.items = self.items.max(other.items);
        self.are_all_items |= other.are_all_items;
        self.contained.extend(other.contained.iter().cloned());
        self
    }

    fn evaluates_something(&self) -> bool {
        self.are_all_names
            || self.are_all_items
            || self.items > 0
            || !self.names.is_empty()
            || !self.patterns.is_empty()
            || !self.contained.is_empty()
    }

    /// A schema in which the rest follows another schema.
    fn closed(&self, keyword: &str, rest: &Value) -> Value {
        let close = match keyword {
            "unevaluatedProperties" if self.are_all_names => Value::Bool(true),
            "unevaluatedProperties" => {
                let map = |names: &[String]| -> Map<String, Value> {
                    names.iter().map(|name| (name.clone(), Value::Bool(true))).collect()
                };
                let mut close = json!({ "properties": map(&self.names), "additionalProperties": rest });
                if !self.patterns.is_empty() {
                    close["patternProperties"] = Value::Object(map(&self.patterns));
                }
                close
            }
            _ if self.are_all_items => Value::Bool(true),
            _ => {
                let rest = any_of(self.contained.iter().chain([rest]).cloned().collect());
                match self.items {
                    0 => json!({ "items": rest }),
                    items => json!({ "prefixItems": vec![Value::Bool(true); items], "items": rest }),
                }
            }
        };
        let mut all = self.conditions.clone();
        all.push(close);
        all_of(all)
    }
}

impl Rewriter<'_> {
    pub(super) fn unevaluated(
        &mut self,
        fields: &Map<String, Value>,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        for keyword in ["unevaluatedProperties", "unevaluatedItems"] {
            let Some(value) = fields.get(keyword) else { continue };
            let (rest, _) = self.schema(value, &position.below(keyword, ""))?;
            if is_anything(&rest) {
                continue;
            }
            let unenforceable = |problem: String| position.unenforceable(keyword, problem);
            if !self.effort.rewrites() {
                self.relax(unenforceable("belongs to a schema that is too large".to_owned()))?;
                continue;
            }
            let mut others = fields.clone();
            others.shift_remove("unevaluatedProperties");
            others.shift_remove("unevaluatedItems");
            let (before, mut is_narrowed) = (self.inexact_count, false);
            match self.exactly(keyword, position, |rewriter| {
                let branches = rewriter.branches(&others, keyword, position);
                // Narrowing is no obstacle: the branches are not negated here.
                is_narrowed = rewriter.inexact_count != before;
                rewriter.inexact_count = before;
                branches
            }) {
                Ok(branches) => {
                    if is_narrowed {
                        self.narrow();
                    }
                    let schema = any_of(branches.iter().map(|branch| branch.closed(keyword, &rest)).collect());
                    self.conjunct(keyword, schema, position, written)?;
                }
                Err(error @ GrammarError::NotEnforceable { .. }) => {
                    self.relax(unenforceable(format!("cannot be enforced: {error}")))?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The branches of a schema, of which at least one holds where the schema does.
    fn branches(
        &mut self,
        fields: &Map<String, Value>,
        asked: &str,
        position: &Position,
    ) -> Result<Vec<Branch>, GrammarError> {
        let mut branches = vec![evaluated_directly(fields)];
        for (keyword, value) in fields {
            let more = match keyword.as_str() {
                "contains" if asked == "unevaluatedItems" && position.scope.draft >= Draft::Draft2020 => {
                    let (schema, _) = self.schema(value, &position.below(keyword, ""))?;
                    vec![Branch { contained: vec![schema], ..Branch::default() }]
                }
                "allOf" => {
                    for (index, schema) in value.as_array().into_iter().flatten().enumerate() {
                        let all = self.branches_of(schema, asked, &position.below(keyword, index))?;
                        branches = multiplied(&branches, &all, position)?;
                    }
                    continue;
                }
                "anyOf" | "oneOf" => self.alternatives(keyword, value, asked, position)?,
                "$ref" | "$dynamicRef" | "$recursiveRef" => {
                    self.branches_referred_to(keyword, value, asked, position)?
                }
                "if" => self.branches_of_condition(value, fields, asked, position)?,
                "dependentSchemas" | "dependencies" => {
                    for (name, schema) in
                        value.as_object().into_iter().flatten().filter(|(_, schema)| !schema.is_array())
                    {
                        let present = self.branches_of(schema, asked, &position.below(keyword, name))?;
                        let is_there = Branch { conditions: vec![json!({ "required": [name] })], ..Branch::default() };
                        let absent =
                            Branch { conditions: vec![json!({ "properties": { name: false } })], ..Branch::default() };
                        let mut both = multiplied(&[is_there], &present, position)?;
                        both.push(absent);
                        branches = multiplied(&branches, &both, position)?;
                    }
                    continue;
                }
                _ => continue,
            };
            branches = multiplied(&branches, &more, position)?;
        }
        Ok(branches)
    }

    fn branches_of(&mut self, schema: &Value, asked: &str, position: &Position) -> Result<Vec<Branch>, GrammarError> {
        match schema {
            Value::Object(fields) if position.scope.draft.references_stand_alone() && fields.contains_key("$ref") => {
                self.branches_referred_to("$ref", &fields["$ref"], asked, position)
            }
            Value::Object(fields) => {
                let mut inside = position.clone();
                inside.scope = self.resources.entered(inside.scope.within(schema));
                self.branches(fields, asked, &inside)
            }
            _ => Ok(vec![Branch::default()]),
        }
    }

    fn branches_referred_to(
        &mut self,
        keyword: &str,
        value: &Value,
        asked: &str,
        position: &Position,
    ) -> Result<Vec<Branch>, GrammarError> {
        let unenforceable = |problem: &str| position.unenforceable(keyword, problem);
        let text = value.as_str().ok_or_else(|| unenforceable("is not a string"))?;
        let target = self.resources.target(keyword, text, &position.scope).map_err(unenforceable)?;
        let key = target.key();
        if self.evaluating.contains(&key) || self.evaluating.len() > 32 {
            return Err(unenforceable("refers to itself, which is not supported"));
        }
        self.evaluating.push(key);
        let inside = Position { pointer: target.pointer, depth: position.depth + 1, scope: target.scope };
        let branches = self.branches_of(target.schema, asked, &inside);
        self.evaluating.pop();
        branches
    }

    fn alternatives(
        &mut self,
        keyword: &str,
        value: &Value,
        asked: &str,
        position: &Position,
    ) -> Result<Vec<Branch>, GrammarError> {
        let mut options = Vec::new();
        for (index, option) in value.as_array().into_iter().flatten().enumerate() {
            let inside = position.below(keyword, index);
            let mut branches = self.branches_of(option, asked, &inside)?;
            let (schema, _) = self.schema(option, &inside)?;
            branches.iter_mut().for_each(|branch| branch.conditions.insert(0, schema.clone()));
            options.push(branches);
        }
        if !options.iter().flatten().any(Branch::evaluates_something) {
            return Ok(vec![Branch::default()]);
        }
        let mut all: Vec<Branch> = options.iter().flatten().cloned().collect();
        if keyword == "anyOf" && options.len() > COMBINED_MAX {
            self.narrow();
        } else if keyword == "anyOf" {
            for chosen in 1usize..1 << options.len() {
                if chosen.count_ones() > 1 {
                    let mut chosen = options.iter().enumerate().filter(|(index, _)| chosen >> index & 1 == 1);
                    let together = chosen.try_fold(vec![Branch::default()], |together, (_, option)| {
                        multiplied(&together, option, position)
                    });
                    all.extend(together?);
                }
            }
        }
        bounded(all, position)
    }

    fn branches_of_condition(
        &mut self,
        value: &Value,
        fields: &Map<String, Value>,
        asked: &str,
        position: &Position,
    ) -> Result<Vec<Branch>, GrammarError> {
        let inside = position.below("if", "");
        let before = self.inexact_count;
        let (condition, _) = self.schema(value, &inside)?;
        let is_exact = self.inexact_count == before;
        let not = if is_exact { self.negation(&condition) } else { None };
        let not = not.ok_or_else(|| position.unenforceable("if", "is not supported for this schema"))?;
        let mut branch = |keyword: &str| match fields.get(keyword) {
            Some(schema) => self.branches_of(schema, asked, &position.below(keyword, "")),
            None => Ok(vec![Branch::default()]),
        };
        let (then, otherwise) = (branch("then")?, branch("else")?);
        let of_if: Vec<Branch> = self
            .branches_of(value, asked, &inside)?
            .into_iter()
            .map(|mut branch| {
                branch.conditions.insert(0, condition.clone());
                branch
            })
            .collect();
        let mut all = multiplied(&of_if, &then, position)?;
        let not = Branch { conditions: vec![not], ..Branch::default() };
        all.extend(multiplied(&[not], &otherwise, position)?);
        bounded(all, position)
    }
}

/// What the keywords of a schema itself speak of.
fn evaluated_directly(fields: &Map<String, Value>) -> Branch {
    let keys = |keyword: &str| -> Vec<String> {
        fields.get(keyword).and_then(Value::as_object).map_or(Vec::new(), |map| map.keys().cloned().collect())
    };
    let len = |keyword: &str| fields.get(keyword).and_then(Value::as_array).map_or(0, Vec::len);
    let items_is_list = fields.get("items").is_some_and(Value::is_array);
    let has = |keyword: &str| fields.contains_key(keyword);
    let patterns: Option<Vec<String>> =
        keys("patternProperties").iter().map(|pattern| pattern::checked(pattern).ok()).collect();
    Branch {
        conditions: Vec::new(),
        names: keys("properties"),
        // A pattern that cannot be enforced may match any name.
        are_all_names: has("additionalProperties") || has("unevaluatedProperties") || patterns.is_none(),
        patterns: patterns.unwrap_or_default(),
        items: len("prefixItems").max(len("items")),
        are_all_items: has("items") && !items_is_list
            || items_is_list && has("additionalItems")
            || has("unevaluatedItems"),
        contained: Vec::new(),
    }
}

/// Every combination of two lists of branches.
fn multiplied(some: &[Branch], others: &[Branch], position: &Position) -> Result<Vec<Branch>, GrammarError> {
    let all = some.iter().flat_map(|branch| others.iter().map(move |other| branch.clone().and(other)));
    bounded(all.collect(), position)
}

fn bounded(mut branches: Vec<Branch>, position: &Position) -> Result<Vec<Branch>, GrammarError> {
    let mut known: Vec<Branch> = Vec::new();
    branches.retain(|branch| {
        let is_new = !known.contains(branch);
        if is_new && known.len() <= BRANCHES_MAX {
            known.push(branch.clone());
        }
        is_new
    });
    if branches.len() > BRANCHES_MAX {
        return Err(position.unenforceable("anyOf", "has too many alternatives"));
    }
    Ok(branches)
}
