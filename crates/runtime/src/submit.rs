//! Hands a request to the thread that runs the model.

mod engine_thread;

use std::time::Instant;

use ruvllm_engine::{Constraint, Sampling, SequenceId};
use ruvllm_text::{StopMatcher, ToolCallParser};

pub use engine_thread::{EngineStatus, StepMetrics};
pub(crate) use engine_thread::{EngineStopped, EngineThread, Events, TimedEvent};
use engine_thread::{PendingSubmission, Submission};

use crate::constrain::{GrammarConstraint, OutputRules};
use crate::encode::EncodedPrompt;
use crate::engine::LoadedModel;
use crate::{GenerateError, Request, Response, Usage};

/// A request on its way into the engine's queue. Dropping it takes the request back.
#[derive(Debug)]
pub(crate) struct Submitted {
    pending: PendingSubmission,
    answer: AnswerStart,
}

/// A request that the engine has queued.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub id: SequenceId,
    pub events: Events,
    pub answer: AnswerStart,
}

/// What is known of an answer before its first token.
#[derive(Debug)]
pub(crate) struct AnswerStart {
    pub response: Response,
    pub stop: StopMatcher,
    pub tool_calls: Option<ToolCallParser>,
    pub submitted_at: Instant,
}

/// Submits one choice of a request. The step in progress is not waited for.
pub(crate) fn submit(
    model: &LoadedModel,
    request: &Request,
    rules: &OutputRules,
    prompt: &EncodedPrompt,
    choice: usize,
) -> Result<Submitted, GenerateError> {
    let OutputRules { stop, grammar, tool_calls } = rules.clone();
    let submitted_at = Instant::now();
    let submission = Submission {
        request: ruvllm_engine::Request {
            sampling: Sampling { seed: request.sampling.seed.wrapping_add(choice as u64), ..request.sampling.clone() },
            max_tokens: request.max_tokens_after(prompt.tokens.len(), model.encoder.context()),
            end_tokens: model.encoder.tokenizer().end_of_generation().to_vec(),
            speculation: request.speculation,
            tenant: request.tenant.clone(),
            adapter: request.adapter,
            priority: request.priority,
            prefix_use: request.prefix_use,
            states_of: request.embeddings.then(|| prompt.subject.clone()),
            ..ruvllm_engine::Request::new(prompt.tokens.clone())
        },
        constraint: grammar.map(|matcher| Box::new(GrammarConstraint(matcher)) as Box<dyn Constraint>),
        timeout: request.timeout,
    };
    let pending = model.thread.submit(submission)?;
    let response = initial_response(request, prompt);
    Ok(Submitted { pending, answer: AnswerStart { response, stop, tool_calls, submitted_at } })
}

fn initial_response(request: &Request, prompt: &EncodedPrompt) -> Response {
    Response {
        temperature: request.sampling.temperature,
        top_p: request.sampling.top_p,
        usage: Usage {
            prompt_tokens: prompt.tokens.len(),
            truncated_tokens: prompt.truncated_tokens,
            ..Usage::default()
        },
        ..Response::default()
    }
}

impl Submitted {
    /// Waits until the request is queued or refused.
    pub(crate) fn accepted(self) -> Result<Accepted, GenerateError> {
        let (id, events) = self.pending.wait()??;
        Ok(Accepted { id, events, answer: self.answer })
    }
}
