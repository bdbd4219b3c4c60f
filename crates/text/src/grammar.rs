//! Answers that must have a shape: JSON, a schema, a regular expression, a grammar, tool calls.
//!
//! A [`GrammarCompiler`] turns a [`Shape`] into a [`Matcher`], which tells at every step which tokens may come next.
//! The automata are llguidance's. This module decides what reaches them: shapes come from users, so their size and
//! depth are bounded before anything recurses, and whatever could not be enforced is refused by name rather than
//! dropped. It knows nothing of logits, sampling or requests.

mod cache;
mod closed;
mod compiler;
mod gbnf;
mod lark;
mod limits;
mod matcher;
mod regex;
pub(crate) mod schema;
mod token_trie;
mod tool_calls;
mod turns;

pub use closed::closed;
pub use compiler::GrammarCompiler;
pub use matcher::{MatchError, Matcher};

use crate::tools::ToolCalls;

/// What an answer must look like.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// Any JSON object.
    JsonObject,
    /// JSON that this JSON Schema accepts. Properties come in the order in which the schema lists them.
    JsonSchema(serde_json::Value),
    /// Text that the regular expression (syntax of Rust's `regex`) matches from beginning to end.
    Regex(String),
    /// llama.cpp's grammar format; begins at `root`.
    Gbnf(String),
    /// Lark, in llguidance's variant; begins at `start`.
    Lark(String),
    /// Calls of tools, as [`ToolFormat::shape`](crate::ToolFormat::shape) describes them.
    ToolCalls(ToolCalls),
}

impl Shape {
    /// What error messages call it.
    fn what(&self) -> &'static str {
        match self {
            Self::JsonObject | Self::JsonSchema(_) => "JSON schema",
            Self::Regex(_) => "regular expression",
            Self::Gbnf(_) => "GBNF grammar",
            Self::Lark(_) => "Lark grammar",
            Self::ToolCalls(_) => "tool definitions",
        }
    }

    /// The schemas in it.
    pub(crate) fn schemas(&self) -> Vec<&serde_json::Value> {
        match self {
            Self::JsonSchema(schema) => vec![schema],
            Self::ToolCalls(calls) => calls.schemas(),
            Self::JsonObject | Self::Regex(_) | Self::Gbnf(_) | Self::Lark(_) => Vec::new(),
        }
    }
}

/// Why a shape was refused. Shown to whoever sent it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum GrammarError {
    #[error("the {what} has {got} bytes; at most {max} are accepted")]
    TooLong { what: &'static str, got: usize, max: usize },
    #[error("the {what} is nested more than {max} levels deep")]
    TooDeep { what: &'static str, max: usize },
    #[error("the keyword {keyword:?} at {pointer} is unknown and would not be enforced; remove it")]
    UnknownKeyword { keyword: String, pointer: String },
    #[error("the keyword {keyword:?} at {pointer} {problem}")]
    Keyword { keyword: String, pointer: String, problem: String },
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
        "with this model, an answer of a given shape could not be told from a tool call; leave out one of them, or set \
         tool_choice"
    )]
    ShapeOrBareCall,
    #[error("the vocabulary has {got} bytes of text; masks can be made for at most {max}")]
    VocabularyTooLarge { got: usize, max: usize },
}
