//! A memory of texts, whose suggestions for the next token are mixed with the model's.
//!
//! Two kinds of memory in one: counts of n-grams (a cache language model), and the hidden states that tokens were
//! predicted from (kNN-LM). Both only look things up, so an item that was added helps at once, and one that is removed
//! leaves no trace. How much each of them counts follows from how well it predicted the items before they were added.
//!
//! Knows token ids and states; whose texts these are, and where they are stored, is decided elsewhere.

mod chain;
mod item;
mod neighbours;
mod ngrams;
mod rows;
mod shares;
mod space;

use std::sync::Arc;

use ruvllm_runner::TokenId;

pub use item::RecallItem;
pub use space::RecallSpace;

use chain::Chain;
use neighbours::Neighbours;
use ngrams::Ngrams;
use shares::Shares;

pub(crate) use rows::RowRecall;

/// The largest share that a memory can have in a mixture. The model keeps the rest, so the divergence of a mixture from
/// it, KL(model, mixture), is at most `-ln(1 - SHARE_MAX)` = 1.2 nats for a token, and no token that the model finds
/// likely can vanish.
pub const RECALL_SHARE_MAX: f64 = 0.7;

/// Targets that a memory holds at most, and bytes of the states that are compared for each row: what a look-up costs.
const TARGETS_MAX: usize = 16_384;
const STATES_BYTES_MAX: usize = 4 << 20;

/// About what a target takes beside its state, with its share of the prompt before it.
const TARGET_BYTES: usize = 1024;

/// An immutable memory, to be shared by requests. Made by adding items in their order, always with the same result.
#[derive(Clone, Debug, PartialEq)]
pub struct Recall {
    space: Option<Arc<RecallSpace>>,
    items: Vec<Arc<RecallItem>>,
    targets: usize,
    ngrams: Ngrams,
    neighbours: Neighbours,
    shares: Shares,
}

impl Recall {
    /// Returns an empty memory. `space` is that of the states of its items; without one, there are only n-grams.
    pub fn new(space: Option<Arc<RecallSpace>>) -> Self {
        Self {
            neighbours: Neighbours::new(space.as_ref().map_or(0, |space| space.width())),
            space,
            items: Vec::new(),
            targets: 0,
            ngrams: Ngrams::default(),
            shares: Shares::default(),
        }
    }

    /// Adds an item. It is predicted first, which decides how much the memory is believed from then on. Returns whether
    /// there is room for it.
    pub fn add(&mut self, item: Arc<RecallItem>) -> bool {
        if self.targets + item.targets() > Self::targets_max(self.neighbours.width(), usize::MAX) {
            return false;
        }
        if !self.is_empty() {
            self.judge(&item);
        }
        self.targets += item.targets();
        self.items.push(Arc::clone(&item));
        self.ngrams.add(&self.items, self.items.len() - 1);
        self.neighbours.add(&item);
        true
    }

    /// Notes how well the memory predicts the targets of an item that it does not hold.
    fn judge(&mut self, item: &RecallItem) {
        let mut chain = Chain::default();
        for target in item.first_target()..item.tokens().len() {
            self.ask(&item.tokens()[..target], item.state(target), &mut chain);
            let mut likely = item.likelihood(target);
            for (opinion, suggested) in chain.chances_of(item.tokens()[target], &self.ngrams) {
                let share = self.shares.of(opinion);
                self.shares.observe(opinion, suggested / likely);
                likely = (1.0 - share) * likely + share * suggested;
            }
        }
    }

    /// Collects what the memory suggests behind `tokens`, of which the last gave this state.
    fn ask(&self, tokens: &[TokenId], state: Option<&[i8]>, chain: &mut Chain) {
        chain.clear();
        self.ngrams.ask(tokens, chain);
        if let Some(state) = state {
            self.neighbours.ask(state, chain);
        }
        self.ngrams.ask_long(&self.items, tokens, chain);
    }

    /// Returns how many targets a memory of states of this width holds within so many bytes.
    pub fn targets_max(width: usize, bytes: usize) -> usize {
        TARGETS_MAX.min(STATES_BYTES_MAX / width.max(1)).min(bytes / (2 * width + TARGET_BYTES))
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the number of items.
    pub fn items(&self) -> usize {
        self.items.len()
    }

    /// Returns the memory that it takes, with its items.
    pub fn bytes(&self) -> usize {
        let items: usize = self.items.iter().map(|item| item.bytes()).sum();
        items + self.ngrams.bytes() + self.neighbours.bytes()
    }

    /// Returns the logarithm of the probability of the targets of an item that the memory does not hold, by the model
    /// alone and by the mixture: for measurements.
    pub fn score(&self, item: &RecallItem) -> (f64, f64) {
        let mut chain = Chain::default();
        let (mut alone, mut mixed) = (0.0, 0.0);
        for target in item.first_target()..item.tokens().len() {
            self.ask(&item.tokens()[..target], item.state(target), &mut chain);
            let token = item.tokens()[target];
            let (total, suggested) = chain.weigh(&self.shares).chance_of(token, &self.ngrams);
            let likely = item.likelihood(target);
            alone += likely.ln();
            mixed += ((1.0 - total) * likely + suggested).ln();
        }
        (alone, mixed)
    }
}

#[cfg(test)]
mod tests;
