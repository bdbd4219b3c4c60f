//! What of a schema the grammar does not enforce, so that nobody believes it does.

use std::fmt;

use super::limits::{NOT_ENFORCED_BYTES_MAX, NOT_ENFORCED_MAX};

/// Whether a schema is enforced completely or not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Strictness {
    /// Whatever constrains and cannot be enforced is an error.
    Strict,
    /// Whatever cannot be enforced is left out, and named in [`NotEnforced`].
    #[default]
    Relaxed,
}

impl Strictness {
    /// Returns how strict a request is that may say so.
    pub fn of_flag(strict: Option<bool>) -> Self {
        if strict == Some(true) { Self::Strict } else { Self::Relaxed }
    }

    /// Returns its name in cache keys.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Strict => "strict",
            Self::Relaxed => "relaxed",
        }
    }
}

/// Where a keyword stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The tool whose parameters these are; `None` for the format of an answer.
    pub tool: Option<String>,
    /// `(too large)` where more than a keyword was left out, `format:...` for a format that is not known.
    pub keyword: String,
    /// A JSON pointer to the schema that has the keyword, beginning with `#`.
    pub pointer: String,
}

/// `uniqueItems at #/properties/tags`, or `search: not at #`
impl fmt::Display for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tool, keyword, pointer } = self;
        if let Some(tool) = tool {
            write!(out, "{tool}: ")?;
        }
        write!(out, "{keyword} at {pointer}")
    }
}

/// What of the schemas of an output format is not enforced: a bounded list, and how many there are beyond it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotEnforced {
    /// Constraints that were left out or widened: an answer may violate them.
    pub constraints: Vec<Place>,
    pub constraints_beyond: usize,
    /// Keywords and formats that are not known, which to the standard say nothing; each is listed once.
    pub annotations: Vec<Place>,
    pub annotations_beyond: usize,
}

impl NotEnforced {
    /// Returns whether every answer that the grammar accepts is valid.
    pub fn is_valid_by_construction(&self) -> bool {
        self.constraints.is_empty() && self.constraints_beyond == 0
    }

    /// Returns everything that an answer may violate, and what to the standard says nothing.
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        self.constraints.iter().chain(&self.annotations)
    }

    /// Returns how many places are not listed.
    pub fn beyond(&self) -> usize {
        self.constraints_beyond + self.annotations_beyond
    }

    pub(super) fn add_constraint(&mut self, keyword: &str, pointer: &str) {
        let is_known = |place: &Place| place.keyword == keyword && place.pointer == pointer;
        if !self.constraints.iter().any(is_known) {
            push(&mut self.constraints, &mut self.constraints_beyond, keyword, pointer);
        }
    }

    pub(super) fn add_annotation(&mut self, keyword: &str, pointer: &str) {
        if !self.annotations.iter().any(|place| place.keyword == keyword) {
            push(&mut self.annotations, &mut self.annotations_beyond, keyword, pointer);
        }
    }

    /// Takes over what another schema of the same output format has.
    pub(super) fn extend(&mut self, other: Self, tool: Option<&str>) {
        let named = |place: Place| Place { tool: tool.map(str::to_owned), ..place };
        for (list, beyond, of_other, beyond_other) in [
            (&mut self.constraints, &mut self.constraints_beyond, other.constraints, other.constraints_beyond),
            (&mut self.annotations, &mut self.annotations_beyond, other.annotations, other.annotations_beyond),
        ] {
            let room = NOT_ENFORCED_MAX.saturating_sub(list.len());
            *beyond += beyond_other + of_other.len().saturating_sub(room);
            list.extend(of_other.into_iter().take(room).map(named));
        }
    }
}

fn push(list: &mut Vec<Place>, beyond: &mut usize, keyword: &str, pointer: &str) {
    if list.len() < NOT_ENFORCED_MAX && keyword.len() + pointer.len() <= NOT_ENFORCED_BYTES_MAX {
        list.push(Place { tool: None, keyword: keyword.to_owned(), pointer: pointer.to_owned() });
    } else {
        *beyond += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_bounded_in_number_and_bytes_and_the_rest_is_counted() {
        let mut all = NotEnforced::default();
        for number in 0..100 {
            all.add_constraint("not", &format!("#/{number}"));
            all.add_constraint("not", "#/1");
            all.add_annotation(&format!("x-{number}"), "#");
        }
        assert_eq!((all.constraints.len(), all.constraints_beyond), (NOT_ENFORCED_MAX, 100 - NOT_ENFORCED_MAX));
        assert_eq!((all.annotations.len(), all.annotations_beyond), (NOT_ENFORCED_MAX, 100 - NOT_ENFORCED_MAX));
        let mut long = NotEnforced::default();
        long.add_constraint("not", &"a".repeat(10_000));
        assert_eq!((long.constraints.len(), long.constraints_beyond), (0, 1));
        assert!(!long.is_valid_by_construction());
    }

    #[test]
    fn tools_are_named() {
        let (mut all, mut one) = (NotEnforced::default(), NotEnforced::default());
        one.add_constraint("not", "#");
        all.extend(one, Some("search"));
        assert_eq!(all.constraints[0].tool.as_deref(), Some("search"));
    }
}
