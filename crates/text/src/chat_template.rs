//! The model's own chat template, rendered in a sandbox.
//!
//! A template comes from a model file and is hostile until proven otherwise: it can reach nothing, and what it may
//! spend (steps, depth, what it builds up in its variables and writes) is limited ([`render_budget`]). A conversation comes from users
//! and is hostile too: whatever it contains, the special tokens in the rendered prompt are only those that the template itself
//! wrote ([`guard`]).

mod constants;
mod environment;
mod filters;
mod guard;
mod json;
mod marked_text;
mod metered;
mod operators;
mod python;
mod reasoning_names;
mod render_budget;
pub mod strftime;
mod type_tests;
mod writing;

use minijinja::value::{Rest, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, Value, machinery};
use serde_json::{Map, Value as Json};

use crate::tokenizer::Tokenizer;
use environment::{RaisedByTemplate, TEMPLATE_NAME};
use guard::Guard;
use metered::{metered, metered_blocks};
use python::arguments::{bind, required, text};
use render_budget::TooMuchBuilt;

/// Published templates stay below 20 KiB.
const SOURCE_BYTES_MAX: usize = 128 << 10;

/// Roles that templates know. Others are accepted as long as they cannot complete a special token: templates write
/// things like `'<|' + role + '|>'`.
const KNOWN_ROLES: [&str; 7] = ["system", "user", "assistant", "tool", "function", "developer", "ipython"];

/// Why a template was refused, or why it did not render.
#[derive(Debug, thiserror::Error)]
pub enum ChatTemplateError {
    #[error("the chat template has {got} bytes; at most {max} are accepted")]
    TooLong { got: usize, max: usize },
    #[error("the chat template is not valid Jinja: {reason}")]
    Syntax { reason: String },
    #[error("{count} texts that must be kept apart cannot be searched for: {reason}")]
    Unguardable { count: usize, reason: String },
    #[error("messages[{index}] {problem}")]
    BadMessage { index: usize, problem: &'static str },
    #[error("messages[{index}].role {role:?} is part of one of the model's special tokens and cannot be used")]
    ForbiddenRole { index: usize, role: String },
    #[error("the chat template refuses this conversation: {message}")]
    Refused { message: String },
    #[error("the chat template did not finish within {fuel} steps")]
    OutOfFuel { fuel: u64 },
    #[error("the chat template wrote more than {bytes_max} bytes")]
    OutputTooLarge { bytes_max: usize },
    #[error("the chat template builds more than {bytes_max} bytes of text and lists")]
    TooMuchBuilt { bytes_max: usize },
    #[error("the chat template failed: {reason}")]
    Failed { reason: String },
    #[error("the conversation uses all 32 characters that could mark its boundaries (U+FDD0 to U+FDEF)")]
    NoSentinelLeft,
}

/// What one rendering may spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RenderLimits {
    /// Template instructions.
    pub fuel: u64,
    pub output_bytes_max: usize,
    /// Bytes of all texts and lists that it makes, including the output, whether it keeps them or not.
    pub built_bytes_max: usize,
    /// Nesting of macros and blocks.
    pub recursion_max: usize,
}

impl Default for RenderLimits {
    /// Enough for ten thousand messages, or for the longest context that models have; over in about a second.
    fn default() -> Self {
        Self { fuel: 20_000_000, output_bytes_max: 64 << 20, built_bytes_max: 1 << 30, recursion_max: 512 }
    }
}

/// Whether the prompt ends with the beginning of the assistant's turn (Jinja's `add_generation_prompt`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextTurn {
    Assistant,
    None,
}

/// What a template renders; nothing in it is trusted.
#[derive(Clone, Debug)]
pub struct Conversation<'a> {
    /// Objects with `role` and whatever the template uses besides (`content`, `tool_calls`, ...).
    pub messages: &'a [Json],
    pub tools: Option<&'a Json>,
    pub next_turn: NextTurn,
    /// Further variables, such as `enable_thinking` or `documents`.
    pub variables: &'a Map<String, Json>,
    /// What `strftime_now` shows: seconds since 1970, shifted to the time zone that is to be shown.
    pub now_unix_s: i64,
}

/// A rendered conversation. Encode it with [`Tokenizer::encode_prompt`]; encoding [`Self::text`] with
/// [`SpecialTokens::Parse`](crate::SpecialTokens::Parse) would let users forge special tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderedPrompt {
    text: String,
    guards: Vec<usize>,
}

impl RenderedPrompt {
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Positions that no special token may span, ascending.
    pub(crate) fn guards(&self) -> &[usize] {
        &self.guards
    }
}

/// A compiled chat template for one tokenizer.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    limits: RenderLimits,
    guard: Guard,
    trusted_texts: Vec<String>,
    /// `bos_token` and `eos_token`: the template's own, so not guarded.
    token_variables: Vec<(&'static str, String)>,
}

impl ChatTemplate {
    pub fn new(source: &str, tokenizer: &Tokenizer) -> Result<Self, ChatTemplateError> {
        Self::with_limits(source, tokenizer, RenderLimits::default())
    }

