//! Checks finished answers against all of a schema, for what its grammar does not enforce.
//!
//! The judge is another implementation than the one that writes answers. It fetches nothing and reads no files; schemas
//! and answers are bounded, and so is the time: checking happens on a thread of its own, which is waited for no longer
//! than the limit.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use jsonschema::{Draft, PatternOptions, Validator};
use serde_json::Value;

use super::GrammarError;
use super::limited::ThreadLimits;
use super::limits::{
    ANSWER_BYTES_MAX, CHECK_STACK_BYTES, CHECK_TIME_MAX, CHECKING_MAX, PATTERN_BYTES_MAX, PATTERN_STEPS_MAX,
    SCHEMA_BYTES_MAX,
};
use super::schema::{check_depth, draft_number};
use crate::priority::lower_priority;

/// Checks answers against one schema. Shared by all answers that follow it.
#[derive(Clone)]
pub struct SchemaValidator {
    validator: Arc<Validator>,
}

/// Answers that are being checked, those included that took too long and still are.
static CHECKING: AtomicUsize = AtomicUsize::new(0);

/// Why an answer was not found to be valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    #[error("the answer is not JSON: {reason}")]
    NotJson { reason: String },
    #[error("the answer is invalid at {instance:?} by {schema:?}: {problem}")]
    Invalid { instance: String, schema: String, problem: String },
    #[error("the answer has {got} bytes; at most {max} are checked")]
    TooLong { got: usize, max: usize },
    #[error("the answer was not checked within {limit_ms} ms")]
    TooSlow { limit_ms: u128 },
}

const LIMITS: ThreadLimits =
    ThreadLimits { name: "validator", stack_bytes: CHECK_STACK_BYTES, time_max: CHECK_TIME_MAX };

impl SchemaValidator {
    /// Returns a validator, or why the schema cannot be checked at all: it is no schema, or refers to others.
    pub fn new(schema: &Value) -> Result<Self, GrammarError> {
        const WHAT: &str = "JSON schema";
        check_depth(schema)?;
        let got = schema.to_string().len();
        if got > SCHEMA_BYTES_MAX {
            return Err(GrammarError::TooLong { what: WHAT, got, max: SCHEMA_BYTES_MAX });
        }
        let schema = schema.clone();
        let failed = |reason: String| GrammarError::Uncompilable { what: WHAT, reason };
        let built = LIMITS.run(move || build(&schema).map_err(|problem| shortened(&problem)));
        let built = built.map_err(|_| GrammarError::TooSlow { what: WHAT, limit_ms: CHECK_TIME_MAX.as_millis() })?;
        let validator = Arc::new(built.map_err(failed)?);
        Ok(Self { validator })
    }

    /// Checks the text of a finished answer. Blocks the thread until that is done, or has taken too long.
    pub fn check(&self, answer: &str) -> Result<(), Violation> {
        if answer.len() > ANSWER_BYTES_MAX {
            return Err(Violation::TooLong { got: answer.len(), max: ANSWER_BYTES_MAX });
        }
        let (validator, answer) = (Arc::clone(&self.validator), answer.to_owned());
        let too_slow = Violation::TooSlow { limit_ms: CHECK_TIME_MAX.as_millis() };
        LIMITS.run(move || judge(&validator, &answer)).unwrap_or(Err(too_slow))
    }

