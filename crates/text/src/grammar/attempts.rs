//! Compiling one output format, with less of its schemas where all of them is too much.
//!
//! What llguidance can combine is known only when it has tried, and a large schema takes it too long. So schemas that may
//! be relaxed are tried with ever less effort until they compile; the others are tried once.

use std::sync::Arc;
use std::time::Instant;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};

use super::cache::Entry;
use super::compiler::Vocabulary;
use super::limits::{COMPILE_ATTEMPTS_TIME_MAX, COMPILED_NODES_MAX};
use super::schema::{self, Effort, Prepared};
use super::{GrammarError, NotEnforced, OutputFormat, Strictness, gbnf, lark, regex, tool_calls};
use crate::tools::ToolCallMode;

pub(super) struct Attempts<'f> {
    vocabulary: &'f Vocabulary,
    output_format: &'f OutputFormat,
    schemas: Vec<Source<'f>>,
    began: Instant,
}

/// A schema of the output format.
struct Source<'f> {
    schema: &'f Value,
    strictness: Strictness,
    tool: Option<&'f str>,
    effort: Effort,
}

impl<'f> Attempts<'f> {
    pub(super) fn new(vocabulary: &'f Vocabulary, output_format: &'f OutputFormat) -> Self {
        Self { vocabulary, output_format, schemas: sources(output_format), began: Instant::now() }
    }

    pub(super) fn run(mut self) -> Result<Entry, GrammarError> {
        loop {
            let prepared = self.prepared()?;
            let nodes = prepared.iter().fold(0u64, |nodes, schema| nodes.saturating_add(schema.nodes));
            if nodes > COMPILED_NODES_MAX && self.relax_largest(&prepared) {
                continue;
            }
            let schemas: Vec<&Value> = prepared.iter().map(|schema| &schema.schema).collect();
            match self.matcher(grammar(self.output_format, &schemas)?) {
                Ok(matcher) => return Ok(Entry { matcher, not_enforced: Arc::new(self.not_enforced(prepared)) }),
                Err(error) => {
                    if !self.relax_failing(&prepared, &error) {
                        return Err(error);
                    }
                }
            }
        }
    }

    fn prepared(&self) -> Result<Vec<Prepared>, GrammarError> {
        let each = self.schemas.iter().map(|source| {
            let named = |error| match source.tool {
                Some(name) => GrammarError::Tool { name: name.to_owned(), error: Box::new(error) },
                None => error,
            };
            schema::prepared(source.schema, source.strictness, source.effort).map_err(named)
        });
        each.collect()
    }

    fn not_enforced(&self, prepared: Vec<Prepared>) -> NotEnforced {
        let mut all = NotEnforced::default();
        for (source, prepared) in self.schemas.iter().zip(prepared) {
            all.extend(prepared.not_enforced, source.tool);
        }
        all
    }

    /// Tries less of the largest schema that may be relaxed. Returns whether there is one.
    fn relax_largest(&mut self, prepared: &[Prepared]) -> bool {
        let may_relax = |source: &Source| source.strictness == Strictness::Relaxed && source.effort.less().is_some();
        let largest = self.schemas.iter_mut().zip(prepared).filter(|(source, _)| may_relax(source));
        let Some((source, _)) = largest.max_by_key(|(_, prepared)| prepared.nodes) else { return false };
        // When time is short, the steps are larger.
        let steps = if self.began.elapsed() > COMPILE_ATTEMPTS_TIME_MAX { 3 } else { 1 };
        for _ in 0..steps {
            source.effort = source.effort.less().unwrap_or(source.effort);
        }
        true
    }

    /// Tries less of the schemas that do not compile on their own, or of the largest one if all of them do.
    fn relax_failing(&mut self, prepared: &[Prepared], error: &GrammarError) -> bool {
        if let [source] = self.schemas.as_slice() {
            // What nothing satisfies is not to be relaxed until something does.
            let is_wider = prepared[0].is_narrowed && source.effort == Effort::FULL;
            return (is_wider || !is_unsatisfiable(error)) && self.relax_largest(prepared);
        }
        let failing: Vec<(usize, bool)> = prepared
            .iter()
            .enumerate()
            .filter_map(|(index, prepared)| {
                let alone = self.matcher(TopLevelGrammar::from_json_schema(prepared.schema.clone())).err()?;
                let is_wider = prepared.is_narrowed && self.schemas[index].effort == Effort::FULL;
                Some((index, is_wider || !is_unsatisfiable(&alone)))
            })
            .collect();
        if failing.is_empty() {
            return !is_unsatisfiable(error) && self.relax_largest(prepared);
        }
        for (index, may_relax) in failing {
            let source = &mut self.schemas[index];
            match source.effort.less() {
                Some(less) if may_relax && source.strictness == Strictness::Relaxed => source.effort = less,
                _ => return false,
            }
        }
        true
    }

