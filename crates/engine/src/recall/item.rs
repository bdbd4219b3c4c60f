//! A text to remember, with what the model made of it.

use ruvllm_runner::TokenId;

/// Tokens of which the last are targets: what is to be said behind the rest. Made by `Core::observe`.
#[derive(Clone, Debug, PartialEq)]
pub struct RecallItem {
    tokens: Vec<TokenId>,
    first_target: usize,
    /// How much each token surprised the model, in nats; 0 for the first, which nothing comes before.
    surprises: Vec<f32>,
    /// The states that targets were predicted from, one after the other; none without a space.
    states: Vec<i8>,
    width: usize,
}

impl RecallItem {
    pub(crate) fn new(
        tokens: Vec<TokenId>,
        first_target: usize,
        surprises: Vec<f32>,
        states: Vec<i8>,
        width: usize,
    ) -> Self {
        assert!(
            (1..tokens.len()).contains(&first_target) && surprises.len() == tokens.len(),
            "targets follow something"
        );
        assert_eq!(states.len(), (tokens.len() - first_target) * width, "a state for each target");
        Self { tokens, first_target, surprises, states, width }
    }

    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Returns the position of the first target.
    pub fn first_target(&self) -> usize {
        self.first_target
    }

    /// Returns the number of targets.
    pub fn targets(&self) -> usize {
        self.tokens.len() - self.first_target
    }

    /// Returns the memory that it takes.
    pub fn bytes(&self) -> usize {
        self.tokens.len() * (size_of::<TokenId>() + size_of::<f32>()) + self.states.len()
    }

    pub(super) fn surprise(&self, position: usize) -> f32 {
        self.surprises[position]
    }

    /// Returns the model's probability of a token. Never zero, so that it can be divided by.
    pub(super) fn likelihood(&self, position: usize) -> f64 {
        (-f64::from(self.surprises[position])).exp().max(1e-12)
    }

    /// Returns the state that a target was predicted from.
    pub(super) fn state(&self, target: usize) -> Option<&[i8]> {
        let start = (target - self.first_target) * self.width;
        (self.width > 0).then(|| &self.states[start..start + self.width])
    }
}
