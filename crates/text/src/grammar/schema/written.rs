//! A schema while it is written anew.

use serde_json::{Map, Value, json};

use super::cost::Cost;
use super::keywords;

pub(super) struct Written {
    pub fields: Map<String, Value>,
    /// Schemas that must hold as well.
    pub conjuncts: Vec<Value>,
    pub cost: Cost,
}

impl Written {
    pub(super) fn new(fields: &Map<String, Value>) -> Self {
        let cost = Cost::of_types(keywords::possible_types(fields));
        Self { fields: Map::new(), conjuncts: Vec::new(), cost }
    }

    pub(super) fn set(&mut self, keyword: &str, value: Value) {
        self.fields.insert(keyword.to_owned(), value);
    }

    pub(super) fn add_children(&mut self, costs: impl IntoIterator<Item = Cost>) {
        self.cost = costs.into_iter().fold(self.cost, Cost::with_child);
    }

    /// Returns the names that must be there.
    pub(super) fn required(&self) -> Vec<&str> {
        let names = self.fields.get("required").and_then(Value::as_array);
        names.map_or(Vec::new(), |names| names.iter().filter_map(Value::as_str).collect())
    }

    pub(super) fn number(&self, keyword: &str) -> Option<u64> {
        self.fields.get(keyword).and_then(Value::as_u64)
    }

    pub(super) fn finish(mut self) -> (Value, Cost) {
        // Without its type, each alternative would be one for every type.
        if let Some(Value::String(kind)) = self.fields.get("type") {
            self.conjuncts.iter_mut().for_each(|schema| give_type(schema, kind));
        }
        self.conjuncts.retain(|schema| !is_anything(schema));
        if self.conjuncts.contains(&Value::Bool(false)) {
            return (Value::Bool(false), Cost::ANYTHING);
        }
        if !self.conjuncts.is_empty() {
            let all = self.fields.entry("allOf").or_insert_with(|| json!([]));
            if let Value::Array(all) = all {
                all.append(&mut self.conjuncts);
            }
        }
        if self.fields.get("allOf").is_some_and(|all| all == &json!([])) {
            self.fields.shift_remove("allOf");
        }
        (Value::Object(self.fields), self.cost)
    }
}

/// Returns whether a schema says nothing.
pub(super) fn is_anything(schema: &Value) -> bool {
    match schema {
        Value::Bool(anything) => *anything,
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// Returns a schema that accepts what one of these does.
pub(super) fn any_of(mut schemas: Vec<Value>) -> Value {
    schemas.retain(|schema| schema != &Value::Bool(false));
    match schemas.len() {
        _ if schemas.iter().any(is_anything) => Value::Bool(true),
        0 => Value::Bool(false),
        1 => schemas.remove(0),
        _ => json!({ "anyOf": schemas }),
    }
}

/// Returns a schema that accepts what all of these do.
pub(super) fn all_of(mut schemas: Vec<Value>) -> Value {
    schemas.retain(|schema| !is_anything(schema));
    match schemas.len() {
        _ if schemas.contains(&Value::Bool(false)) => Value::Bool(false),
        0 => Value::Bool(true),
        1 => schemas.remove(0),
        _ => json!({ "allOf": schemas }),
    }
}

/// Says of a schema, in which values of this type only are asked for, that they are of this type.
fn give_type(schema: &mut Value, kind: &str) {
    let Value::Object(fields) = schema else { return };
    for keyword in ["anyOf", "allOf"] {
        if let Some(Value::Array(schemas)) = fields.get_mut(keyword) {
            schemas.iter_mut().for_each(|schema| give_type(schema, kind));
            return;
        }
    }
    if !["type", "const", "enum", "$ref"].iter().any(|keyword| fields.contains_key(*keyword)) {
        fields.insert("type".to_owned(), Value::from(kind));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_are_as_small_as_they_can_be() {
        assert_eq!(any_of(vec![json!(false), json!({"type": "null"})]), json!({"type": "null"}));
        assert_eq!(any_of(vec![json!({}), json!({"type": "null"})]), json!(true));
        assert_eq!(any_of(vec![]), json!(false));
        assert_eq!(all_of(vec![json!({}), json!({"type": "null"})]), json!({"type": "null"}));
        assert_eq!(all_of(vec![json!(false), json!({"type": "null"})]), json!(false));
        assert_eq!(all_of(vec![]), json!(true));
    }
}
