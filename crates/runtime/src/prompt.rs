//! What a request says to the model.

use ruvllm_text::{SpecialTokens, Tokenizer};
use serde_json::{Value, json};

/// One turn of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub role: String,
    pub content: String,
}

impl Message {
    pub fn new(role: &str, content: &str) -> Self {
        Self { role: role.to_owned(), content: content.to_owned() }
    }

    pub fn system(content: &str) -> Self {
        Self::new("system", content)
    }

    pub fn user(content: &str) -> Self {
        Self::new("user", content)
    }

    pub fn assistant(content: &str) -> Self {
        Self::new("assistant", content)
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({ "role": self.role, "content": self.content })
    }
}

/// The beginning of a text, in one of three forms.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// A conversation, put into the model's own chat format.
    Messages(Vec<Message>),
    /// Plain text to continue; special tokens in it are text like any other.
    Text(String),
    /// Token ids, as they are.
    Tokens(Vec<u32>),
}

/// Plain text, with the token that begins every text where the model wants one.
pub(crate) fn encode_text(tokenizer: &Tokenizer, text: &str) -> Vec<u32> {
    let bos = tokenizer.bos().filter(|_| tokenizer.adds_bos());
    bos.into_iter().chain(tokenizer.encode(text, SpecialTokens::AsText)).collect()
}
