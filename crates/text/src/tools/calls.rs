//! What an answer with tool calls must look like.

use serde_json::{Value, json};

use super::{Tool, ToolFormat};
use crate::grammar::schema::check_depth;
use crate::grammar::{GrammarError, Shape};

/// OpenAI accepts as many.
const TOOLS_MAX: usize = 128;
const NAME_CHARS_MAX: usize = 64;

/// What may stand beside calls.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ToolCallMode {
    /// Text; and if a call begins, it is one of the tools and ends properly.
    TextOrCalls,
    /// An answer of this shape, or calls.
    ShapeOrCalls(Box<Shape>),
    /// Nothing: the answer is a call.
    CallsOnly,
}

/// The shape of an answer that calls tools. Made by [`ToolFormat::shape`].
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCalls {
    pub(crate) format: ToolFormat,
    /// Names and schemas of the arguments.
    pub(crate) tools: Vec<(String, Value)>,
    pub(crate) mode: ToolCallMode,
    /// More than one call.
    pub(crate) is_parallel: bool,
}

impl ToolCalls {
    /// An answer that calls no tool has this shape.
    pub fn or(mut self, shape: Shape) -> Result<Self, GrammarError> {
        match (&self.mode, self.format) {
            (ToolCallMode::CallsOnly, _) => {}
            // Nobody could tell an answer from a call.
            (_, ToolFormat::BareJson) => return Err(GrammarError::ShapeOrBareCall),
            _ => self.mode = ToolCallMode::ShapeOrCalls(Box::new(shape)),
        }
        Ok(self)
    }

    pub(crate) fn schemas(&self) -> Vec<&Value> {
        let of_answer = match &self.mode {
            ToolCallMode::ShapeOrCalls(shape) => shape.schemas(),
            ToolCallMode::TextOrCalls | ToolCallMode::CallsOnly => Vec::new(),
        };
        self.tools.iter().map(|(_, schema)| schema).chain(of_answer).collect()
    }

    /// The same for equal shapes only.
    pub(crate) fn key(&self) -> String {
        let tools: Vec<Value> = self.tools.iter().map(|(name, schema)| json!([name, schema])).collect();
        format!("{:?} {:?} {} {}", self.format, self.mode, self.is_parallel, Value::Array(tools))
    }
}

/// Refuses names that cannot be written in a call, names that do not tell tools apart, and schemas that are too deep
/// to be copied.
pub(super) fn check_tools(tools: &[Tool]) -> Result<(), GrammarError> {
    if tools.len() > TOOLS_MAX {
        return Err(GrammarError::TooManyTools { got: tools.len(), max: TOOLS_MAX });
    }
    for (index, tool) in tools.iter().enumerate() {
        let name = tool.name.as_str();
        let is_good = |char: char| char.is_ascii_alphanumeric() || char == '_' || char == '-';
        if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(is_good) {
            return Err(GrammarError::ToolName { index, name: name.chars().take(NAME_CHARS_MAX).collect() });
        }
        if tools[..index].iter().any(|other| other.name == name) {
            return Err(GrammarError::DuplicateTool { index, name: name.to_owned() });
        }
        check_depth(&tool.parameters)
            .map_err(|error| GrammarError::Tool { name: name.to_owned(), error: Box::new(error) })?;
    }
    Ok(())
}