    pub fn with_limits(source: &str, tokenizer: &Tokenizer, limits: RenderLimits) -> Result<Self, ChatTemplateError> {
        if source.len() > SOURCE_BYTES_MAX {
            return Err(ChatTemplateError::TooLong { got: source.len(), max: SOURCE_BYTES_MAX });
        }
        let environment = environment::build(source, &limits)?;
        let trusted_texts: Vec<String> = tokenizer.trusted_texts().map(str::to_owned).collect();
        let token = |id: Option<u32>| id.map(|id| tokenizer.token_text(id).to_owned()).unwrap_or_default();
        Ok(Self {
            environment,
            limits,
            guard: Guard::new(source, &trusted_texts)?,
            trusted_texts,
            token_variables: vec![("bos_token", token(tokenizer.bos())), ("eos_token", token(tokenizer.eos()))],
        })
    }

    pub fn render(&self, conversation: &Conversation) -> Result<RenderedPrompt, ChatTemplateError> {
        for (index, message) in conversation.messages.iter().enumerate() {
            self.check_message(index, message)?;
        }
        let untrusted = conversation.messages.iter().chain(conversation.tools).chain(conversation.variables.values());
        let stand_in = guard::stand_in(untrusted).ok_or(ChatTemplateError::NoSentinelLeft)?;

        let mut output = String::new();
        let rendered = self.write(self.context(conversation, stand_in), &mut output);
        if output.len() > self.limits.output_bytes_max {
            return Err(ChatTemplateError::OutputTooLarge { bytes_max: self.limits.output_bytes_max });
        }
        rendered.map_err(|error| self.describe(&error, stand_in))?;
        let (text, guards) = guard::remove_sentinels(&output, stand_in);
        Ok(RenderedPrompt { text, guards })
    }

    /// Runs the template's instructions, metered. They are few compared to what a rendering does.
    fn write(&self, context: Value, output: &mut String) -> Result<(), Error> {
        let template = self.environment.get_template(TEMPLATE_NAME)?;
        let compiled = machinery::get_compiled_template(&template);
        let (instructions, blocks) = (metered(&compiled.instructions), metered_blocks(&compiled.blocks));
        let mut output = machinery::make_string_output(output);
        let escape = compiled.initial_auto_escape.clone();
        machinery::eval(&self.environment, &instructions, context, &blocks, &mut output, escape).map(drop)
    }

    fn check_message(&self, index: usize, message: &Json) -> Result<(), ChatTemplateError> {
        let bad = |problem| ChatTemplateError::BadMessage { index, problem };
        let fields = message.as_object().ok_or_else(|| bad("is not an object"))?;
        let role = fields.get("role").and_then(Json::as_str).ok_or_else(|| bad("has no role (a string)"))?;
        let completes_a_token = || self.trusted_texts.iter().any(|text| text.contains(role));
        if role.is_empty() || (!KNOWN_ROLES.contains(&role) && completes_a_token()) {
            return Err(ChatTemplateError::ForbiddenRole { index, role: role.to_owned() });
        }
        Ok(())
    }

    fn context(&self, conversation: &Conversation, stand_in: char) -> Value {
        let guarded = |json: &Json| self.guard.marked_value(json, stand_in);
        let mut variables: Vec<(String, Value)> =
            conversation.variables.iter().map(|(name, value)| (name.clone(), guarded(value))).collect();
        let mut set = |name: &str, value: Value| variables.push((name.to_owned(), value));
        for (name, text) in &self.token_variables {
            set(name, text.as_str().into());
        }
        let messages = conversation.messages.iter().map(|message| guarded(&reasoning_names::added(message)));
        set("messages", messages.collect());
        if !conversation.variables.contains_key("documents") {
            set("documents", Value::from(()));
        }
        set("tools", conversation.tools.map_or_else(|| Value::from(()), guarded));
        set("add_generation_prompt", (conversation.next_turn == NextTurn::Assistant).into());
        let now_unix_s = conversation.now_unix_s;
        let strftime_now = move |values: Rest<ValueOrKwargs>| {
            let [format] = bind(&values.into_values(), ["format"])?;
            text(required(&format)?).map(|format| strftime::format(format, now_unix_s))
        };
        set("strftime_now", Value::from_function(strftime_now));
        Value::from_pairs(variables)
    }

    fn describe(&self, error: &minijinja::Error, stand_in: char) -> ChatTemplateError {
        if error.kind() == ErrorKind::OutOfFuel {
            return ChatTemplateError::OutOfFuel { fuel: self.limits.fuel };
        }
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(inner) = cause {
            if let Some(RaisedByTemplate(message)) = inner.downcast_ref() {
                return ChatTemplateError::Refused { message: guard::remove_sentinels(message, stand_in).0 };
            }
            if inner.is::<TooMuchBuilt>() {
                return ChatTemplateError::TooMuchBuilt { bytes_max: self.limits.built_bytes_max };
            }
            if inner.downcast_ref().is_some_and(|inner: &minijinja::Error| inner.kind() == ErrorKind::OutOfFuel) {
                return ChatTemplateError::OutOfFuel { fuel: self.limits.fuel };
            }
            cause = inner.source();
        }
        ChatTemplateError::Failed { reason: guard::remove_sentinels(&error.to_string(), stand_in).0 }
    }
}

#[cfg(test)]
mod tests;
