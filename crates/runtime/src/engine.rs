//! A model that is ready to answer.

use std::path::Path;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use ruvllm_engine::{Core, StepError, SubmitError};
use ruvllm_kernels::KernelSet;
use ruvllm_text::{
    ChatTemplate, ChatTemplateError, Conversation, NextTurn, SpecialTokens, StopMatcher, StopStringError, Tokenizer,
};

use crate::{ColdFormat, EngineBuilder, Message, Prompt, Request, Response, Stream, Usage};

#[derive(Debug, thiserror::Error)]
pub enum GenerateError {
    #[error("this model has no chat template: give it plain text to continue instead of messages")]
    NoTemplate,
    #[error(transparent)]
    Template(#[from] ChatTemplateError),
    #[error(transparent)]
    Stop(#[from] StopStringError),
    #[error(transparent)]
    Submit(#[from] SubmitError),
    #[error(transparent)]
    Step(#[from] StepError),
    #[error("the character {0:?} cannot be written with this model's vocabulary")]
    Unencodable(char),
}

/// A loaded model with its tokenizer and threads.
#[derive(Debug)]
pub struct Engine {
    pub(crate) core: Core,
    pub(crate) tokenizer: Arc<Tokenizer>,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) kernels: KernelSet,
    pub(crate) cold_format: Option<ColdFormat>,
}

impl Engine {
    /// An engine for the GGUF file at `path`.
    pub fn builder(path: impl AsRef<Path>) -> EngineBuilder {
        EngineBuilder::new(path.as_ref())
    }

    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The format of cold KV pages that was chosen for this model, if one had to be.
    pub fn cold_format(&self) -> Option<&ColdFormat> {
        self.cold_format.as_ref()
    }

    pub fn kernels(&self) -> KernelSet {
        self.kernels
    }

    pub fn threads(&self) -> usize {
        self.core.threads()
    }

    /// Tokens per sequence at most.
    pub fn context(&self) -> usize {
        self.core.model().context()
    }

    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    /// The engine underneath, for measurements in token ids.
    pub fn core(&mut self) -> &mut Core {
        &mut self.core
    }

    /// The token ids of a prompt, as the model will see them.
    pub fn encode(&self, prompt: &Prompt) -> Result<Vec<u32>, GenerateError> {
        match prompt {
            Prompt::Tokens(tokens) => Ok(tokens.clone()),
            Prompt::Text(text) => {
                self.check_encodable(text)?;
                let mut tokens = self.tokenizer.encode(text, SpecialTokens::AsText);
                if let Some(bos) = self.tokenizer.bos().filter(|_| self.tokenizer.adds_bos()) {
                    tokens.insert(0, bos);
                }
                Ok(tokens)
            }
            Prompt::Messages(messages) => self.encode_messages(messages),
        }
    }

    fn encode_messages(&self, messages: &[Message]) -> Result<Vec<u32>, GenerateError> {
        let template = self.template.as_ref().ok_or(GenerateError::NoTemplate)?;
        let messages: Vec<_> = messages.iter().map(Message::to_json).collect();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let conversation = Conversation {
            messages: &messages,
            tools: None,
            next_turn: NextTurn::Assistant,
            variables: &serde_json::Map::new(),
            now_unix_s: i64::try_from(now).unwrap_or(i64::MAX),
        };
        let prompt = template.render(&conversation)?;
        self.check_encodable(prompt.text())?;
        Ok(self.tokenizer.encode_prompt(&prompt))
    }

    /// Encoding leaves out what the vocabulary has no token for; nothing is to vanish in silence.
    fn check_encodable(&self, text: &str) -> Result<(), GenerateError> {
        self.tokenizer.first_unencodable(text).map_or(Ok(()), |character| Err(GenerateError::Unencodable(character)))
    }

    /// Starts answering. The stream does the work as it is read; dropping it ends the request.
    pub fn stream(&mut self, request: Request) -> Result<Stream<'_>, GenerateError> {
        let stop = StopMatcher::new(request.stop)?;
        let room = self.context().saturating_sub(request.max_tokens.unwrap_or(1)).max(1);
        let (prompt, truncated_tokens) = self.encode_within(&request.prompt, room, request.truncation)?;
        let prompt_tokens = prompt.len();
        let started = Instant::now();
        let id = self.core.submit(ruvllm_engine::Request {
            sampling: request.sampling,
            max_tokens: request.max_tokens,
            end_tokens: self.tokenizer.end_of_generation().to_vec(),
            speculation: request.speculation,
            tenant: request.tenant,
            priority: request.priority,
            prefix_use: request.prefix_use,
            ..ruvllm_engine::Request::new(prompt)
        })?;
        let usage = Usage { prompt_tokens, truncated_tokens, ..Usage::default() };
        Ok(Stream::new(self, id, usage, stop, started))
    }

    /// The whole answer at once.
    pub fn generate(&mut self, request: Request) -> Result<Response, GenerateError> {
        let mut stream = self.stream(request)?;
        for piece in &mut stream {
            piece?;
        }
        Ok(stream.into_response())
    }
}
