//! Grammars of text as the engine knows them: constraints on tokens.

use ruvllm_engine::{Constraint, ConstraintError};
use ruvllm_text::{MatchError, Matcher};

/// A grammar that an answer is kept to.
#[derive(Debug)]
pub(crate) struct Grammar(pub Matcher);

impl Constraint for Grammar {
    fn allow(&mut self, allowed: &mut Vec<u32>) -> Result<(), ConstraintError> {
        self.0.mask(allowed).map_err(told)
    }

    fn accept(&mut self, token: u32) -> Result<(), ConstraintError> {
        self.0.accept(token).map_err(told)
    }

    fn rollback(&mut self, tokens: usize) -> Result<(), ConstraintError> {
        self.0.rollback(tokens).map_err(told)
    }

    fn is_complete(&self) -> bool {
        self.0.is_complete()
    }

    fn count_allowed(&mut self, guess: &[u32]) -> usize {
        self.0.count_allowed(guess)
    }

    fn forced(&mut self) -> Vec<u32> {
        self.0.forced()
    }
}

fn told(error: MatchError) -> ConstraintError {
    ConstraintError(error.to_string())
}
