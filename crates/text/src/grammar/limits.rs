//! Limits on output formats, which come from users.

use std::time::Duration;

use llguidance::api::ParserLimits;

/// Regular expressions and grammars: published ones stay below 20 KiB.
pub(crate) const GRAMMAR_BYTES_MAX: usize = 64 << 10;
/// JSON schemas, and the schemas of all tools together: the largest that people publish have 1 MiB.
pub(crate) const SCHEMA_BYTES_MAX: usize = 2 << 20;
/// Nesting of brackets in regular expressions and grammars.
pub(crate) const GRAMMAR_DEPTH_MAX: usize = 64;
/// Nesting of a schema's JSON.
pub(crate) const SCHEMA_DEPTH_MAX: usize = 128;
/// Nesting of subschemas with references followed.
pub(crate) const REFERENCE_DEPTH_MAX: usize = 512;
/// Nodes that a schema may grow to when alternatives are multiplied out.
pub(crate) const SCHEMA_NODES_MAX: u64 = 200_000;
/// Nodes of the schemas of an output format that llguidance takes in time.
pub(super) const COMPILED_NODES_MAX: u64 = 60_000;
/// Each pattern is compared with each other at the same place.
pub(crate) const PATTERN_PROPERTIES_MAX: usize = 32;
/// Patterns that are looked at for one schema, alone or in pairs: each look may take milliseconds.
pub(crate) const PATTERN_CHECKS_MAX: usize = 400;
/// Subschemas that are written for one schema, some of them more than once.
pub(crate) const SCHEMA_STEPS_MAX: usize = 100_000;
/// Options of which each excludes each other.
pub(crate) const EXCLUSIVE_OPTIONS_MAX: usize = 12;
/// Ways in which an array may have the items that it must contain.
pub(crate) const CONTAINS_WAYS_MAX: usize = 16;
/// Places that are named where something is not enforced, and the length of each.
pub(crate) const NOT_ENFORCED_MAX: usize = 32;
pub(crate) const NOT_ENFORCED_BYTES_MAX: usize = 256;
/// 2^53 - 1: larger integers are not what a float makes of them.
pub(crate) const NUMBER_MAX: f64 = 9_007_199_254_740_991.0;
/// Whitespace between two parts of JSON: a newline and ten levels of four spaces. Without a limit, a model that
/// has nothing to say could write blanks forever.
pub(crate) const WHITESPACE_MAX: usize = 41;

/// Compiled output formats that are kept, and the source text that they may have together.
pub(super) const CACHED_GRAMMARS_MAX: usize = 64;
pub(super) const CACHED_BYTES_MAX: usize = 8 << 20;

/// Compiling recurses once per rule and per property, which a stack of the usual size does not bear.
pub(super) const COMPILE_STACK_BYTES: usize = 256 << 20;
/// Compiling, with all attempts.
pub(super) const COMPILE_TIME_MAX: Duration = Duration::from_secs(2);
/// Waiting for a turn to compile.
pub(super) const COMPILE_WAIT_MAX: Duration = Duration::from_secs(5);
/// After this time, what may be relaxed is relaxed much at once, so that there is time left for an attempt.
pub(super) const COMPILE_ATTEMPTS_TIME_MAX: Duration = Duration::from_millis(800);
/// Output formats that are compiled at the same time, those included that took too long and still run.
pub(super) const COMPILING_MAX: usize = 8;
/// And of one tenant.
pub(super) const COMPILING_OF_TENANT_MAX: usize = 4;
/// Maximum length of forced text that is put into tokens at once.
pub(super) const FORCED_BYTES_MAX: usize = 512;

/// An answer that is checked against its schema: its size, the time and the stack that it takes, how many are checked for
/// one schema at the same time, and what one pattern may take.
pub(super) const ANSWER_BYTES_MAX: usize = 4 << 20;
pub(super) const CHECK_TIME_MAX: Duration = Duration::from_secs(2);
pub(super) const CHECK_STACK_BYTES: usize = 64 << 20;
pub(super) const CHECKING_MAX: usize = 4;
pub(super) const PATTERN_BYTES_MAX: usize = 1 << 20;
pub(super) const PATTERN_STEPS_MAX: usize = 100_000;

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
