//! Strings: patterns, formats, lengths.

use serde_json::{Map, Value, json};

use super::super::limits::PATTERN_CHECKS_MAX;
use super::written::Written;
use super::{GrammarError, Position, Rewriter, pattern};

/// Formats that llguidance enforces. The standard takes formats for annotations; whoever writes one means it.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

impl Rewriter<'_> {
    /// Returns a pattern for llguidance, or why there is none.
    pub(super) fn checked_pattern(&mut self, pattern: &str) -> Result<String, String> {
        if !self.effort.matches_patterns() {
            return Err("belongs to a schema that is too large".to_owned());
        }
        if let Some(known) = self.patterns.get(pattern) {
            return known.clone();
        }
        self.pattern_checks += 1;
        if self.pattern_checks > PATTERN_CHECKS_MAX {
            return Err("is one of too many patterns".to_owned());
        }
        let checked = pattern::checked(pattern);
        self.patterns.insert(pattern.to_owned(), checked.clone());
        checked
    }

    pub(super) fn pattern(
        &mut self,
        value: &Value,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        let pattern = value.as_str().ok_or_else(|| position.wrong("pattern", "must be a string"))?;
        match self.checked_pattern(pattern) {
            Ok(pattern) => {
                written.set("pattern", Value::from(pattern));
                Ok(())
            }
            Err(problem) => self.relax(position.unenforceable("pattern", format!("cannot be enforced: it {problem}"))),
        }
    }

    pub(super) fn format(
        &mut self,
        value: &Value,
        position: &Position,
        written: &mut Written,
    ) -> Result<(), GrammarError> {
        let format = value.as_str().ok_or_else(|| position.wrong("format", "must be a string"))?;
        if !FORMATS.contains(&format) {
            self.not_enforced.add_annotation(&format!("format:{format}"), &position.pointer);
        } else if self.effort.matches_patterns() {
            written.set("format", value.clone());
        } else {
            self.relax(position.unenforceable("format", "belongs to a schema that is too large"))?;
        }
        Ok(())
    }

    /// Lengths beside a pattern: llguidance must be able to find whether anything satisfies both.
    pub(super) fn lengths(&mut self, position: &Position, written: &mut Written) -> Result<(), GrammarError> {
        let (min, max) = (written.number("minLength"), written.number("maxLength"));
        let Some(Value::String(pattern)) = written.fields.get("pattern") else { return Ok(()) };
        if min.unwrap_or(0) == 0 && max.is_none() {
            return Ok(());
        }
        self.pattern_checks += 1;
        if self.pattern_checks <= PATTERN_CHECKS_MAX && pattern::has_length(pattern, min.unwrap_or(0), max).is_ok() {
            return Ok(());
        }
        for keyword in ["minLength", "maxLength"] {
            if written.fields.shift_remove(keyword).is_some() {
                self.relax(position.unenforceable(keyword, "cannot be enforced beside this pattern"))?;
            }
        }
        Ok(())
    }
}

/// What names a schema allows.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Names {
    All,
    Listed(Vec<String>),
    Pattern(String),
}

impl Names {
    /// Returns the names that a schema allows, if that can be said in one pattern.
    pub(super) fn of(schema: &Value, definitions: &Map<String, Value>, depth: usize) -> Option<Self> {
        let fields = match schema {
            Value::Bool(true) => return Some(Self::All),
            Value::Object(fields) if depth < 16 => fields,
            Value::Object(_) => return None,
            _ => return Some(Self::Listed(Vec::new())),
        };
        let mut names = Self::All;
        for (keyword, value) in fields {
            let of_keyword = match (keyword.as_str(), value) {
                ("type", types) => {
                    let is_string = |kind: &Value| kind == "string";
                    let has_string =
                        is_string(types) || types.as_array().is_some_and(|types| types.iter().any(is_string));
                    if has_string { Self::All } else { Self::Listed(Vec::new()) }
                }
                ("const", value) => Self::listed(std::slice::from_ref(value)),
                ("enum", Value::Array(values)) => Self::listed(values),
                ("pattern", Value::String(pattern)) => Self::Pattern(pattern.clone()),
                ("minLength", min) => Self::Pattern(format!("^(?s:.{{{min},}})$")),
                ("maxLength", max) => Self::Pattern(format!("^(?s:.{{0,{max}}})$")),
                ("format", _) => return None,
                ("anyOf", Value::Array(schemas)) => {
                    let each = schemas.iter().map(|schema| Self::of(schema, definitions, depth + 1));
                    each.collect::<Option<Vec<_>>>()?.into_iter().reduce(Self::or)?
                }
                ("allOf", Value::Array(schemas)) => {
                    let each = schemas.iter().map(|schema| Self::of(schema, definitions, depth + 1));
                    let each = each.collect::<Option<Vec<_>>>()?;
                    each.into_iter().try_fold(Self::All, Self::and)?
                }
                ("$ref", Value::String(path)) => {
                    Self::of(definitions.get(path.strip_prefix("#/$defs/")?)?, definitions, depth + 1)?
                }
                // Says nothing about strings.
                _ => Self::All,
            };
            names = names.and(of_keyword)?;
        }
        Some(names)
    }

