//! A model that is ready to answer.

use std::path::{Path, PathBuf};
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use ruvllm_engine::{Constraint, Core, LookupStats, Sampling, StepError, SubmitError, Tenant};
use ruvllm_kernels::KernelSet;
use ruvllm_text::{
    ChatTemplate, ChatTemplateError, GrammarCompiler, GrammarError, Matcher, Shape, StopMatcher, StopStringError,
    Tokenizer, ToolCallParser, ToolFormat,
};

use crate::constraint::Grammar;
use crate::encoding::Encoded;
use crate::engine_thread::{EngineThread, Gone, Submission, Submitted};
use crate::{
    ColdFormat, EngineBuilder, EngineStatus, ModelMemory, Patience, Prompt, Request, Response, Stream, Tools, Usage,
};

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
    /// The shape of the answer cannot be used.
    #[error(transparent)]
    Shape(GrammarError),
    #[error(transparent)]
    Tools(GrammarError),
    #[error("the engine has failed and must be loaded again; its log tells why")]
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

/// A loaded model, ready to answer. Clones are the same engine; when the last is gone, so is the model.
#[derive(Clone, Debug)]
pub struct Engine(Arc<Loaded>);

#[derive(Debug)]
pub(crate) struct Loaded {
    pub thread: EngineThread,
    pub tokenizer: Arc<Tokenizer>,
    pub template: Option<ChatTemplate>,
    /// How the model writes tool calls.
    pub tool_format: ToolFormat,
    pub grammars: GrammarCompiler,
    pub kernels: KernelSet,
    pub threads: usize,
    pub context: usize,
    /// Numbers in a hidden state.
    pub hidden: usize,
    /// Where keys and values go that outlive the process.
    pub disk_folder: Option<PathBuf>,
    pub cold_format: Option<ColdFormat>,
    pub memory: ModelMemory,
}

impl Engine {
    /// An engine for the GGUF file at `path`.
    pub fn builder(path: impl AsRef<Path>) -> EngineBuilder {
        EngineBuilder::new(path.as_ref())
    }

    pub(crate) fn new(loaded: Loaded) -> Self {
        Self(Arc::new(loaded))
    }

    pub(crate) fn thread(&self) -> &EngineThread {
        &self.0.thread
    }

    pub(crate) fn template(&self) -> Option<&ChatTemplate> {
        self.0.template.as_ref()
    }

