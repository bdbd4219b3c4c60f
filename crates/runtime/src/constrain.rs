//! Compiles what an answer must look like: stop strings, a grammar for its output format, tool calls.

mod reasoning;

use std::sync::Arc;

use ruvllm_engine::{Constraint, ConstraintError, SubmitError, TokenId};
use ruvllm_text::{
    Compiled, GrammarCompiler, MatchError, Matcher, NotEnforced, OutputFormat, SchemaValidator, StopMatcher,
    ToolCallParser, ToolFormat,
};

pub(crate) use reasoning::ReasoningConstraint;

use crate::{GenerateError, Prompt, Request, ToolChoice, Tools};

/// The rules for one request's answers. Each answer follows its own copies.
#[derive(Clone, Debug)]
pub(crate) struct OutputRules {
    pub stop: StopMatcher,
    /// The grammar at the start of an answer.
    pub grammar: Option<Matcher>,
    /// Finds tool calls in the answer, where tools are offered.
    pub tool_calls: Option<ToolCallParser>,
    /// What of the schemas the grammar does not enforce.
    pub not_enforced: Arc<NotEnforced>,
    /// Checks the answer against all of its schema, where the grammar does not enforce all of it.
    pub validator: Option<SchemaValidator>,
}

/// Compiles output rules for one model.
#[derive(Debug)]
pub(crate) struct OutputCompiler {
    grammars: GrammarCompiler,
    /// How the model writes tool calls.
    tool_format: ToolFormat,
    /// Whether the backend chooses tokens by itself, so that no grammar can hold.
    chooses_tokens: bool,
}

impl OutputCompiler {
    pub(crate) fn new(grammars: GrammarCompiler, tool_format: ToolFormat, chooses_tokens: bool) -> Self {
        Self { grammars, tool_format, chooses_tokens }
    }

    pub(crate) fn chooses_tokens(&self) -> bool {
        self.chooses_tokens
    }

    pub(crate) fn compile(&self, request: &Request) -> Result<OutputRules, GenerateError> {
        let stop = StopMatcher::new(request.stop.clone())?;
        let offers_tools = matches!(request.prompt, Prompt::Messages(_)) && !request.tools.offered().is_empty();
        let tool_calls = offers_tools.then(|| ToolCallParser::new(self.tool_format));
        let compiled = if self.chooses_tokens { without_grammar(request)? } else { self.grammar(request)? };
        let Some(Compiled { matcher, not_enforced }) = compiled else {
            return Ok(OutputRules { stop, grammar: None, tool_calls, not_enforced: Arc::default(), validator: None });
        };
        let validator = match &request.output_format {
            Some(OutputFormat::JsonSchema { schema, .. }) if !not_enforced.is_valid_by_construction() => {
                // A schema that refers to others cannot be checked either; what is not enforced is told in any case.
                SchemaValidator::new(schema).ok()
            }
            _ => None,
        };
        Ok(OutputRules { stop, grammar: Some(matcher), tool_calls, not_enforced, validator })
    }

    /// Compiles the grammar of the requested output format, of the tool calls, or of either.
    fn grammar(&self, request: &Request) -> Result<Option<Compiled>, GenerateError> {
        let compile = |format: &OutputFormat| self.grammars.compile_for(request.tenant.name(), format);
        let calls = self.tool_calls(request);
        // An output format that is wrong is reported as such, even where tools may be called instead.
        let by_format = request.output_format.as_ref().map(compile).transpose().map_err(GenerateError::OutputFormat)?;
        match (&request.output_format, calls?) {
            (Some(format), Some(OutputFormat::ToolCalls(calls))) => {
                let either = calls.or(format.clone()).map_err(GenerateError::OutputFormat)?;
                compile(&OutputFormat::ToolCalls(either)).map(Some).map_err(GenerateError::Tools)
            }
            (_, Some(calls)) => compile(&calls).map(Some).map_err(GenerateError::Tools),
            (_, None) => Ok(by_format),
        }
    }

    /// Returns the format of proper tool calls, where the conversation offers tools.
    fn tool_calls(&self, request: &Request) -> Result<Option<OutputFormat>, GenerateError> {
        let (Prompt::Messages(_), Tools { choice, are_parallel, .. }) = (&request.prompt, &request.tools) else {
            return Ok(None);
        };
        let are_parallel = are_parallel.unwrap_or_else(|| self.tool_format.is_of_the_model());
        self.tool_format.output_format(request.tools.offered(), choice, are_parallel).map_err(GenerateError::Tools)
    }
}

/// Refuses what would need a grammar. Tools may be offered: calls are found in the text, well formed or not.
fn without_grammar(request: &Request) -> Result<Option<Compiled>, GenerateError> {
    let must_call = matches!(request.tools.choice, ToolChoice::Required | ToolChoice::Named(_));
    let all = [
        ("response_format", request.output_format.is_some()),
        ("tool_choice", must_call && matches!(request.prompt, Prompt::Messages(_))),
    ];
    match all.into_iter().find(|(_, is_set)| *is_set) {
        Some((field, _)) => Err(SubmitError::ChoosesTokens { field }.into()),
        None => Ok(None),
    }
}

/// A grammar as the engine knows it: a constraint on token ids.
#[derive(Debug)]
pub(crate) struct GrammarConstraint(pub Matcher);

impl Constraint for GrammarConstraint {
    fn allow(&mut self, allowed: &mut Vec<u32>) -> Result<(), ConstraintError> {
        self.0.mask(allowed).map_err(constraint_error)
    }

    fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        self.0.accept(token).map_err(constraint_error)
    }

    fn rollback(&mut self, tokens: usize) -> Result<(), ConstraintError> {
        self.0.rollback(tokens).map_err(constraint_error)
    }

    fn is_complete(&self) -> bool {
        self.0.is_complete()
    }

    fn count_allowed(&mut self, draft: &[TokenId]) -> usize {
        self.0.count_allowed(draft)
    }

    fn forced(&mut self) -> Vec<TokenId> {
        self.0.forced()
    }
}

fn constraint_error(error: MatchError) -> ConstraintError {
    ConstraintError(error.to_string())
}
