//! What an answer with tool calls must look like.

use serde_json::{Value, json};

use super::{Tool, ToolFormat};
use crate::grammar::schema::check_depth;
use crate::grammar::{GrammarError, OutputFormat, Strictness};

/// Maximum number of tools, as in OpenAI's API.
const TOOLS_MAX: usize = 128;
const NAME_CHARS_MAX: usize = 64;

/// What may stand beside calls.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ToolCallMode {
    /// Text; and if a call begins, it is one of the tools and ends properly.
    TextOrCalls,
    /// An answer of this output format, or calls.
    FormatOrCalls(Box<OutputFormat>),
    /// Nothing: the answer is a call.
    CallsOnly,
}

/// A tool with the schema of its arguments.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CallableTool {
    pub name: String,
    pub schema: Value,
    pub strictness: Strictness,
}

/// The output format of an answer that calls tools. Made by [`ToolFormat::output_format`].
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCalls {
    pub(crate) format: ToolFormat,
    pub(crate) tools: Vec<CallableTool>,
    pub(crate) mode: ToolCallMode,
    /// More than one call.
    pub(crate) is_parallel: bool,
}

impl ToolCalls {
    /// Gives answers that call no tool this output format.
    pub fn or(mut self, output_format: OutputFormat) -> Result<Self, GrammarError> {
        match (&self.mode, self.format) {
            (ToolCallMode::CallsOnly, _) => {}
            // An answer could not be distinguished from a call.
            (_, ToolFormat::BareJson) => return Err(GrammarError::FormatOrBareCall),
            _ => self.mode = ToolCallMode::FormatOrCalls(Box::new(output_format)),
        }
        Ok(self)
    }

    pub(crate) fn schemas(&self) -> Vec<&Value> {
        let of_answer = match &self.mode {
            ToolCallMode::FormatOrCalls(output_format) => output_format.schemas(),
            ToolCallMode::TextOrCalls | ToolCallMode::CallsOnly => Vec::new(),
        };
        self.tools.iter().map(|tool| &tool.schema).chain(of_answer).collect()
    }

    /// Returns a text that is the same for equal tool calls only.
    pub(crate) fn key(&self) -> String {
        let tools: Vec<Value> =
            self.tools.iter().map(|tool| json!([tool.name, tool.strictness.name(), tool.schema])).collect();
        let mode = match &self.mode {
            ToolCallMode::TextOrCalls => json!("text_or_calls"),
            ToolCallMode::FormatOrCalls(answer) => answer.to_json(),
            ToolCallMode::CallsOnly => json!("calls_only"),
        };
        json!([self.format.name(), mode, self.is_parallel, tools]).to_string()
    }

    /// Returns a JSON value that is the same for equal tool calls only.
    pub(crate) fn to_json(&self) -> Value {
        json!({ "tool_calls": self.key() })
    }
}

/// Refuses names that cannot be written in a call, names that occur twice, and schemas that are too deep to be copied.
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