    fn matcher(&self, grammar: TopLevelGrammar) -> Result<llguidance::Matcher, GrammarError> {
        let refused = |reason: &str| uncompilable(self.output_format, reason);
        let parser = self.vocabulary.factory.create_parser(grammar).map_err(|error| refused(&error.to_string()))?;
        let mut matcher = llguidance::Matcher::new(Ok(parser));
        if let Some(warning) = matcher.grammar_warnings().first() {
            return Err(refused(warning));
        }
        // The first step is taken here, where an output format that nothing satisfies is still its author's error.
        if !self.vocabulary.trie.can_write(&matcher.compute_ff_bytes()) {
            return Err(refused("the model's vocabulary cannot write what it begins with"));
        }
        if !matcher.is_stopped() {
            matcher.compute_mask().map_err(|error| refused(&error.to_string()))?;
        }
        match matcher.get_error() {
            None => Ok(matcher),
            Some(reason) => Err(refused(&reason)),
        }
    }
}

/// The schemas of an output format: those of the tools, and then that of the answer.
fn sources(output_format: &OutputFormat) -> Vec<Source<'_>> {
    match output_format {
        OutputFormat::JsonSchema { schema, strictness } => {
            vec![Source { schema, strictness: *strictness, tool: None, effort: Effort::FULL }]
        }
        OutputFormat::ToolCalls(calls) => {
            let of_tools = calls.tools.iter().map(|tool| Source {
                schema: &tool.schema,
                strictness: tool.strictness,
                tool: Some(&tool.name),
                effort: Effort::FULL,
            });
            let of_answer = match &calls.mode {
                ToolCallMode::FormatOrCalls(answer) => sources(answer),
                ToolCallMode::TextOrCalls | ToolCallMode::CallsOnly => Vec::new(),
            };
            of_tools.chain(of_answer).collect()
        }
        OutputFormat::JsonObject | OutputFormat::Regex(_) | OutputFormat::Gbnf(_) | OutputFormat::Lark(_) => Vec::new(),
    }
}

/// The grammar of an output format, with its schemas as they were prepared.
fn grammar(output_format: &OutputFormat, schemas: &[&Value]) -> Result<TopLevelGrammar, GrammarError> {
    Ok(match output_format {
        OutputFormat::JsonObject => {
            let object = schema::prepared(&json!({ "type": "object" }), Strictness::Strict, Effort::FULL)?;
            TopLevelGrammar::from_json_schema(object.schema)
        }
        OutputFormat::JsonSchema { schema, .. } => {
            TopLevelGrammar::from_json_schema((*schemas.first().unwrap_or(&schema)).clone())
        }
        OutputFormat::Regex(pattern) => TopLevelGrammar::from_lark(regex::to_lark(pattern)?),
        OutputFormat::Gbnf(source) => TopLevelGrammar::from_lark(gbnf::to_lark(source)?),
        OutputFormat::Lark(source) => TopLevelGrammar::from_lark(lark::checked(source)?),
        OutputFormat::ToolCalls(calls) => {
            let (of_tools, of_answer) = schemas.split_at(calls.tools.len().min(schemas.len()));
            let mut whole = TopLevelGrammar::from_lark(tool_calls::to_lark(calls, of_tools));
            if let ToolCallMode::FormatOrCalls(answer) = &calls.mode {
                let name = Some(tool_calls::ANSWER.to_owned());
                let answer = grammar(answer, of_answer)?.grammars.into_iter().next();
                whole.grammars.extend(answer.map(|answer| GrammarWithLexer { name, ..answer }));
            }
            whole
        }
    })
}

const NOTHING: &str = "nothing satisfies it";

/// Puts a message of llguidance into the words of users: without the backtrace of a panic and without advice about
/// options that they do not have.
fn uncompilable(output_format: &OutputFormat, reason: &str) -> GrammarError {
    const SHOWN_MAX: usize = 500;
    let reason = reason.split("\n<").next().unwrap_or(reason).trim();
    let reason = if reason.contains("NoExtension") { NOTHING } else { reason };
    let reason = reason.chars().take(SHOWN_MAX).collect();
    GrammarError::Uncompilable { what: output_format.what(), reason }
}

fn is_unsatisfiable(error: &GrammarError) -> bool {
    match error {
        // Nothing satisfies one of its definitions, which may be one that is not needed.
        GrammarError::Uncompilable { reason, .. } if reason.contains("while processing") => false,
        GrammarError::Uncompilable { reason, .. } => reason.contains(NOTHING) || reason.contains("Unsatisfiable"),
        _ => false,
    }
}
