//! Compiled output formats, the most recently used ones.

use std::sync::Arc;

use llguidance::Matcher;

use super::NotEnforced;
use super::limits::{CACHED_BYTES_MAX, CACHED_GRAMMARS_MAX};

/// Few entries, looked up once per request: a list is enough.
#[derive(Default)]
pub(super) struct Cache {
    /// Most recently used last.
    entries: Vec<(String, Entry)>,
}

/// A compiled output format at the beginning of an answer.
pub(super) struct Entry {
    pub matcher: Matcher,
    pub not_enforced: Arc<NotEnforced>,
}

/// Deep: the automaton that one answer unfolds is neither shared with others nor kept.
impl Clone for Entry {
    fn clone(&self) -> Self {
        Self { matcher: self.matcher.deep_clone(), not_enforced: self.not_enforced.clone() }
    }
}

impl Cache {
    pub(super) fn get(&mut self, key: &str) -> Option<Entry> {
        let at = self.entries.iter().position(|(known, _)| known == key)?;
        let entry = self.entries.remove(at);
        self.entries.push(entry);
        self.entries.last().map(|(_, entry)| entry.clone())
    }

    pub(super) fn insert(&mut self, key: String, entry: Entry) {
        self.entries.retain(|(known, _)| *known != key);
        self.entries.push((key, entry));
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
