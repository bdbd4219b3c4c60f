//! A choice as the log has it.

use super::features::Features;
use crate::DocumentKey;

/// Choices of a tenant that are learned from, the newest.
pub const CHOICES_MAX: usize = 4000;

/// A model that could have answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    pub model: String,
    /// How likely it was to be chosen.
    pub probability: f64,
}

/// A choice, and what came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct LoggedChoice {
    pub features: Features,
    /// At least one, and their probabilities sum up to 1.
    pub candidates: Vec<Candidate>,
    /// Places in `candidates`: what answered, and what answers where nothing is known.
    pub chosen: usize,
    pub default: usize,
    /// Whether the request named its model: nobody has drawn it, so its probability says nothing.
    pub is_named: bool,
    /// From -1 to 1.
    pub reward: f64,
}

impl LoggedChoice {
    /// Returns what similar requests are kept together by: what is asked again is not held out once and learned once.
    pub fn document(&self) -> DocumentKey {
        DocumentKey::of(&self.features.to_text())
    }

    /// Returns whether each candidate could have been chosen, so that the log says something of all of them.
    pub fn is_explored(&self) -> bool {
        !self.is_named && self.candidates.len() > 1 && self.candidates.iter().all(|one| one.probability > 0.0)
    }

    pub(crate) fn models(&self) -> Vec<&str> {
        self.candidates.iter().map(|one| one.model.as_str()).collect()
    }
}
