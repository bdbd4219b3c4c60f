//! Tools: how a model is told of them, what its calls must look like, and how calls are found in what it writes.
//!
//! A [`ToolFormat`] is the way in which one model writes calls. It prepares conversations for the model's chat template
//! and describes answers as a [`OutputFormat`](crate::OutputFormat), so that arguments are valid by construction; a
//! [`ToolCallParser`] takes the generated text apart. This module knows nothing of who runs the tools.

mod call_parser;
mod calls;
mod conversation;
mod format;

pub use call_parser::{ToolCallParser, ToolPiece};
pub use calls::ToolCalls;
pub(crate) use calls::{CallableTool, ToolCallMode};
pub(crate) use format::{CALL_CLOSES, CALL_OPENS};
pub use format::{Explanation, ToolFormat};

use serde_json::Value;

use crate::grammar::Strictness;

/// A function that the model may ask to be called.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    pub name: String,
    pub description: Option<String>,
    /// JSON Schema of the arguments; null means that there are none, `{}` any object.
    pub parameters: Value,
    /// Whether arguments are held to all of the schema, or as far as that can be enforced.
    pub strictness: Strictness,
}

/// Whether the model calls tools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// As it sees fit.
    #[default]
    Auto,
    /// It does not, and is not told of any.
    None,
    /// It must.
    Required,
    /// It must call this one.
    Named(String),
}
