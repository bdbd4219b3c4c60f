//! Several tokens in one step: what may come next is drafted from the sequence's own text, the draft tokens run as further
//! rows of the step, and the sampler keeps those that it would have chosen itself.
//!
//! Nothing here decides what a sequence says, only how many rows a step takes. A draft is kept when the sequence's own
//! sampler, with its own random numbers, penalties and history, draws just that token from the row before it. So a
//! sequence gives the same tokens with and without speculation, drawn or not: not merely tokens of the same
//! distribution, as rejection sampling would.

mod acceptance;
mod draft_budget;
mod draft_model;
mod drafter;
mod model_acceptance;
mod row_cost;
mod suffix_index;

pub(crate) use draft_budget::DraftBudget;
pub use draft_model::DraftOptions;
pub(crate) use draft_model::{DraftModel, ModelToken, Wanted};
pub(crate) use drafter::{DraftSource, Drafter, LOOK_AHEAD_MAX};
pub(crate) use row_cost::RowCost;

use crate::Sampling;

/// Draws at higher temperatures follow the text too rarely for draft tokens to pay.
const AUTO_TEMPERATURE: f32 = 0.5;

/// That a token comes which a constraint leaves no choice about. It may still be written in other tokens.
pub(crate) const FORCED_CHANCE: f32 = 0.97;

/// Whether a sequence draft tokens its next tokens. The tokens are the same in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculation {
    /// Where it usually wins: greedy, or a temperature below 0.5.
    #[default]
    Auto,
    /// At any temperature. As with `Auto`, only as long as it wins.
    On,
    Off,
}

impl Speculation {
    pub(crate) fn applies(self, sampling: &Sampling) -> bool {
        match self {
            Self::Auto => sampling.temperature < AUTO_TEMPERATURE,
            Self::On => true,
            Self::Off => false,
        }
    }
}

/// What a sequence has taken since its prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Steps that gave it a token or several.
    pub steps: usize,
    /// Tokens drafted, each of them a row of a step.
    pub drafted: usize,
    /// Draft tokens that were right: tokens that did not need a step of their own.
    pub accepted: usize,
    /// Those of the two that came from a draft model.
    pub drafted_by_model: usize,
    pub accepted_by_model: usize,
}