    pub(crate) fn tool_format(&self) -> ToolFormat {
        self.0.tool_format
    }

    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.0.tokenizer
    }

    /// The format of cold KV pages that was chosen for this model, if one had to be.
    pub fn cold_format(&self) -> Option<&ColdFormat> {
        self.0.cold_format.as_ref()
    }

    pub fn kernels(&self) -> KernelSet {
        self.0.kernels
    }

    pub fn threads(&self) -> usize {
        self.0.threads
    }

    /// Tokens per sequence at most.
    pub fn context(&self) -> usize {
        self.0.context
    }

    /// Where keys and values go that outlive the process, if they go anywhere.
    pub fn disk_folder(&self) -> Option<&Path> {
        self.0.disk_folder.as_deref()
    }

    /// Numbers in a hidden state.
    pub(crate) fn hidden(&self) -> usize {
        self.0.hidden
    }

    /// What it takes of the memory.
    pub fn memory(&self) -> &ModelMemory {
        &self.0.memory
    }

    /// Changes the memory for keys and values, up to what the engine was built with; cached prefixes go and sequences pause until
    /// no more is held. Waits for the step that is running. Tells whether no more is held.
    pub fn set_kv_budget(&self, bytes: usize) -> Result<bool, GenerateError> {
        self.thread().set_kv_budget(bytes).map_err(|Gone| GenerateError::EngineFailed)
    }

    pub fn has_chat_template(&self) -> bool {
        self.0.template.is_some()
    }

    /// The engine underneath, for measurements in token ids. While it is held, nothing else is answered.
    pub fn core(&mut self) -> MutexGuard<'_, Core> {
        self.thread().core()
    }

    /// What it is doing.
    pub fn status(&self) -> EngineStatus {
        self.thread().status()
    }

    /// All tenants that ever asked for something, with their look-ups of prefixes.
    pub async fn tenants(&self) -> Result<Vec<(Tenant, LookupStats)>, GenerateError> {
        self.thread().tenants().await.map_err(|Gone| GenerateError::EngineFailed)
    }

    /// Starts answering. What is computed does not wait for the stream to be read; dropping it ends the request.
    pub fn stream(&self, request: Request) -> Result<Stream, GenerateError> {
        let mut streams = self.streams(&[request], &Patience::default())?;
        streams.pop().ok_or(GenerateError::EngineFailed)
    }

    /// The same for several requests, which are queued together: all choices of the first, then those of the second. If one is
    /// refused, so are all.
    pub fn streams(&self, requests: &[Request], patience: &Patience) -> Result<Vec<Stream>, GenerateError> {
        if requests.iter().any(|request| request.session.is_some()) {
            return Err(GenerateError::NoMemory);
        }
        self.streams_of(requests, patience)
    }

    /// The same without a look at what only a memory can do. All are prepared before any is queued.
    pub(crate) fn streams_of(&self, requests: &[Request], patience: &Patience) -> Result<Vec<Stream>, GenerateError> {
        let prepared: Vec<_> =
            requests.iter().map(|request| self.prepare(request, patience)).collect::<Result<_, _>>()?;
        let mut begun = Vec::new();
        for (request, prepared) in requests.iter().zip(&prepared) {
            for choice in 0..request.choices {
                begun.push(self.submit(request, prepared, choice)?);
            }
        }
        begun.into_iter().map(|begun| begun.stream(self)).collect()
    }

    /// Does what is the same for all choices of a request. What is cheap to refuse comes first.
    fn prepare(&self, request: &Request, patience: &Patience) -> Result<Prepared, GenerateError> {
        let stop = StopMatcher::new(request.stop.clone())?;
        let room = self.context().saturating_sub(request.max_tokens.unwrap_or(1)).max(1);
        let grammar = self.grammar(request)?;
        let (prompt, truncated_tokens) = self.encode_within(request, room, patience)?;
        Ok(Prepared { stop, grammar, prompt, truncated_tokens })
    }

    fn submit(&self, request: &Request, prepared: &Prepared, choice: usize) -> Result<Begun, GenerateError> {
        let Prepared { stop, grammar, prompt, truncated_tokens } = prepared;
        let constraint = grammar.clone().map(|matcher| Box::new(Grammar(matcher)) as Box<dyn Constraint>);
        let seed = request.sampling.seed.wrapping_add(choice as u64);
        let tool_calls = match request.prompt {
            Prompt::Messages(_) if !request.tools.offered().is_empty() => Some(ToolCallParser::new(self.0.tool_format)),
            _ => None,
        };
        let response = Response {
            temperature: request.sampling.temperature,
            top_p: request.sampling.top_p,
            usage: Usage {
                prompt_tokens: prompt.tokens.len(),
                truncated_tokens: *truncated_tokens,
                ..Usage::default()
            },
            ..Response::default()
        };
        let started = Instant::now();
        let submission = Submission {
            request: ruvllm_engine::Request {
                sampling: Sampling { seed, ..request.sampling.clone() },
                max_tokens: request.max_tokens,
                end_tokens: self.0.tokenizer.end_of_generation().to_vec(),
                speculation: request.speculation,
                tenant: request.tenant.clone(),
                priority: request.priority,
                prefix_use: request.prefix_use,
                states_of: request.embeddings.then(|| prompt.subject.clone()),
                ..ruvllm_engine::Request::new(prompt.tokens.clone())
            },
            constraint,
            patience: request.patience,
        };
        let submitted = self.thread().submit(submission).map_err(|Gone| GenerateError::EngineFailed)?;
        Ok(Begun { submitted, response, stop: stop.clone(), tool_calls, started })
    }

    /// What the answer is kept to: the shape that was asked for, or proper calls of tools.
    fn grammar(&self, request: &Request) -> Result<Option<Matcher>, GenerateError> {
        let Tools { choice, are_parallel, .. } = &request.tools;
        let by_tools = match request.prompt {
            Prompt::Messages(_) => {
                let format = self.0.tool_format;
                let are_parallel = are_parallel.unwrap_or_else(|| format.is_of_the_model());
                format.shape(request.tools.offered(), choice, are_parallel)
            }
            Prompt::Text(_) | Prompt::Tokens(_) => Ok(None),
        };
        let compile = |shape: &Shape| self.0.grammars.compile_for(request.tenant.name(), shape);
        // What is wrong with a shape is its own error, also where tools may be called instead.
        let by_shape = request.shape.as_ref().map(compile).transpose();
        let by_shape = by_shape.map_err(GenerateError::Shape)?;
        let matcher = match (&request.shape, by_tools.map_err(GenerateError::Tools)?) {
            (Some(shape), Some(Shape::ToolCalls(calls))) => {
                let either = calls.or(shape.clone()).map_err(GenerateError::Shape)?;
                Some(compile(&Shape::ToolCalls(either)).map_err(GenerateError::Tools)?)
            }
            (_, Some(calls)) => Some(compile(&calls).map_err(GenerateError::Tools)?),
            (_, None) => by_shape,
        };
        Ok(matcher)
    }

    /// The whole answer at once.
    pub fn generate(&self, request: Request) -> Result<Response, GenerateError> {
        let mut stream = self.stream(request)?;
        for piece in &mut stream {
            piece?;
        }
        Ok(stream.into_response())
    }
}

/// A request that can be submitted.
struct Prepared {
    stop: StopMatcher,
    /// At the beginning of an answer.
    grammar: Option<Matcher>,
    prompt: Encoded,
    truncated_tokens: usize,
}

/// A request that is on its way to the engine.
struct Begun {
    submitted: Submitted,
    /// With what is known already.
    response: Response,
    stop: StopMatcher,
    tool_calls: Option<ToolCallParser>,
    started: Instant,
}

impl Begun {
    /// Waits until it is queued or refused.
    fn stream(self, engine: &Engine) -> Result<Stream, GenerateError> {
        let Self { submitted, response, stop, tool_calls, started } = self;
        let accepted = submitted.wait().map_err(|Gone| GenerateError::EngineFailed)??;
        Ok(Stream::new(engine.clone(), accepted, response, stop, tool_calls, started))
    }
}
