//! Whether what is written accepts just what was meant, or more, or less.

use serde_json::Value;

use super::{GrammarError, Position, Rewriter, Strictness};

/// Trials within trials: each may write what is in it more than once.
const TRIALS_MAX: usize = 8;

impl Rewriter<'_> {
    /// Leaves a keyword out where that may be, and is an error where not.
    pub(super) fn relax(&mut self, error: GrammarError) -> Result<(), GrammarError> {
        match (&error, self.strictness, self.trials) {
            (GrammarError::NotEnforceable { keyword, pointer, .. }, Strictness::Relaxed, 0) => {
                self.not_enforced.add_constraint(keyword, pointer);
                self.mark_inexact();
                Ok(())
            }
            _ => Err(error),
        }
    }

    pub(super) fn mark_inexact(&mut self) {
        self.inexact_count += 1;
        self.inexact.extend(self.open.iter().cloned());
    }

    pub(super) fn narrow(&mut self) {
        self.narrow_reversibly();
        self.mark_inexact();
    }

    /// Narrows what carries its exact negation with it, so that it may be negated.
    pub(super) fn narrow_reversibly(&mut self) {
        self.narrowed_count += 1;
        self.narrowed.extend(self.open.iter().cloned());
    }

    /// Runs something whose result is of use only if it is exact; otherwise nothing of it remains.
    pub(super) fn exactly<T>(
        &mut self,
        keyword: &str,
        position: &Position,
        run: impl FnOnce(&mut Self) -> Result<T, GrammarError>,
    ) -> Result<T, GrammarError> {
        if self.trials >= TRIALS_MAX {
            return Err(position.unenforceable(keyword, "stands in too many others that depend on each other"));
        }
        let (keys, inexact_count) = (self.keys.len(), self.inexact_count);
        self.trials += 1;
        let result = run(self);
        self.trials -= 1;
        let result = match result {
            Ok(_) if self.inexact_count != inexact_count => {
                Err(position.unenforceable(keyword, "is not supported here"))
            }
            other => other,
        };
        if result.is_err() {
            for key in self.keys.split_off(keys) {
                let name = self.names.remove(&key).unwrap_or_default();
                self.definitions.shift_remove(&name);
                self.costs.remove(&name);
                self.open.retain(|open| *open != name);
            }
        }
        result
    }

    /// Writes the schema of a keyword that is of use only if it is exact. Returns `None` if the keyword was left out, as it
    /// is not, or as there is no time for it.
    pub(super) fn exact(
        &mut self,
        keyword: &str,
        value: &Value,
        position: &Position,
    ) -> Result<Option<Value>, GrammarError> {
        if !self.effort.rewrites() {
            self.relax(position.unenforceable(keyword, "belongs to a schema that is too large"))?;
            return Ok(None);
        }
        let inside = position.below(keyword, "");
        match self.exactly(keyword, position, |rewriter| rewriter.schema(value, &inside)) {
            Ok((schema, _)) => Ok(Some(schema)),
            Err(error @ GrammarError::NotEnforceable { .. }) => {
                self.relax(position.unenforceable(keyword, format!("cannot be enforced: {error}")))?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
