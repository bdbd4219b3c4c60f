//! Compiled output formats, the most recently used ones.

use llguidance::Matcher;

use super::limits::{CACHED_BYTES_MAX, CACHED_GRAMMARS_MAX};

/// Few entries, looked up once per request: a list is enough.
#[derive(Default)]
pub(super) struct Cache {
    /// Most recently used last.
    entries: Vec<(String, Matcher)>,
}

impl Cache {
    pub(super) fn get(&mut self, key: &str) -> Option<Matcher> {
        let at = self.entries.iter().position(|(known, _)| known == key)?;
        let entry = self.entries.remove(at);
        self.entries.push(entry);
        // Deep: the automaton that one answer unfolds is neither shared with others nor kept.
        self.entries.last().map(|(_, matcher)| matcher.deep_clone())
    }

    pub(super) fn insert(&mut self, key: String, matcher: Matcher) {
        self.entries.retain(|(known, _)| *known != key);
        self.entries.push((key, matcher));
        while self.entries.len() > CACHED_GRAMMARS_MAX || self.bytes() > CACHED_BYTES_MAX {
            self.entries.remove(0);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    fn bytes(&self) -> usize {
        self.entries.iter().map(|(key, _)| key.len()).sum()
    }
}