    fn listed(values: &[Value]) -> Self {
        Self::Listed(values.iter().filter_map(Value::as_str).map(str::to_owned).collect())
    }

    fn and(self, other: Self) -> Option<Self> {
        Some(match (self, other) {
            (Self::All, other) | (other, Self::All) => other,
            (Self::Listed(mut names), Self::Listed(others)) => {
                names.retain(|name| others.contains(name));
                Self::Listed(names)
            }
            (Self::Listed(names), Self::Pattern(pattern)) | (Self::Pattern(pattern), Self::Listed(names)) => {
                let kept = names.into_iter().map(|name| Some((pattern::matches(&pattern, &name).ok()?, name)));
                let kept: Vec<_> = kept.collect::<Option<_>>()?;
                Self::Listed(kept.into_iter().filter_map(|(matches, name)| matches.then_some(name)).collect())
            }
            (Self::Pattern(one), Self::Pattern(other)) if one == other => Self::Pattern(one),
            (Self::Pattern(_), Self::Pattern(_)) => return None,
        })
    }

    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::All, _) | (_, Self::All) => Self::All,
            (Self::Listed(mut names), Self::Listed(others)) => {
                names.extend(others);
                Self::Listed(names)
            }
            (one, other) => Self::Pattern(format!("(?:{})|(?:{})", one.into_pattern(), other.into_pattern())),
        }
    }

    fn into_pattern(self) -> String {
        match self {
            Self::All => String::new(),
            Self::Pattern(pattern) => pattern,
            Self::Listed(names) => {
                let names: Vec<String> = names.iter().map(|name| regex_syntax::escape(name)).collect();
                format!("^(?:{})$", names.join("|"))
            }
        }
    }

    /// Returns a schema of objects that have such names only.
    pub(super) fn into_schema(self) -> Value {
        match self {
            Self::All => Value::Bool(true),
            Self::Listed(names) => {
                let properties: Map<String, Value> = names.into_iter().map(|name| (name, Value::Bool(true))).collect();
                json!({ "properties": properties, "additionalProperties": false })
            }
            Self::Pattern(pattern) => json!({ "patternProperties": { pattern: true }, "additionalProperties": false }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_or_match_one_pattern() {
        let names = |schema: Value| Names::of(&schema, &Map::new(), 0);
        let listed = |names: &[&str]| Some(Names::Listed(names.iter().map(|name| (*name).to_owned()).collect()));
        assert_eq!(names(json!({"type": "string"})), Some(Names::All));
        assert_eq!(names(json!({"type": "integer"})), listed(&[]));
        assert_eq!(names(json!(false)), listed(&[]));
        assert_eq!(names(json!({"enum": ["a", "bb", 3], "maxLength": 1})), listed(&["a"]));
        assert_eq!(names(json!({"pattern": "^a"})), Some(Names::Pattern("^a".to_owned())));
        assert_eq!(names(json!({"pattern": "^a", "maxLength": 3})), None);
        let either = names(json!({"anyOf": [{"pattern": "^a"}, {"const": "b."}]}));
        assert_eq!(either, Some(Names::Pattern(r"(?:^a)|(?:^(?:b\.)$)".to_owned())));
    }
}
