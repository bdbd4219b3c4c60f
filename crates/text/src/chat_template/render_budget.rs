//! The budget of bytes that a rendering may build.
//!
//! Fuel counts steps, and one step can double a text. So everything that builds a value charges it here, before or at once after,
//! and a template that builds too much in all, or nests values too deeply to be shown or dropped, is ended.

use std::fmt::{self, Write};

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, State, Value};

use super::python::is_of_type;
use super::python::written::write_str;

/// Maximum nesting of lists: showing, comparing and dropping them recurses as deeply.
const DEPTH_MAX: usize = 64;
/// Cost of an item of a list beside its text.
pub(super) const ITEM_BYTES: u64 = 32;

/// The variable that holds the budget. No template can write its name.
pub(super) const ALLOWED: &str = "%built_bytes_max";

/// The limit that was passed, as the source of an error.
#[derive(Debug)]
pub(super) struct TooMuchBuilt;

impl fmt::Display for TooMuchBuilt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("too much was built")
    }
}

impl std::error::Error for TooMuchBuilt {}

/// What is left of one rendering's budget; kept in its state.
#[derive(Clone, Copy, Debug)]
pub(super) struct RenderBudget {
    left: u64,
}

/// Whether texts in a list count: they are shared until the list is written out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Texts {
    Shared,
    Written,
}

impl RenderBudget {
    /// Returns the budget of a rendering, which begins with what the environment allows.
    pub(super) fn of<'s>(state: &'s mut State) -> &'s mut Self {
        let allowed = match state.get_extension::<Self>() {
            Some(_) => None,
            None => state.lookup(ALLOWED).and_then(|allowed| u64::try_from(allowed).ok()),
        };
        state.get_or_insert_extension_with(|| Self { left: allowed.unwrap_or(0) })
    }

    pub(super) fn charge(&mut self, bytes: u64) -> Result<(), Error> {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => {
                self.left = 0;
                Err(Error::new(ErrorKind::InvalidOperation, "the template builds too much").with_source(TooMuchBuilt))
            }
        }
    }

    /// Charges a value with all that is in it, as often as it is in it.
    pub(super) fn charge_value(&mut self, value: &Value, texts: Texts) -> Result<(), Error> {
        self.charge_nested(value, texts, DEPTH_MAX)
    }

    fn charge_nested(&mut self, value: &Value, texts: Texts, depth_left: usize) -> Result<(), Error> {
        if let Some(text) = value.as_str() {
            return self.charge(ITEM_BYTES + if texts == Texts::Written { text.len() as u64 } else { 0 });
        }
        self.charge(ITEM_BYTES)?;
        let is_map = value.kind() == ValueKind::Map;
        if !is_map && !matches!(value.kind(), ValueKind::Seq | ValueKind::Iterable) {
            return Ok(());
        }
        let Some(depth_left) = depth_left.checked_sub(1) else {
            let message = format!("values are nested more than {DEPTH_MAX} levels deep");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        };
        // Whatever can only be iterated once is shown by its kind, not by its items.
        if value.kind() == ValueKind::Iterable && value.len().is_none() {
            return Ok(());
        }
        for key in value.try_iter()? {
            if is_map {
                self.charge_nested(&value.get_item(&key)?, texts, depth_left)?;
            }
            self.charge_nested(&key, texts, depth_left)?;
        }
        Ok(())
    }

    /// Charges what was built of values that are known: a text, or a list without what is in its items.
    pub(super) fn charge_shallow(&mut self, value: &Value) -> Result<(), Error> {
        match value.as_str() {
            Some(text) => self.charge(text.len() as u64),
            None => self.charge(value.len().unwrap_or(0) as u64 * ITEM_BYTES),
        }
    }

    /// Writes a value out, as far as the budget goes.
    pub(super) fn write(&mut self, value: &Value, out: &mut dyn Write) -> Result<(), Error> {
        if let Some(text) = value.as_str() {
            self.charge(text.len() as u64)?;
            return out.write_str(text).map_err(Error::from);
        }
        self.charge_value(value, Texts::Written)?;
        write_str(value, out).map_err(Error::from)
    }
}

/// Writes as far as the budget goes.
#[derive(Debug)]
pub(super) struct Metered<'w> {
    budget: &'w mut RenderBudget,
    out: &'w mut String,
}

impl<'w> Metered<'w> {
    pub(super) fn new(budget: &'w mut RenderBudget, out: &'w mut String) -> Self {
        Self { budget, out }
    }

    pub(super) fn write(&mut self, text: &str) -> Result<(), Error> {
        self.budget.charge(text.len() as u64)?;
        self.out.push_str(text);
        Ok(())
    }
}

/// A namespace can be changed after it was put somewhere, into itself for example, and would then have no end.
pub(super) fn refuse_namespace(value: &Value) -> Result<(), Error> {
    if is_of_type(value, "::Namespace") {
        return Err(Error::new(ErrorKind::InvalidOperation, "a namespace cannot be put into another value"));
    }
    Ok(())
}