    /// Checks the text of a finished answer on a thread of its own, and reports what it found there.
    pub fn check_in_background(&self, answer: String, report: impl FnOnce(Result<(), Violation>) + Send + 'static) {
        let too_slow = Violation::TooSlow { limit_ms: CHECK_TIME_MAX.as_millis() };
        if answer.len() > ANSWER_BYTES_MAX {
            return report(Err(Violation::TooLong { got: answer.len(), max: ANSWER_BYTES_MAX }));
        }
        if CHECKING.fetch_add(1, Ordering::Relaxed) >= CHECKING_MAX {
            CHECKING.fetch_sub(1, Ordering::Relaxed);
            return report(Err(too_slow));
        }
        let validator = Arc::clone(&self.validator);
        let job = move || {
            lower_priority();
            let outcome = catch_unwind(AssertUnwindSafe(|| judge(&validator, &answer)));
            CHECKING.fetch_sub(1, Ordering::Relaxed);
            report(outcome.unwrap_or(Err(Violation::NotJson { reason: "the check failed".to_owned() })));
        };
        let spawned = thread::Builder::new().name("validator".to_owned()).stack_size(CHECK_STACK_BYTES).spawn(job);
        if spawned.is_err() {
            // The report is dropped with the job, which whoever waits for it notices.
            CHECKING.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn judge(validator: &Validator, answer: &str) -> Result<(), Violation> {
    let value: Value =
        serde_json::from_str(answer).map_err(|error| Violation::NotJson { reason: error.to_string() })?;
    validator.validate(&value).map_err(|error| Violation::Invalid {
        instance: shortened(error.instance_path().as_str()),
        schema: shortened(error.schema_path().as_str()),
        // Without the value, which may be long, or private.
        problem: shortened(&error.masked().to_string()),
    })
}

fn build(schema: &Value) -> Result<Validator, String> {
    let draft = match draft_number(schema) {
        4 => Draft::Draft4,
        6 => Draft::Draft6,
        7 => Draft::Draft7,
        2019 => Draft::Draft201909,
        _ => Draft::Draft202012,
    };
    let patterns = PatternOptions::fancy_regex()
        .backtrack_limit(PATTERN_STEPS_MAX)
        .size_limit(PATTERN_BYTES_MAX)
        .dfa_size_limit(PATTERN_BYTES_MAX);
    let options = jsonschema::options().with_draft(draft).offline().with_pattern_options(patterns);
    options.build(schema).map_err(|error| error.masked().to_string())
}

fn shortened(text: &str) -> String {
    const SHOWN_MAX: usize = 300;
    text.chars().take(SHOWN_MAX).collect()
}

impl fmt::Debug for SchemaValidator {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.debug_struct("SchemaValidator").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn answers_are_checked_against_what_no_grammar_enforces() {
        let schema = json!({"type": "array", "uniqueItems": true, "items": {"not": {"multipleOf": 3}}});
        let validator = SchemaValidator::new(&schema).unwrap();
        assert_eq!(validator.check("[1, 2]"), Ok(()));
        assert!(
            matches!(validator.check("[1, 1]"), Err(Violation::Invalid { schema, .. }) if schema == "/uniqueItems")
        );
        assert!(matches!(validator.check("[1, 6]"), Err(Violation::Invalid { instance, .. }) if instance == "/1"));
        assert!(matches!(validator.check("[1"), Err(Violation::NotJson { .. })));
        let long = format!("[{}1]", "1,".repeat(ANSWER_BYTES_MAX / 2));
        assert!(matches!(validator.check(&long), Err(Violation::TooLong { .. })));
    }

    #[test]
    fn each_draft_is_read_its_own_way() {
        let old = json!({"$schema": "https://json-schema.org/draft-04/schema", "maximum": 3, "exclusiveMaximum": true});
        let validator = SchemaValidator::new(&old).unwrap();
        assert_eq!(validator.check("2"), Ok(()));
        assert!(validator.check("3").is_err());
        let unknown = json!({"$schema": "https://example.com/own", "dependentRequired": {"a": ["b"]}});
        assert!(SchemaValidator::new(&unknown).unwrap().check("{\"a\": 1}").is_err());
    }

    #[test]
    fn nothing_is_fetched_and_nothing_runs_away() {
        for reference in ["https://example.com/a.json", "file:///etc/passwd", "other.json"] {
            assert!(SchemaValidator::new(&json!({"$ref": reference})).is_err(), "{reference}");
        }
        assert!(SchemaValidator::new(&json!({"type": "text"})).is_err());
        assert!(SchemaValidator::new(&json!({"pattern": "((((a|b){1000}){1000}){1000}){1000}"})).is_err());
        let backtracking = SchemaValidator::new(&json!({"pattern": "^(?=a)(a+)+\\1$"})).unwrap();
        assert!(backtracking.check(&format!("\"{}b\"", "a".repeat(5_000))).is_err());
    }
}
