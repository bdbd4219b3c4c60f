//! From an output format to a matcher.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use llguidance::{ParserFactory, toktrie::TokEnv};

use super::attempts::Attempts;
use super::cache::{Cache, Entry};
use super::limited::{ThreadLimits, Unfinished};
use super::limits::{
    COMPILE_STACK_BYTES, COMPILE_TIME_MAX, COMPILE_WAIT_MAX, COMPILING_MAX, COMPILING_OF_TENANT_MAX, GRAMMAR_BYTES_MAX,
    SCHEMA_BYTES_MAX, parser_limits,
};
use super::semaphore::Semaphore;
use super::token_trie::TokenTrie;
use super::{GrammarError, Matcher, NotEnforced, OutputFormat, schema};
use crate::tokenizer::Tokenizer;

/// Compiles output formats for one tokenizer, and keeps what it compiled. One per model, shared by all requests.
pub struct GrammarCompiler {
    tokenizer: Arc<Tokenizer>,
    /// Built when it is first needed: for 150,000 tokens that takes some tenths of a second.
    vocabulary: OnceLock<Vocabulary>,
    cache: Mutex<Cache>,
    permits: Semaphore,
}

/// A compiled output format.
#[derive(Clone, Debug)]
pub struct Compiled {
    /// At the beginning of an answer.
    pub matcher: Matcher,
    /// What of its schemas the matcher does not enforce.
    pub not_enforced: Arc<NotEnforced>,
}

/// What all compilations share.
#[derive(Clone)]
pub(super) struct Vocabulary {
    pub trie: Arc<TokenTrie>,
    pub factory: Arc<ParserFactory>,
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
        self.compile_for("", output_format).map(|compiled| compiled.matcher)
    }

    /// Returns a matcher as [`Self::compile`] does, within the limits of a tenant, and what it does not enforce.
    pub fn compile_for(&self, tenant: &str, output_format: &OutputFormat) -> Result<Compiled, GrammarError> {
        let key = key(output_format)?;
        let cached = self.cache.lock().unwrap_or_else(PoisonError::into_inner).get(&key);
        let Entry { matcher, not_enforced } = match cached {
            Some(entry) => entry,
            None => {
                let entry = self.compile_anew(tenant, output_format)?;
                self.cache.lock().unwrap_or_else(PoisonError::into_inner).insert(key, entry.clone());
                entry
            }
        };
        Ok(Compiled { matcher: Matcher::new(matcher, self.vocabulary()?.trie), not_enforced })
    }

    /// Returns the number of compiled grammars in the cache.
    pub fn cached(&self) -> usize {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Compiles on its own thread, because compiling needs much stack and must be over in time.
    fn compile_anew(&self, tenant: &str, output_format: &OutputFormat) -> Result<Entry, GrammarError> {
        let what = output_format.what();
        let vocabulary = self.vocabulary()?;
        let permit = self.permits.acquire(tenant, COMPILE_WAIT_MAX).ok_or(GrammarError::Busy)?;
        let output_format = output_format.clone();
        let limits = ThreadLimits { name: "grammar", stack_bytes: COMPILE_STACK_BYTES, time_max: COMPILE_TIME_MAX };
        let compiled = limits.run(move || {
            // Held until the thread ends, which cannot be stopped when its time is over.
            let _permit = permit;
            Attempts::new(&vocabulary, &output_format).run()
        });
        let failed = |reason: String| GrammarError::Uncompilable { what, reason };
        compiled.unwrap_or_else(|unfinished| {
            Err(match unfinished {
                Unfinished::TooSlow => GrammarError::TooSlow { what, limit_ms: COMPILE_TIME_MAX.as_millis() },
                Unfinished::Panicked => failed("the compiler panicked".to_owned()),
                Unfinished::NoThread(error) => failed(format!("no thread could be started: {error}")),
            })
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
        OutputFormat::JsonSchema { schema, strictness } => {
            schema::check_depth(schema)?;
            limited(&format!("{} schema ", strictness.name()), &schema.to_string(), SCHEMA_BYTES_MAX)
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
