//! From an output format to a matcher.

use std::fmt;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use llguidance::{ParserFactory, toktrie::TokEnv};
use serde_json::json;

use super::cache::Cache;
use super::limits::{
    COMPILE_STACK_BYTES, COMPILE_TIME_MAX, COMPILING_MAX, COMPILING_OF_TENANT_MAX, GRAMMAR_BYTES_MAX, SCHEMA_BYTES_MAX,
    parser_limits,
};
use super::semaphore::Semaphore;
use super::token_trie::TokenTrie;
use super::{GrammarError, Matcher, OutputFormat, gbnf, lark, regex, schema, tool_calls};
use crate::priority::lower_priority;
use crate::tokenizer::Tokenizer;
use crate::tools::ToolCallMode;

/// Compiles output formats for one tokenizer, and keeps what it compiled. One per model, shared by all requests.
pub struct GrammarCompiler {
    tokenizer: Arc<Tokenizer>,
    /// Built when it is first needed: for 150,000 tokens that takes some tenths of a second.
    vocabulary: OnceLock<Vocabulary>,
    cache: Mutex<Cache>,
    permits: Semaphore,
}

/// What all compilations share.
#[derive(Clone)]
struct Vocabulary {
    trie: Arc<TokenTrie>,
    factory: Arc<ParserFactory>,
}

impl GrammarCompiler {
    pub fn new(tokenizer: &Arc<Tokenizer>) -> Result<Self, GrammarError> {
        TokenTrie::check(tokenizer)?;
        Ok(Self {
            tokenizer: tokenizer.clone(),
            vocabulary: OnceLock::new(),
            cache: Mutex::default(),
            permits: Semaphore::new(COMPILING_MAX, COMPILING_OF_TENANT_MAX),
        })
    }

    /// Returns a matcher at the beginning of an answer of this output format.
    pub fn compile(&self, output_format: &OutputFormat) -> Result<Matcher, GrammarError> {
        self.compile_for("", output_format)
    }

    /// Returns a matcher as [`Self::compile`] does, within the limits of a tenant.
    pub fn compile_for(&self, tenant: &str, output_format: &OutputFormat) -> Result<Matcher, GrammarError> {
        let key = key(output_format)?;
        let cached = self.cache.lock().unwrap_or_else(PoisonError::into_inner).get(&key);
        let inner = match cached {
            Some(matcher) => matcher,
            None => {
                let compiled = self.compile_anew(tenant, output_format)?;
                let matcher = compiled.deep_clone();
                self.cache.lock().unwrap_or_else(PoisonError::into_inner).insert(key, compiled);
                matcher
            }
        };
        Ok(Matcher::new(inner, self.vocabulary()?.trie))
    }

    /// Returns the number of compiled grammars in the cache.
    pub fn cached(&self) -> usize {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Compiles on its own thread, because compiling needs much stack and must be over in time.
    fn compile_anew(&self, tenant: &str, output_format: &OutputFormat) -> Result<llguidance::Matcher, GrammarError> {
        let what = output_format.what();
        let vocabulary = self.vocabulary()?;
        let permit = self.permits.acquire(tenant, COMPILE_TIME_MAX).ok_or(GrammarError::Busy)?;
        let (sender, receiver) = mpsc::channel();
        let output_format = output_format.clone();
        let job = move || {
            // Held until the thread ends, which cannot be stopped when its time is over.
            let _permit = permit;
            lower_priority();
            drop(
                sender.send(grammar(&output_format).and_then(|grammar| matcher(&vocabulary, grammar, &output_format))),
            );
        };
        let failed = |reason: String| GrammarError::Uncompilable { what, reason };
        thread::Builder::new()
            .name("grammar".to_owned())
            .stack_size(COMPILE_STACK_BYTES)
            .spawn(job)
            .map_err(|error| failed(format!("no thread could be started: {error}")))?;
        receiver.recv_timeout(COMPILE_TIME_MAX).unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => Err(GrammarError::TooSlow { what, limit_ms: COMPILE_TIME_MAX.as_millis() }),
            RecvTimeoutError::Disconnected => Err(failed("the compiler panicked".to_owned())),
        })
    }

    fn vocabulary(&self) -> Result<Vocabulary, GrammarError> {
        if let Some(vocabulary) = self.vocabulary.get() {
            return Ok(vocabulary.clone());
        }
        let trie = Arc::new(TokenTrie::new(&self.tokenizer));
        let environment: TokEnv = trie.clone();
        let failed = |error| GrammarError::Uncompilable { what: "vocabulary", reason: format!("{error}") };
        let mut factory = ParserFactory::new_simple(&environment).map_err(failed)?;
        factory.quiet();
        *factory.limits_mut() = parser_limits();
        Ok(self.vocabulary.get_or_init(|| Vocabulary { trie, factory: Arc::new(factory) }).clone())
    }
}

