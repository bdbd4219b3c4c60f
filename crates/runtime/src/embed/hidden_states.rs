//! Embeddings of a generating model: directions of mean hidden states.

use ruvllm_engine::SubmitError;

use super::{EmbedError, EmbedInput, EmbedRequest, Embedder, Embeddings, TooLong};
use crate::{
    CancellationToken, Engine, GenerateError, Message, PrefixUse, Prompt, Request, Response, Sampling, Truncation,
};

/// Vectors of length 1 for prompt and answer. Those of one model can be compared: the larger the dot product, the more alike.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextEmbeddings {
    /// Embedding of the last user message, or of the whole prompt where it is not a conversation.
    pub prompt: Option<Vec<f32>>,
    pub answer: Option<Vec<f32>>,
}

impl Request {
    /// Creates a request for nothing but the embedding of a text: that of a conversation with the text as its only message.
    pub fn to_embed(engine: &Engine, text: &str) -> Self {
        let prompt = if engine.has_chat_template() {
            Prompt::Messages(vec![Message::user(text)])
        } else {
            Prompt::Text(text.to_owned())
        };
        Self::embedding_of(prompt)
    }

    fn embedding_of(prompt: Prompt) -> Self {
        // Texts are embedded once, and many at a time: they must not evict prefixes that are worth caching.
        let prefix_use = PrefixUse::OFF;
        Self { max_tokens: Some(1), sampling: Sampling::greedy(), prefix_use, embeddings: true, ..Self::new(prompt) }
    }
}

impl Engine {
    /// Returns the embedding of a text, comparable with those of prompts and answers. The engine must keep hidden states.
    /// Blocks the thread; asynchronous callers stream [`Request::to_embed`] and take the prompt's embedding of the response.
    pub fn embed(&self, text: &str) -> Result<Vec<f32>, GenerateError> {
        let response = self.generate(Request::to_embed(self, text))?;
        response.embeddings.prompt.ok_or(GenerateError::NoEmbedding)
    }

    fn embed_prompt(&self, request: &Request, cancellation: &CancellationToken) -> Result<Response, GenerateError> {
        let (mut streams, _) = self.start(std::slice::from_ref(request), cancellation)?;
        let mut stream = streams.pop().ok_or(GenerateError::EngineFailed)?;
        for piece in &mut stream {
            piece?;
        }
        Ok(stream.into_response())
    }

    fn embedding_request(&self, input: &EmbedInput, too_long: TooLong) -> Request {
        let truncation = match too_long {
            TooLong::Refuse => Truncation::Refuse,
            TooLong::CutEnd => Truncation::CutEnd,
        };
        let request = match input {
            EmbedInput::Text(text) => Request::to_embed(self, text),
            EmbedInput::Tokens(tokens) => Request::embedding_of(Prompt::Tokens(tokens.clone())),
        };
        Request { truncation, ..request }
    }

    fn embed_error(&self, error: GenerateError, prompt: &Prompt, index: usize, computed_tokens: usize) -> EmbedError {
        let tokens_max = Embedder::context(self);
        match error {
            GenerateError::Submit(
                SubmitError::PromptTooLong { prompt: tokens, .. } | SubmitError::TooLong { prompt: tokens, .. },
            ) => EmbedError::TooLong { index, tokens, tokens_max },
            // Refused by its length in bytes. The contract wants the number of tokens.
            GenerateError::PromptTooLarge { .. } => match self.encode(prompt) {
                Ok(tokens) => EmbedError::TooLong { index, tokens: tokens.len(), tokens_max },
                Err(error) => EmbedError::Failed { why: error.to_string() },
            },
            GenerateError::Submit(SubmitError::NoSuchToken { token, vocabulary }) => {
                EmbedError::NoSuchToken { index, token, vocabulary }
            }
            GenerateError::Abandoned => EmbedError::Abandoned { tokens: computed_tokens },
            error => EmbedError::Failed { why: error.to_string() },
        }
    }
}

/// Embeds with a pass through the model for each text. The engine must keep hidden states.
impl Embedder for Engine {
    fn name(&self) -> &'static str {
        self.backend()
    }

    fn dimensions(&self) -> usize {
        self.model().hidden
    }

    /// One token of the engine's context is left for the token that every request generates.
    fn context(&self) -> usize {
        Engine::context(self).saturating_sub(1)
    }

    fn embed(&self, request: &EmbedRequest) -> Result<Embeddings, EmbedError> {
        let is_empty = |input: &EmbedInput| match input {
            EmbedInput::Text(text) => text.is_empty(),
            EmbedInput::Tokens(tokens) => tokens.is_empty(),
        };
        if let Some(index) = request.inputs.iter().position(is_empty) {
            return Err(EmbedError::Empty { index });
        }
        let mut all = Embeddings::default();
        for (index, input) in request.inputs.iter().enumerate() {
            let computed_tokens = all.tokens.iter().sum();
            let one = self.embedding_request(input, request.too_long);
            let refused = |error| self.embed_error(error, &one.prompt, index, computed_tokens);
            let Response { embeddings, usage, .. } = self.embed_prompt(&one, &request.cancellation).map_err(refused)?;
            all.vectors.push(embeddings.prompt.ok_or(GenerateError::NoEmbedding).map_err(refused)?);
            all.tokens.push(usage.prompt_tokens);
            all.cut_tokens += usage.truncated_tokens;
        }
        Ok(all)
    }
}

/// A sum of hidden states.
#[derive(Debug, Default)]
pub(crate) struct StateSum(Vec<f32>);

impl StateSum {
    pub(crate) fn add(&mut self, state: &[f32]) {
        self.0.resize(state.len(), 0.0);
        self.0.iter_mut().zip(state).for_each(|(sum, x)| *sum += x);
    }

    /// Returns the direction of the mean, if there is one.
    pub(crate) fn direction(&self) -> Option<Vec<f32>> {
        unit(&self.0)
    }
}

/// Returns the vector of length 1 with the same direction, if there is one.
pub(crate) fn unit(vector: &[f32]) -> Option<Vec<f32>> {
    let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
    (length > 0.0 && length.is_finite()).then(|| vector.iter().map(|x| x / length).collect())
}
