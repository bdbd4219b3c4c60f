//! Where in a schema we are, which errors tell.

use super::GrammarError;
use super::resources::Scope;

/// A key as part of a JSON pointer.
pub(super) fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// Where in the schema we are.
#[derive(Clone)]
pub(super) struct Position {
    pub pointer: String,
    /// Subschemas on the way here, references followed.
    pub depth: usize,
    pub scope: Scope,
}

impl Position {
    pub(super) fn root(scope: Scope) -> Self {
        Self { pointer: "#".to_owned(), depth: 1, scope }
    }

    pub(super) fn below(&self, keyword: &str, key: impl std::fmt::Display) -> Self {
        let key = escaped(&key.to_string());
        let slash = if key.is_empty() && keyword != "properties" { "" } else { "/" };
        let pointer = format!("{}/{keyword}{slash}{key}", self.pointer);
        Self { pointer, depth: self.depth + 1, scope: self.scope.clone() }
    }

    /// The keyword's value makes no sense.
    pub(super) fn wrong(&self, keyword: &str, problem: impl Into<String>) -> GrammarError {
        GrammarError::Keyword { keyword: keyword.to_owned(), pointer: self.pointer.clone(), problem: problem.into() }
    }

    /// The keyword makes sense, but not to the grammar.
    pub(super) fn unenforceable(&self, keyword: &str, problem: impl Into<String>) -> GrammarError {
        let (keyword, pointer) = (keyword.to_owned(), self.pointer.clone());
        GrammarError::NotEnforceable { keyword, pointer, problem: problem.into() }
    }
}
