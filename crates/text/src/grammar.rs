//! Structured output: JSON, a schema, a regular expression, a grammar, tool calls.
//!
//! A [`GrammarCompiler`] turns a [`OutputFormat`] into a [`Matcher`], which returns at every step the tokens that may come next.
//! The automata are llguidance's. This module decides what reaches them: output formats come from users, so their size and
//! depth are bounded before anything recurses, and whatever could not be enforced is refused by name, or, where the schema
//! is not strict, left out and named ([`NotEnforced`]); a [`SchemaValidator`] checks a finished answer against all of
//! its schema. It knows nothing of logits, sampling or requests.

mod attempts;
mod cache;
mod closed;
mod compiler;
mod gbnf;
mod lark;
mod limited;
mod limits;
mod matcher;
mod not_enforced;
mod regex;
pub(crate) mod schema;
mod semaphore;
mod token_trie;
mod tool_calls;
mod validator;

pub use closed::closed;
pub use compiler::{Compiled, GrammarCompiler};
pub use matcher::{MatchError, Matcher};
pub use not_enforced::{NotEnforced, Place, Strictness};
pub use validator::{SchemaValidator, Violation};

use serde_json::json;

use crate::tools::ToolCalls;

/// The format that an answer must have.
#[derive(Clone, Debug, PartialEq)]
pub enum OutputFormat {
    /// Any JSON object.
    JsonObject,
    /// JSON that this JSON Schema accepts. Properties come in the order in which the schema lists them.
    JsonSchema { schema: serde_json::Value, strictness: Strictness },
    /// Text that the regular expression (syntax of Rust's `regex`) matches from beginning to end.
    Regex(String),
    /// llama.cpp's grammar format; begins at `root`.
    Gbnf(String),
    /// Lark, in llguidance's variant; begins at `start`.
    Lark(String),
    /// Calls of tools, as [`ToolFormat::output_format`](crate::ToolFormat::output_format) describes them.
    ToolCalls(ToolCalls),
}

impl OutputFormat {
    /// Returns the format of JSON that all of this schema accepts.
    pub fn strict_schema(schema: serde_json::Value) -> Self {
        Self::JsonSchema { schema, strictness: Strictness::Strict }
    }

    /// Returns the format of JSON that this schema accepts as far as that can be enforced.
    pub fn relaxed_schema(schema: serde_json::Value) -> Self {
        Self::JsonSchema { schema, strictness: Strictness::Relaxed }
    }

    /// Returns its name in error messages.
    fn what(&self) -> &'static str {
        match self {
            Self::JsonObject | Self::JsonSchema { .. } => "JSON schema",
            Self::Regex(_) => "regular expression",
            Self::Gbnf(_) => "GBNF grammar",
            Self::Lark(_) => "Lark grammar",
            Self::ToolCalls(_) => "tool definitions",
        }
    }

    /// Returns the JSON schemas in it.
    pub(crate) fn schemas(&self) -> Vec<&serde_json::Value> {
        match self {
            Self::JsonSchema { schema, .. } => vec![schema],
            Self::ToolCalls(calls) => calls.schemas(),
            Self::JsonObject | Self::Regex(_) | Self::Gbnf(_) | Self::Lark(_) => Vec::new(),
        }
    }

    /// Returns a JSON value that is the same for equal formats only.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        match self {
            Self::JsonObject => json!("json_object"),
            Self::JsonSchema { schema, strictness } => json!({ "json_schema": schema, "mode": strictness.name() }),
            Self::Regex(pattern) => json!({ "regex": pattern }),
            Self::Gbnf(source) => json!({ "gbnf": source }),
            Self::Lark(source) => json!({ "lark": source }),
            Self::ToolCalls(calls) => calls.to_json(),
        }
    }
}

/// Why an output format was refused. Shown to the client that sent it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GrammarError {
    #[error("the {what} has {got} bytes; at most {max} are accepted")]
    TooLong { what: &'static str, got: usize, max: usize },
    #[error("the {what} is nested more than {max} levels deep")]
    TooDeep { what: &'static str, max: usize },
    /// The keyword's value makes no sense.
    #[error("the keyword {keyword:?} at {pointer} {problem}")]
    Keyword { keyword: String, pointer: String, problem: String },
    /// The keyword makes sense, but a strict schema must not have it.
    #[error("the keyword {keyword:?} at {pointer} {problem}")]
    NotEnforceable { keyword: String, pointer: String, problem: String },
    #[error("the schema at {pointer} {problem}")]
    Schema { pointer: String, problem: String },
    #[error("the regular expression {pattern:?} {problem}")]
    Regex { pattern: String, problem: String },
    #[error("the {what}, line {line}: {problem}")]
    Syntax { what: &'static str, line: usize, problem: String },
    #[error("the {what} cannot be compiled: {reason}")]
    Uncompilable { what: &'static str, reason: String },
    #[error("the {what} took longer than {limit_ms} ms to compile; make it simpler")]
    TooSlow { what: &'static str, limit_ms: u128 },
    #[error("too many grammars that take long are being compiled; try again later")]
    Busy,
    #[error("tool {name:?}: {error}")]
    Tool { name: String, error: Box<GrammarError> },
    #[error("{got} tools were given; at most {max} are accepted")]
    TooManyTools { got: usize, max: usize },
    #[error("tools[{index}]: the name {name:?} must be 1 to 64 of the characters a-z, A-Z, 0-9, _ and -")]
    ToolName { index: usize, name: String },
    #[error("tools[{index}]: there is another tool with the name {name:?}")]
    DuplicateTool { index: usize, name: String },
    #[error("tool_choice names the tool {name:?}, which is not among the tools ({known})")]
    UnknownTool { name: String, known: String },
    #[error("tool_choice requires a tool call, but there are no tools")]
    NoTools,
    #[error(
        "with this model, an answer of a given format could not be told from a tool call; leave out one of them, or set \
         tool_choice"
    )]
    FormatOrBareCall,
    #[error("the vocabulary has {got} bytes of text; masks can be made for at most {max}")]
    VocabularyTooLarge { got: usize, max: usize },
}
