//! Limits on output formats, which come from users.

use std::time::Duration;

use llguidance::api::ParserLimits;

/// Regular expressions and grammars: published ones stay below 20 KiB.
pub(crate) const GRAMMAR_BYTES_MAX: usize = 64 << 10;
/// JSON schemas, and the schemas of all tools together.
pub(crate) const SCHEMA_BYTES_MAX: usize = 256 << 10;
/// Nesting of brackets in regular expressions and grammars.
pub(crate) const GRAMMAR_DEPTH_MAX: usize = 64;
/// Nesting of a schema's JSON, and of its subschemas with references followed.
pub(crate) const SCHEMA_DEPTH_MAX: usize = 128;
/// Nodes that a schema may grow to when alternatives are multiplied out.
pub(crate) const SCHEMA_NODES_MAX: u64 = 200_000;
/// Each pattern is compared with each other.
pub(crate) const PATTERN_PROPERTIES_MAX: usize = 32;
/// 2^53 - 1: larger integers are not what a float makes of them.
pub(crate) const NUMBER_MAX: f64 = 9_007_199_254_740_991.0;
/// Whitespace between two parts of JSON: a newline and ten levels of four spaces. Without a limit, a model that
/// has nothing to say could write blanks forever.
pub(crate) const WHITESPACE_MAX: usize = 41;

/// Compiled output formats that are kept, and the source text that they may have together.
pub(super) const CACHED_GRAMMARS_MAX: usize = 64;
pub(super) const CACHED_BYTES_MAX: usize = 4 << 20;

/// Compiling recurses once per rule and per property, which a stack of the usual size does not bear.
pub(super) const COMPILE_STACK_BYTES: usize = 256 << 20;
/// Waiting for a turn, and then compiling. A schema of 200 KiB takes a second on a slow core.
pub(super) const COMPILE_TIME_MAX: Duration = Duration::from_secs(5);
/// Output formats that are compiled at the same time, those included that took too long and still run.
pub(super) const COMPILING_MAX: usize = 8;
/// And of one tenant.
pub(super) const COMPILING_OF_TENANT_MAX: usize = 4;
/// Maximum length of forced text that is put into tokens at once.
pub(super) const FORCED_BYTES_MAX: usize = 512;

/// A step must stay within milliseconds, and a matcher within megabytes, whatever the grammar.
pub(super) fn parser_limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2_000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        // One or two KiB each.
        max_lexer_states: 16_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: true,
        // Errors are for users: they do not need the state of the parser.
        verbose_errors: false,
    }
}
