//! Strings to tokens and back: tokenizers, chat templates, detokenizer, stop strings, grammars, reasoning, tool calls.
//!
//! This crate knows text and token ids. It knows nothing of model files, weights, requests or the wire: a vocabulary
//! is handed in as plain data ([`Vocabulary`]) or as the bytes of a `tokenizer.json`, and everything that comes from
//! a model file is treated as hostile.
//!
//! One rule holds throughout: text that a user wrote never becomes a control token. Only the chat template's own
//! text, encoded with [`Tokenizer::encode_prompt`], or text that the caller marks with [`SpecialTokens::Parse`] does.

mod chat_template;
mod detokenizer;
mod grammar;
mod priority;
mod reasoning;
mod stop;
mod tokenizer;
mod tools;
mod vocabulary;

pub use chat_template::{
    ChatTemplate, ChatTemplateError, Conversation, NextTurn, RenderLimits, RenderedPrompt, strftime,
};
pub use detokenizer::Detokenizer;
pub use grammar::{
    Compiled, GrammarCompiler, GrammarError, MatchError, Matcher, NotEnforced, OutputFormat, Place, SchemaValidator,
    Strictness, Violation, closed,
};
pub use priority::{BACKGROUND_NICE, lower_priority, lower_priority_to};
pub use reasoning::{ReasoningFormat, ReasoningParser, ReasoningPhase, ReasoningPiece};
pub use stop::{StopMatcher, StopOutcome, StopStringError};
pub use tokenizer::{PairTemplate, RunCache, SpecialTokens, Tokenizer, TokenizerError};
pub use tools::{Explanation, Tool, ToolCallParser, ToolCalls, ToolChoice, ToolFormat, ToolPiece};
pub use vocabulary::{TokenKind, Vocabulary, VocabularyError, WhitespaceAfterSpecial};
