//! Hands a request to the thread that runs the model.

mod engine_thread;
mod prefix_listener;

use std::sync::Arc;
use std::time::Instant;

use ruvllm_engine::{Constraint, Sampling, SequenceId};
use ruvllm_text::{
    Matcher, NotEnforced, ReasoningFormat, ReasoningParser, SchemaValidator, StopMatcher, ToolCallParser,
};

pub use engine_thread::{EngineStatus, StepMetrics};
pub(crate) use engine_thread::{EngineStopped, EngineThread, Events, Observe, TimedEvent};
use engine_thread::{PendingSubmission, Submission};
pub use prefix_listener::PrefixListener;

use crate::constrain::{GrammarConstraint, OutputRules, ReasoningConstraint};
use crate::encode::EncodedPrompt;
use crate::engine::LoadedModel;
use crate::{GenerateError, RecallUse, Request, Response, Usage};

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
    pub reasoning: Option<ReasoningParser>,
    pub not_enforced: Arc<NotEnforced>,
    pub validator: Option<SchemaValidator>,
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
    let OutputRules { stop, grammar, tool_calls, not_enforced, validator } = rules.clone();
    let submitted_at = Instant::now();
    let submission = Submission {
        request: ruvllm_engine::Request {
            sampling: Sampling { seed: request.sampling.seed.wrapping_add(choice as u64), ..request.sampling.clone() },
            max_tokens: request.max_tokens_after(prompt.tokens.len(), request.context_in(model.encoder.context())),
            context: request.context,
            end_tokens: model.encoder.tokenizer().end_of_generation().to_vec(),
            speculation: request.speculation,
            tenant: request.tenant.clone(),
            adapter: request.adapter.clone(),
            priority: request.priority,
            prefix_use: request.prefix_use,
            states_of: request.embeddings.then(|| prompt.subject.clone()),
            recall: request.recall.clone(),
            ..ruvllm_engine::Request::new(prompt.tokens.clone())
        },
        constraint: constraint(model, grammar, request, prompt),
        timeout: request.timeout,
    };
    let pending = model.thread.submit(submission)?;
    let response = initial_response(request, prompt);
    let parser = |(format, is_open): (&ReasoningFormat, bool)| ReasoningParser::new(format.clone(), is_open);
    let reasoning = model.encoder.reasoning_after(prompt).map(parser);
    let answer = AnswerStart { response, stop, tool_calls, reasoning, not_enforced, validator, submitted_at };
    Ok(Submitted { pending, answer })
}

/// Returns what holds for the tokens of the answer, and of the reasoning before it.
fn constraint(
    model: &LoadedModel,
    grammar: Option<Matcher>,
    request: &Request,
    prompt: &EncodedPrompt,
) -> Option<Box<dyn Constraint>> {
    let budget = request.reasoning_budget.filter(|_| !model.outputs.chooses_tokens());
    let grammar = grammar.map(GrammarConstraint);
    match model.encoder.reasoning_after(prompt) {
        Some((format, is_open)) if grammar.is_some() || budget.is_some() => {
            let tokenizer = Arc::clone(model.encoder.tokenizer());
            Some(Box::new(ReasoningConstraint::new(tokenizer, format.clone(), is_open, budget, grammar)))
        }
        _ => grammar.map(|grammar| Box::new(grammar) as Box<dyn Constraint>),
    }
}

fn initial_response(request: &Request, prompt: &EncodedPrompt) -> Response {
    Response {
        temperature: request.sampling.temperature,
        top_p: request.sampling.top_p,
        recall: request.recall.as_ref().map(|recall| RecallUse { items: recall.items(), share: 0.0 }),
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
