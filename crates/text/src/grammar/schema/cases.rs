//! Conditions on one property, as people write them: `allOf` with many `if`, each of which compares the same property with a
//! constant. One by one, they would multiply; together, they are one alternative per constant.

use serde_json::{Map, Value, json};

use super::keywords;
use super::written::{Written, all_of, any_of};
use super::{GrammarError, Position, Rewriter};

/// Constants that are told apart.
const CONSTANTS_MAX: usize = 128;

/// What follows from a comparison.
struct Case<'v> {
    index: usize,
    constants: Vec<&'v Value>,
    /// Whether the condition fails if the property is missing.
    is_required: bool,
    then: Option<&'v Value>,
    otherwise: Option<&'v Value>,
}

impl Rewriter<'_> {
    /// Writes the members of an `allOf` that compare the same property. Returns the indices of those that are done.
    pub(super) fn cases(
        &mut self,
        members: &[Value],
        fields: &Map<String, Value>,
        position: &Position,
        written: &mut Written,
    ) -> Result<Vec<usize>, GrammarError> {
        let is_object = fields.get("type").is_some_and(|kind| kind == "object");
        if !is_object || !self.effort.rewrites() {
            return Ok(Vec::new());
        }
        let mut by_name: Vec<(&str, Vec<Case>)> = Vec::new();
        for (index, member) in members.iter().enumerate() {
            let Some((name, case)) = comparison(member, index) else { continue };
            match by_name.iter_mut().find(|(known, _)| *known == name) {
                Some((_, cases)) => cases.push(case),
                None => by_name.push((name, vec![case])),
            }
        }
        let mut done = Vec::new();
        for (name, cases) in by_name.into_iter().filter(|(_, cases)| cases.len() > 1) {
            let constants = cases.iter().flat_map(|case| &case.constants).count();
            if constants <= CONSTANTS_MAX {
                self.alternatives_by_constant(name, &cases, position, written)?;
                done.extend(cases.iter().map(|case| case.index));
            }
        }
        Ok(done)
    }

    fn alternatives_by_constant(
        &mut self,
        name: &str,
        cases: &[Case],
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        let mut consequences = Vec::new();
        for case in cases {
            let inside = position.below("allOf", case.index);
            let mut branch = |keyword: &str, schema: Option<&Value>| match schema {
                Some(schema) => self.schema(schema, &inside.below(keyword, "")).map(|(schema, _)| schema),
                None => Ok(Value::Bool(true)),
            };
            consequences.push((branch("then", case.then)?, branch("else", case.otherwise)?));
        }
        let mut constants: Vec<&Value> = cases.iter().flat_map(|case| case.constants.iter().copied()).collect();
        constants.sort_by_key(|constant| constant.to_string());
        constants.dedup();
        let with = |condition: Value, holds: &dyn Fn(&Case) -> bool| {
            let all = cases.iter().zip(&consequences);
            let all = all.map(|(case, (then, otherwise))| if holds(case) { then.clone() } else { otherwise.clone() });
            all_of(std::iter::once(condition).chain(all).collect())
        };
        let mut ways: Vec<Value> = constants
            .iter()
            .map(|constant| {
                let is = json!({ "type": "object", "properties": { name: { "const": constant } }, "required": [name] });
                with(is, &|case| case.constants.contains(constant))
            })
            .collect();
        let missing = json!({ "type": "object", "properties": { name: false } });
        ways.push(with(missing, &|case| !case.is_required));
        let others = self.negation(&json!({ "enum": constants }));
        let Some(others) = others else {
            return self.relax(position.unenforceable("if", "is not supported for so many constants"));
        };
        let is_other = json!({ "type": "object", "properties": { name: others }, "required": [name] });
        ways.push(with(is_other, &|_| false));
        self.conjunct("allOf", any_of(ways), position, written)
    }
}

/// Returns the property that a condition compares with constants, if it does nothing else.
fn comparison(member: &Value, index: usize) -> Option<(&str, Case<'_>)> {
    let fields = member.as_object()?;
    let only = |fields: &Map<String, Value>, known: &[&str]| {
        fields.keys().filter(|keyword| keywords::constrains(keyword)).all(|keyword| known.contains(&keyword.as_str()))
    };
    let condition = fields.get("if")?.as_object()?;
    let properties = condition.get("properties")?.as_object()?;
    let (name, property) = properties.iter().next().filter(|_| properties.len() == 1)?;
    let property = property.as_object()?;
    let constants: Vec<&Value> = match (property.get("const"), property.get("enum")) {
        (Some(constant), None) => vec![constant],
        (None, Some(Value::Array(constants))) => constants.iter().collect(),
        _ => return None,
    };
    let is_plain = |constant: &&Value| match constant {
        Value::String(text) => !text.contains(char::is_control),
        Value::Bool(_) | Value::Null => true,
        Value::Number(number) => number.is_i64(),
        _ => false,
    };
    let required = condition.get("required").map(|names| names.as_array().map_or(&[][..], Vec::as_slice));
    let is_good = only(fields, &["if", "then", "else"])
        && only(condition, &["properties", "required", "type"])
        && condition.get("type").is_none_or(|kind| kind == "object")
        && only(property, &["const", "enum"])
        && constants.iter().all(is_plain)
        && required.is_none_or(|names| names.iter().all(|other| other == name));
    let is_required = required.is_some_and(|names| !names.is_empty());
    let (then, otherwise) = (fields.get("then"), fields.get("else"));
    is_good.then_some((name.as_str(), Case { index, constants, is_required, then, otherwise }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_comparisons_of_one_property_are_taken() {
        let found = |member: Value| comparison(&member, 0).map(|(name, case)| (name.to_owned(), case.is_required));
        let then = json!({"minProperties": 2});
        let plain = json!({"if": {"properties": {"k": {"const": "a"}}, "required": ["k"]}, "then": then});
        assert_eq!(found(plain), Some(("k".to_owned(), true)));
        let several = json!({"if": {"properties": {"k": {"enum": ["a", 1]}}}, "else": then, "description": "d"});
        assert_eq!(found(several), Some(("k".to_owned(), false)));
        for other in [
            json!({"if": {"properties": {"k": {"pattern": "a"}}}, "then": then}),
            json!({"if": {"properties": {"k": {"const": "a"}, "l": {"const": "b"}}}, "then": then}),
            json!({"if": {"properties": {"k": {"const": "a"}}, "required": ["l"]}, "then": then}),
            json!({"if": {"properties": {"k": {"const": "a"}}}, "then": then, "minProperties": 1}),
            json!({"if": {"properties": {"k": {"const": [1]}}}, "then": then}),
        ] {
            assert_eq!(found(other.clone()), None, "{other}");
        }
    }
}
