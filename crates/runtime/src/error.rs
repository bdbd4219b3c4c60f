//! Why a request is not answered.

use ruvllm_engine::{StepError, SubmitError};
use ruvllm_memory::MemoryError;
use ruvllm_text::{ChatTemplateError, GrammarError, StopStringError};

/// Why an engine does not answer a request.
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
    /// The output format cannot be used.
    #[error(transparent)]
    OutputFormat(GrammarError),
    #[error(transparent)]
    Tools(GrammarError),
    #[error("the engine has failed and must be loaded again; its log says why")]
    EngineFailed,
    #[error("a session needs a memory, and there is none")]
    NoMemory,
    #[error("the model has no hidden states of this text's tokens")]
    NoEmbedding,
    #[error("the character {0:?} cannot be written with this model's vocabulary")]
    Unencodable(char),
    #[error("the prompt has {bytes} bytes, which are more than the {context} tokens of the context; shorten it")]
    PromptTooLarge { bytes: usize, context: usize },
    #[error("preparing the prompt took too long, so it was given up; send a shorter one, or try again later")]
    Abandoned,
}

/// Why a request that is recorded in a memory is not answered.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(transparent)]
    Generate(#[from] GenerateError),
    #[error("a session needs messages, and one answer to them")]
    NotASession,
    #[error("the session cannot be restored: {0}")]
    Session(MemoryError),
    #[error("the session {name:?} is a conversation with {model}; ask that model, or begin another session")]
    OtherModel { name: String, model: String },
}
