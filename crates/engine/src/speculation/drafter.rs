//! The draft tokens of one sequence: what to draft, how many tokens, and when to leave it.

use ruvllm_runner::TokenId;

use super::acceptance::AcceptanceRates;
use super::draft_budget::DraftBudget;
use super::draft_model::ModelToken;
use super::model_acceptance::ModelAcceptance;
use super::suffix_index::{Match, SuffixIndex};

/// Maximum number of tokens drafted in a step. Copies gain a fifth over a maximum of 8; longer drafts gain no more.
pub(crate) const LOOK_AHEAD_MAX: usize = 16;

/// What a sequence may lose by wrong draft tokens, in tokens it could have generated in their time: so much at once, and
/// this share of what it generates. Gains may be lost again, but only up to a limit, lest a copy pay for all that follows.
const ALLOWANCE_FIRST: f32 = 1.0;
const ALLOWANCE_SHARE: f32 = 0.01;
const ALLOWANCE_MAX: f32 = 4.0;

/// Where draft tokens came from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum DraftSource {
    /// The sequence's own text: what followed the last tokens when they occurred before.
    #[default]
    Text,
    /// A constraint that leaves no choice.
    Constraint,
    /// A draft model.
    Model,
}

/// Draft tokens from the sequence's own text, and what is known of those of a draft model, if there is one.
#[derive(Debug)]
pub(crate) struct Drafter {
    index: SuffixIndex,
    /// Where the end of the text occurred before.
    found: Option<Match>,
    acceptance: AcceptanceRates,
    by_model: ModelAcceptance,
    allowance: f32,
}

impl Drafter {
    pub(crate) fn new(prompt: &[TokenId]) -> Self {
        let mut drafter = Self {
            index: SuffixIndex::default(),
            found: None,
            acceptance: AcceptanceRates::default(),
            by_model: ModelAcceptance::default(),
            allowance: ALLOWANCE_FIRST,
        };
        drafter.extend(prompt, prompt.len());
        drafter
    }

    /// Draft tokens what follows `tokens` and adds it to `draft`: as many tokens as are worth their rows in the step of
    /// `draft_budget`, at most `count_max`, and none after one of `end_tokens`.
    pub(crate) fn draft(
        &mut self,
        tokens: &[TokenId],
        end_tokens: &[TokenId],
        count_max: usize,
        draft_budget: &mut DraftBudget,
        draft: &mut Vec<TokenId>,
    ) {
        let Some(found) = self.found else { return };
        let price = draft_budget.price();
        let first = draft.len();
        let mut chance = 1.0;
        for i in 0..count_max.min(LOOK_AHEAD_MAX) {
            chance *= self.acceptance.of(found.length + i);
            if self.allowance < price || !draft_budget.add_if_worth(chance) {
                break;
            }
            self.allowance -= price;
            // A match that reaches to the end of the text goes on with the draft itself: the text goes round in circles.
            let at = found.end + i;
            let token = tokens.get(at).copied().unwrap_or_else(|| draft[first + at - tokens.len()]);
            draft.push(token);
            if end_tokens.contains(&token) {
                break;
            }
        }
    }

    /// The last draft tokens will not run after all.
    pub(crate) fn take_back(&mut self, drafts: usize, draft_budget: &DraftBudget) {
        self.allowance += draft_budget.price() * drafts as f32;
    }

    /// Returns what a step would give with draft tokens from the text, as far as they are worth it.
    pub(crate) fn outlook(&self, count_max: usize, mut draft_budget: DraftBudget) -> DraftBudget {
        let Some(found) = self.found else { return draft_budget };
        let mut chance = 1.0;
        for i in 0..count_max.min(LOOK_AHEAD_MAX) {
            chance *= self.acceptance.of(found.length + i);
            if !draft_budget.add_if_worth(chance) {
                break;
            }
        }
        draft_budget
    }

    /// Returns the chance that the next token of a draft model is right, whatever it is.
    pub(crate) fn model_rate(&self) -> f32 {
        self.by_model.rate()
    }

    /// Returns the chance that a token of a draft model is right of which it is so sure.
    pub(crate) fn model_chance(&self, confidence: f32) -> f32 {
        self.by_model.chance(confidence)
    }

    pub(crate) fn can_afford(&self, price: f32) -> bool {
        self.allowance >= price
    }

    /// Pays for draft tokens of a draft model.
    pub(crate) fn spend(&mut self, price: f32) {
        self.allowance -= price;
    }

    /// A step has shown that `accepted` of `drafted` draft tokens were right, the first of `model_draft` if they came from a
    /// draft model, and so generated the last `generated` of `tokens`.
    pub(crate) fn verified(
        &mut self,
        source: DraftSource,
        model_draft: &[ModelToken],
        (drafted, accepted): (usize, usize),
        tokens: &[TokenId],
        generated: usize,
    ) {
        // Forced tokens say nothing about how predictable the text is.
        let (drafted, accepted) = if source == DraftSource::Constraint { (0, 0) } else { (drafted, accepted) };
        if source == DraftSource::Model {
            self.by_model.observe(model_draft, drafted, accepted);
        } else {
            self.acceptance.observe(self.found.map_or(0, |found| found.length), drafted, accepted);
        }
        let earned = accepted as f32 + ALLOWANCE_SHARE * generated as f32;
        self.allowance = (self.allowance + earned).min(ALLOWANCE_MAX);
        self.extend(tokens, generated);
    }

    /// Takes in the last `count` of `tokens`.
    fn extend(&mut self, tokens: &[TokenId], count: usize) {
        for end in tokens.len() - count + 1..=tokens.len() {
            self.found = self.index.push(&tokens[..end]);
        }
    }
}

#[cfg(test)]
mod tests;
