//! Lets a draft model draft before a step.

use ruvllm_runner::Runner;

use super::Core;
use crate::sequence::Sequence;
use crate::speculation::{DraftBudget, DraftModel, DraftOptions, ModelToken, Wanted};

impl Core {
    /// Adds a smaller model that drafts tokens, where that is faster. The tokens of sequences stay the same. Panics if it has
    /// recurrent layers.
    pub fn set_draft_model(&mut self, runner: Box<dyn Runner>, options: &DraftOptions) {
        let vocabulary = self.runner.limits().vocabulary;
        self.draft_model = Some(DraftModel::new(runner, options, vocabulary));
    }

    /// Returns why the draft model is not used any more, once. Answers do without it.
    pub fn take_draft_failure(&mut self) -> Option<String> {
        self.draft_failure.take()
    }

    /// Asks the draft model, if there is one, for the sequences that generate, where that is worth its time.
    pub(super) fn draft_ahead(&mut self) {
        let limits = self.step_limits();
        let Some(model) = &mut self.draft_model else { return };
        let count = self.schedule.running().len();
        // Beside prompts and many others, no draft token pays.
        let is_small = (1..=model.sequences_max()).contains(&count) && count < limits.rows_max;
        if !is_small || !self.schedule.running().iter().all(Sequence::is_generating) {
            return;
        }
        let is_forced: Vec<bool> =
            self.schedule.running_mut().iter_mut().map(|sequence| !sequence.forced().is_empty()).collect();
        let budget = DraftBudget::new(count, limits.row_cost);
        let mut indices = Vec::new();
        let mut wanted = Vec::new();
        for (index, sequence) in self.schedule.running().iter().enumerate().filter(|(index, _)| !is_forced[*index]) {
            let Some(drafter) = &sequence.drafter else { continue };
            let one =
                Wanted::new(sequence, drafter, limits.drafts_of(sequence, limits.logit_rows_max.saturating_sub(count)));
            if model.is_worth(&one, budget) {
                indices.push(index);
                wanted.push(one);
            }
        }
        if wanted.is_empty() {
            return;
        }
        match model.draft(&mut wanted, budget) {
            Ok(price) => {
                let drafts: Vec<Vec<ModelToken>> = wanted.into_iter().map(|one| one.draft).collect();
                for (index, draft) in indices.into_iter().zip(drafts) {
                    self.schedule.running_mut()[index].set_model_draft(draft, price);
                }
            }
            Err(error) => {
                self.draft_failure = Some(error.to_string());
                self.draft_model = None;
            }
        }
    }
}
