//! The draft tokens of one sequence: what to draft, how many tokens, and when to leave it.

use ruvllm_runner::TokenId;

use super::acceptance::AcceptanceRates;
use super::draft_budget::DraftBudget;
use super::suffix_index::{Match, SuffixIndex};

/// Maximum number of tokens drafted in a step. Copies gain a fifth over a maximum of 8; longer drafts gain no more.
pub(crate) const LOOK_AHEAD_MAX: usize = 16;

/// What a sequence may lose by wrong draft tokens, in tokens it could have generated in their time: so much at once, and
/// this share of what it generates. Gains may be lost again, but only up to a limit, lest a copy pay for all that follows.
const ALLOWANCE_FIRST: f32 = 1.0;
const ALLOWANCE_SHARE: f32 = 0.01;
const ALLOWANCE_MAX: f32 = 4.0;

/// Draft tokens from the sequence's own text: what followed the last tokens when they occurred before.
///
/// A draft model would be another source beside the index; acceptance and allowance would hold for it as well.
#[derive(Debug)]
pub(crate) struct Drafter {
    index: SuffixIndex,
    /// Where the end of the text occurred before.
    found: Option<Match>,
    acceptance: AcceptanceRates,
    allowance: f32,
}

impl Drafter {
    pub(crate) fn new(prompt: &[TokenId]) -> Self {
        let mut drafter = Self {
            index: SuffixIndex::default(),
            found: None,
            acceptance: AcceptanceRates::default(),
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

    /// A step has shown that `accepted` of `drafted` draft tokens were right, and so generated the last `generated` of
    /// `tokens`.
    pub(crate) fn verified(&mut self, drafted: usize, accepted: usize, tokens: &[TokenId], generated: usize) {
        self.acceptance.observe(self.found.map_or(0, |found| found.length), drafted, accepted);
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
