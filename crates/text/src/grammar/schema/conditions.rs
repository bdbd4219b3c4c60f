//! What holds under a condition: `not`, `if`, and what depends on a property.

use serde_json::{Map, Value, json};

use super::cost::Cost;
use super::keywords::{self, Use};
use super::written::{Written, all_of, any_of};
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
        let inside = position.below("not", "");
        if let Some(twice) = negated_twice(value) {
            let schema = self.schema(twice, &inside.below("not", ""))?;
            return self.conjunct("not", schema, position, written);
        }
        let negated = self.exact(value, &inside, position, "not")?.map(|schema| self.negation(&schema));
        match negated {
            Ok(Some(schema)) if self.effort.rewrites() => {
                let cost = Cost::of(&schema, &self.costs);
                self.conjunct("not", (schema, cost), position, written)
            }
            Ok(_) => self.relax(position.unenforceable("not", "is not supported for this schema")),
            Err(error) => self.relax(error),
        }
    }

    /// Writes a schema that is of use only if it is exact. The inner error is what cannot be enforced in it.
    fn exact(
        &mut self,
        value: &Value,
        inside: &Position,
        position: &Position,
        keyword: &str,
    ) -> Result<Result<Value, GrammarError>, GrammarError> {
        match self.exactly(keyword, position, |rewriter| rewriter.schema(value, inside)) {
            Ok((schema, _)) => Ok(Ok(schema)),
            Err(error @ GrammarError::NotEnforceable { .. }) => {
                Ok(Err(position.unenforceable(keyword, format!("cannot be enforced: {error}"))))
            }
            Err(error) => Err(error),
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
        if !fields.contains_key("then") && !fields.contains_key("else") {
            return Ok(());
        }
        let condition = match self.exact(value, &position.below("if", ""), position, "if")? {
            Ok(condition) if self.effort.rewrites() => condition,
            Ok(_) => return self.relax(position.unenforceable("if", "belongs to a schema that is too large")),
            Err(error) => return self.relax(error),
        };
        let not = match self.negation(&condition) {
            Some(not) => not,
            // Whether the condition holds or not, what follows from its not holding may be there.
            None => {
                self.relax(position.unenforceable("if", "is not supported for this schema"))?;
                Value::Bool(true)
            }
        };
        let schema = any_of(vec![all_of(vec![condition, then]), all_of(vec![not, otherwise])]);
        let cost = Cost::of(&schema, &self.costs);
        self.conjunct("if", (schema, cost), position, written)
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
            let cost = Cost::of(&schema, &self.costs);
            self.conjunct(keyword, (schema, cost), position, written)?;
        }
        Ok(())
    }
}

/// The schema that `{"not": ...}` negates, if that is all it does.
fn negated_twice(schema: &Value) -> Option<&Value> {
    let fields = schema.as_object()?;
    let says = |keyword: &String| !matches!(keywords::usage(keyword), Use::Annotation | Use::Unknown);
    let mut keywords = fields.keys().filter(|keyword| says(keyword));
    match (keywords.next(), keywords.next()) {
        (Some(keyword), None) if keyword == "not" => fields.get("not"),
        _ => None,
    }
}
