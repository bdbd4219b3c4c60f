//! What is learned from: tokens, and which of them are to be predicted.

use std::ops::Range;

use ruvllm_runner::TokenId;

use crate::TrainError;

/// A text as tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub tokens: Vec<TokenId>,
    /// Whether each token is a target: its prediction from those before it counts. The first never is one.
    pub targets: Vec<bool>,
    /// The first token that the adapter applies to; 0 for all but activated ones.
    pub active_from: usize,
    /// Which document it is of: a document is never on both sides of a split.
    pub document: usize,
    /// A worse answer to the same prompt, which is to become less likely than this one.
    pub rejected: Option<Box<Item>>,
}

impl Item {
    /// Makes an item in which the tokens in a range are targets.
    pub fn new(tokens: Vec<TokenId>, targets: Range<usize>, document: usize) -> Self {
        let targets = (0..tokens.len()).map(|index| targets.contains(&index)).collect();
        Self { tokens, targets, active_from: 0, document, rejected: None }
    }

    /// Returns what is to be predicted, from the first target on.
    pub fn answer(&self) -> &[TokenId] {
        let first = self.targets.iter().position(|is_target| *is_target).unwrap_or(self.tokens.len());
        &self.tokens[first..]
    }

    /// Returns how many of its own predictions count.
    pub fn target_count(&self) -> usize {
        self.targets.iter().skip(1).filter(|is_target| **is_target).count()
    }

    /// Returns how many tokens are run, with those of what is rejected: the last one of each predicts nothing.
    pub fn rows(&self) -> usize {
        self.tokens.len().saturating_sub(1) + self.rejected.as_ref().map_or(0, |rejected| rejected.rows())
    }

    /// Refuses what cannot be trained on. `index` is its number in a list.
    pub(crate) fn check(&self, index: usize, vocabulary: usize, rows_max: usize) -> Result<(), TrainError> {
        let refuse = |problem: String| Err(TrainError::Item { index, problem });
        if self.targets.len() != self.tokens.len() {
            return refuse(format!("has {} tokens and {} targets", self.tokens.len(), self.targets.len()));
        }
        if let Some(token) = self.tokens.iter().find(|token| **token as usize >= vocabulary) {
            return refuse(format!("has the token {token}, and the vocabulary has {vocabulary}"));
        }
        if self.target_count() == 0 {
            return refuse("has no target: nothing can be learned from it".to_owned());
        }
        if self.rows() > rows_max {
            let all = self.rejected.as_ref().map_or("", |_| " with the rejected answer");
            return refuse(format!("has {} tokens{all}; at most {} are taken at once", self.rows() + 1, rows_max + 1));
        }
        match &self.rejected {
            Some(rejected) if rejected.rejected.is_some() => {
                refuse("has a rejected answer of a rejected one".to_owned())
            }
            Some(rejected) => rejected.check(index, vocabulary, rows_max),
            None => Ok(()),
        }
    }
}
