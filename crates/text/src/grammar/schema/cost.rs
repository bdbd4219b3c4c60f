//! How large a schema grows when llguidance multiplies its alternatives out.
//!
//! Where two schemas must both hold, each alternative of the one is merged with each of the other, and all of them are
//! copied. The compiler counts merges, not the bytes copied; a small schema could ask for gigabytes. A reference stays a
//! reference until it is merged with something.

use std::collections::HashMap;

use serde_json::Value;

use super::keywords;
use super::negation::NEGATION;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cost {
    as_it_is: Size,
    /// With references replaced by what they refer to.
    written_out: Size,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    nodes: u64,
    /// The most alternatives at any one position.
    alternatives: u64,
}

impl Cost {
    /// A schema that says nothing.
    pub(super) const ANYTHING: Self = Self::new(1, 1);

    const fn new(nodes: u64, alternatives: u64) -> Self {
        let size = Size { nodes, alternatives };
        Self { as_it_is: size, written_out: size }
    }

    /// Keywords besides `type` that hold for values of some type, when `types` types are possible. Types do not multiply:
    /// one of a schema goes together with one of the other only.
    pub(super) fn of_types(types: usize) -> Self {
        Self::new(types as u64, 1)
    }

    /// Returns the cost of a schema that was written anew; `definitions` are those of what it refers to.
    pub(super) fn of(schema: &Value, definitions: &HashMap<String, Self>) -> Self {
        let Value::Object(fields) = schema else { return Self::ANYTHING };
        let of = |schema: &Value| Self::of(schema, definitions);
        let mut cost = Self::of_types(keywords::possible_types(fields));
        for (keyword, value) in fields {
            cost = match (keyword.as_str(), value) {
                ("anyOf", Value::Array(options)) => {
                    cost.and(options.iter().map(of).reduce(Self::or).unwrap_or(Self::ANYTHING))
                }
                ("allOf", Value::Array(schemas)) => schemas.iter().map(of).fold(cost, Self::and),
                ("prefixItems", Value::Array(items)) => items.iter().map(of).fold(cost, Self::with_child),
                ("properties" | "patternProperties", Value::Object(properties)) => {
                    properties.values().map(of).fold(cost, Self::with_child)
                }
                ("items" | "additionalProperties", item) => cost.with_child(of(item)),
                ("$ref", Value::String(path)) => {
                    let name = path.strip_prefix("#/$defs/").unwrap_or_default();
                    cost.and(definitions.get(name).copied().unwrap_or(Self::ANYTHING).referred_to())
                }
                (NEGATION, _) => cost,
                _ => cost.with_literal(keyword, value),
            };
        }
        cost
    }

    pub(super) fn nodes(&self) -> u64 {
        self.as_it_is.nodes
    }

    /// A reference to this, and nothing else.
    pub(super) fn referred_to(self) -> Self {
        Self { as_it_is: Size { nodes: 2, alternatives: 1 }, ..self }
    }

    /// A keyword with a plain value.
    pub(super) fn with_literal(self, keyword: &str, value: &Value) -> Self {
        match (keyword, value) {
            ("enum", Value::Array(values)) => self.and(Self::new(nodes(value), values.len() as u64)),
            _ => self.with_child(Self::new(nodes(value), 1)),
        }
    }

    /// A schema for something inside.
    pub(super) fn with_child(self, child: Self) -> Self {
        self.combined(child, |one, other| Size {
            nodes: one.nodes.saturating_add(other.nodes),
            alternatives: one.alternatives.max(other.alternatives),
        })
    }

    pub(super) fn or(self, other: Self) -> Self {
        self.combined(other, |one, other| Size {
            nodes: one.nodes.saturating_add(other.nodes),
            alternatives: one.alternatives.saturating_add(other.alternatives),
        })
    }

    pub(super) fn and(self, other: Self) -> Self {
        if self == Self::ANYTHING {
            return other;
        }
        if other == Self::ANYTHING {
            return self;
        }
        let (one, other) = (self.written_out, other.written_out);
        let copies = |of: Size, per: Size| of.nodes.saturating_mul(per.alternatives);
        let nodes = copies(one, other).saturating_add(copies(other, one));
        Self::new(nodes, one.alternatives.saturating_mul(other.alternatives))
    }

    fn combined(self, other: Self, combine: fn(Size, Size) -> Size) -> Self {
        Self {
            as_it_is: combine(self.as_it_is, other.as_it_is),
            written_out: combine(self.written_out, other.written_out),
        }
    }
}

fn nodes(value: &Value) -> u64 {
    match value {
        Value::Array(items) => 1 + items.iter().map(nodes).sum::<u64>(),
        Value::Object(fields) => 1 + fields.values().map(nodes).sum::<u64>(),
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn alternatives(count: u64) -> Cost {
        (1..count).fold(Cost::ANYTHING, |cost, _| cost.or(Cost::ANYTHING))
    }

    #[test]
    fn alternatives_multiply_only_where_both_must_hold() {
        assert_eq!(alternatives(10), Cost::new(10, 10));
        assert_eq!(alternatives(10).with_child(alternatives(5)).nodes(), 15);
        assert_eq!(alternatives(10).and(alternatives(20)), Cost::new(400, 200));
        assert_eq!(alternatives(10).and(Cost::ANYTHING), alternatives(10));
        let huge = (0..40).fold(alternatives(1_000), |cost, _| cost.and(cost));
        assert_eq!(huge.nodes(), u64::MAX);
        assert_eq!(Cost::ANYTHING.with_literal("enum", &json!(["a", ["b", "c"]])), Cost::new(5, 2));
    }

    #[test]
    fn references_count_where_they_are_merged() {
        let twice = |cost: Cost| Cost::ANYTHING.with_child(cost.referred_to()).with_child(cost.referred_to());
        let doubled = (0..60).fold(alternatives(3), |cost, _| twice(cost));
        assert_eq!(doubled.nodes(), 5);
        assert_eq!(Cost::ANYTHING.and(doubled.referred_to()).nodes(), 2);
        assert!(doubled.referred_to().and(alternatives(2)).nodes() > 1 << 60);
    }
}