impl fmt::Debug for GrammarCompiler {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.debug_struct("GrammarCompiler").field("cached", &self.cached()).finish_non_exhaustive()
    }
}

/// Returns the cache key of an output format. Checks sizes before anything is copied.
fn key(output_format: &OutputFormat) -> Result<String, GrammarError> {
    let what = output_format.what();
    let limited = |tag: &str, text: &str, max: usize| {
        let got = text.len();
        if got > max { Err(GrammarError::TooLong { what, got, max }) } else { Ok(format!("{tag}{text}")) }
    };
    match output_format {
        OutputFormat::JsonObject => Ok("object".to_owned()),
        OutputFormat::JsonSchema(schema) => {
            schema::check_depth(schema)?;
            limited("schema ", &schema.to_string(), SCHEMA_BYTES_MAX)
        }
        OutputFormat::Regex(pattern) => limited("regex ", pattern, GRAMMAR_BYTES_MAX),
        OutputFormat::Gbnf(source) => limited("gbnf ", source, GRAMMAR_BYTES_MAX),
        OutputFormat::Lark(source) => limited("lark ", source, GRAMMAR_BYTES_MAX),
        OutputFormat::ToolCalls(calls) => {
            calls.schemas().into_iter().try_for_each(schema::check_depth)?;
            limited("tools ", &calls.key(), SCHEMA_BYTES_MAX)
        }
    }
}

fn grammar(output_format: &OutputFormat) -> Result<TopLevelGrammar, GrammarError> {
    Ok(match output_format {
        OutputFormat::JsonObject => TopLevelGrammar::from_json_schema(schema::prepared(&json!({"type": "object"}))?),
        OutputFormat::JsonSchema(schema) => TopLevelGrammar::from_json_schema(schema::prepared(schema)?),
        OutputFormat::Regex(pattern) => TopLevelGrammar::from_lark(regex::to_lark(pattern)?),
        OutputFormat::Gbnf(source) => TopLevelGrammar::from_lark(gbnf::to_lark(source)?),
        OutputFormat::Lark(source) => TopLevelGrammar::from_lark(lark::checked(source)?),
        OutputFormat::ToolCalls(calls) => {
            let mut whole = TopLevelGrammar::from_lark(tool_calls::to_lark(calls)?);
            if let ToolCallMode::FormatOrCalls(answer) = &calls.mode {
                let name = Some(tool_calls::ANSWER.to_owned());
                let answer = grammar(answer)?.grammars.into_iter().next();
                whole.grammars.extend(answer.map(|answer| GrammarWithLexer { name, ..answer }));
            }
            whole
        }
    })
}

fn matcher(
    vocabulary: &Vocabulary,
    grammar: TopLevelGrammar,
    output_format: &OutputFormat,
) -> Result<llguidance::Matcher, GrammarError> {
    let refused = |reason: &str| uncompilable(output_format, reason);
    let parser = vocabulary.factory.create_parser(grammar).map_err(|error| refused(&error.to_string()))?;
    let mut matcher = llguidance::Matcher::new(Ok(parser));
    if let Some(warning) = matcher.grammar_warnings().first() {
        return Err(refused(warning));
    }
    // The first step is taken here, where an output format that nothing satisfies is still its author's error.
    if !vocabulary.trie.can_write(&matcher.compute_ff_bytes()) {
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

/// Puts a message of llguidance into the words of users: without the backtrace of a panic and without advice about
/// options that they do not have.
fn uncompilable(output_format: &OutputFormat, reason: &str) -> GrammarError {
    const SHOWN_MAX: usize = 500;
    let reason = reason.split("\n<").next().unwrap_or(reason).trim();
    let reason = if reason.contains("oneOf constraints are not supported") {
        let places = schema::places_of("oneOf", output_format.schemas());
        format!(
            "the keyword \"oneOf\" (at {}) has options that may overlap; make them distinct (by type, or by a \
             required property with different constants), or use \"anyOf\"",
            places.join(", ")
        )
    } else if reason.contains("NoExtension") {
        "nothing satisfies it".to_owned()
    } else {
        reason.chars().take(SHOWN_MAX).collect()
    };
    GrammarError::Uncompilable { what: output_format.what(), reason }
}
