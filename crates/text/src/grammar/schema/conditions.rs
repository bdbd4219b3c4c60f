//! What holds under a condition: `not`, `if`, and what depends on a property.

use serde_json::{Map, Value, json};

use super::keywords;
use super::written::{Written, all_of, any_of, is_anything};
use super::{GrammarError, Position, Rewriter, values};

impl Rewriter<'_> {
    pub(super) fn conditional(
        &mut self,
        fields: &Map<String, Value>,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        if let Some(value) = fields.get("not") {
            self.not(value, position, written)?;
        }
        if let Some(value) = fields.get("if") {
            self.if_then_else(value, fields, position, written)?;
        }
        for keyword in ["dependentRequired", "dependentSchemas", "dependencies"] {
            if let Some(value) = fields.get(keyword) {
                self.dependencies(keyword, value, position, written)?;
            }
        }
        Ok(())
    }

    fn not(&mut self, value: &Value, position: &Position, written: &mut Written) -> Result<(), GrammarError> {
        if let Some(twice) = negated_twice(value) {
            let (schema, _) = self.schema(twice, &position.below("not", "").below("not", ""))?;
            return self.conjunct("not", schema, position, written);
        }
        let Some(schema) = self.exact("not", value, position)? else { return Ok(()) };
        match self.negation(&schema) {
            Some(negation) => self.conjunct("not", negation, position, written),
            None => self.relax(position.unenforceable("not", "is not supported for this schema")),
        }
    }

    fn if_then_else(
        &mut self,
        value: &Value,
        fields: &Map<String, Value>,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        let mut branch = |keyword: &str| match fields.get(keyword) {
            Some(schema) => self.schema(schema, &position.below(keyword, "")).map(|(schema, _)| schema),
            None => Ok(Value::Bool(true)),
        };
        let (then, otherwise) = (branch("then")?, branch("else")?);
        if is_anything(&then) && is_anything(&otherwise) {
            return Ok(());
        }
        let Some(condition) = self.exact("if", value, position)? else { return Ok(()) };
        let not = match self.negation(&condition) {
            Some(not) => not,
            // Whether the condition holds or not, what follows from its not holding may be there.
            None => {
                self.relax(position.unenforceable("if", "is not supported for this schema"))?;
                Value::Bool(true)
            }
        };
        let schema = any_of(vec![all_of(vec![condition, then]), all_of(vec![not, otherwise])]);
        self.conjunct("if", schema, position, written)
    }

    /// Without the property, or with what it depends on. Properties with the same dependencies are taken together.
    fn dependencies(
        &mut self,
        keyword: &str,
        value: &Value,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        let fields = value.as_object().ok_or_else(|| position.wrong(keyword, "must be an object"))?;
        let mut dependencies: Vec<(Value, Vec<&String>)> = Vec::new();
        for (name, dependency) in fields {
            let dependency = match dependency {
                Value::Array(_) if keyword != "dependentSchemas" => {
                    json!({ "required": values::names(keyword, dependency, position)? })
                }
                Value::String(_) if keyword == "dependencies" => json!({ "required": [dependency] }),
                Value::Object(_) | Value::Bool(_) if keyword != "dependentRequired" => {
                    self.schema(dependency, &position.below(keyword, name))?.0
                }
                _ => return Err(position.wrong(keyword, "must have schemas or lists of names")),
            };
            match dependencies.iter_mut().find(|(known, _)| *known == dependency) {
                Some((_, names)) => names.push(name),
                None => dependencies.push((dependency, vec![name])),
            }
        }
        for (dependency, names) in dependencies {
            if !self.effort.rewrites() {
                self.relax(position.unenforceable(keyword, "belongs to a schema that is too large"))?;
                continue;
            }
            let absent: Map<String, Value> = names.into_iter().map(|name| (name.clone(), Value::Bool(false))).collect();
            let schema = any_of(vec![json!({ "properties": absent }), dependency]);
            self.conjunct(keyword, schema, position, written)?;
        }
        Ok(())
    }
}

/// The schema that `{"not": ...}` negates, if that is all it does.
fn negated_twice(schema: &Value) -> Option<&Value> {
    let fields = schema.as_object()?;
    let mut constraints = fields.keys().filter(|keyword| keywords::constrains(keyword));
    match (constraints.next(), constraints.next()) {
        (Some(keyword), None) if keyword == "not" => fields.get("not"),
        _ => None,
    }
}
