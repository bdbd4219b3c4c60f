//! Embeddings that a generator gives as by-products: directions of mean hidden states.

use crate::engine::GenerateError;
use crate::{
    Backend, EmbedError, EmbedInput, EmbedRequest, Embeddings, Engine, Message, PrefixUse, Prompt, Request, Sampling,
    TooLong, Truncation,
};

/// What prompt and answer are about, as vectors of length 1. Those of one model can be compared with each other: the larger the
/// dot product, the more alike.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextEmbeddings {
    /// Of the last message that the user wrote, or of the whole prompt where it is not a conversation.
    pub prompt: Option<Vec<f32>>,
    pub answer: Option<Vec<f32>>,
}

impl Request {
    /// Asks for nothing but the embedding of a text, which is that of a conversation with it as the only message.
    pub fn to_embed(engine: &Engine, text: &str) -> Self {
        let prompt = if engine.has_chat_template() {
            Prompt::Messages(vec![Message::user(text)])
        } else {
            Prompt::Text(text.to_owned())
        };
        // Texts are embedded once, and many at a time: they are not to push out what is worth caching.
        let prefix_use = PrefixUse::OFF;
        Self { max_tokens: Some(1), sampling: Sampling::greedy(), prefix_use, embeddings: true, ..Self::new(prompt) }
    }
}

impl Engine {
    /// The embedding of a text, to be compared with those of prompts and answers. The engine must keep hidden states. Blocks the
    /// thread; others stream [`Request::to_embed`] and take the prompt's embedding from the response.
    pub fn embed(&self, text: &str) -> Result<Vec<f32>, GenerateError> {
        let response = self.generate(Request::to_embed(self, text))?;
        response.embeddings.prompt.ok_or(GenerateError::NoEmbedding)
    }
}

/// A generator embeds texts as well as it can: with a pass through the model for each.
impl Backend for Engine {
    fn name(&self) -> &'static str {
        "native"
    }

    fn dimensions(&self) -> usize {
        self.hidden()
    }

    fn context(&self) -> usize {
        Engine::context(self)
    }

    fn embed(&self, request: &EmbedRequest) -> Result<Embeddings, EmbedError> {
        let mut all = Embeddings::default();
        for (index, input) in request.inputs.iter().enumerate() {
            if request.patience.is_over() {
                return Err(EmbedError::Abandoned { tokens: all.tokens.iter().sum() });
            }
            let one = match input {
                EmbedInput::Text(text) if text.is_empty() => return Err(EmbedError::Empty { index }),
                EmbedInput::Text(text) => Request::to_embed(self, text),
                EmbedInput::Tokens(tokens) if tokens.is_empty() => return Err(EmbedError::Empty { index }),
                EmbedInput::Tokens(tokens) => {
                    Request { prompt: Prompt::Tokens(tokens.clone()), ..Request::to_embed(self, "") }
                }
            };
            let one = Request {
                // The beginning is what goes, here.
                truncation: if request.too_long == TooLong::CutEnd {
                    Truncation::DropOldest
                } else {
                    Truncation::Refuse
                },
                ..one
            };
            let response = self.generate(one).map_err(|error| EmbedError::Failed { why: error.to_string() })?;
            let failed = || EmbedError::Failed { why: GenerateError::NoEmbedding.to_string() };
            all.vectors.push(response.embeddings.prompt.ok_or_else(failed)?);
            all.tokens.push(response.usage.prompt_tokens);
            all.cut_tokens += response.usage.truncated_tokens;
        }
        Ok(all)
    }
}

/// States that are added up.
#[derive(Debug, Default)]
pub(crate) struct Sum(Vec<f32>);

impl Sum {
    pub(crate) fn add(&mut self, state: &[f32]) {
        self.0.resize(state.len(), 0.0);
        self.0.iter_mut().zip(state).for_each(|(sum, x)| *sum += x);
    }

    /// That of the mean, if there is any.
    pub(crate) fn direction(&self) -> Option<Vec<f32>> {
        unit(&self.0)
    }
}

/// The vector of length 1 with the same direction, if it has one.
pub(crate) fn unit(vector: &[f32]) -> Option<Vec<f32>> {
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    (length > 0.0 && length.is_finite()).then(|| vector.iter().map(|x| x / length).collect())
}
