//! Which tokens run in the next step.

use std::collections::VecDeque;
use std::ops::Range;

use crate::SequenceId;
use crate::request::Request;
use crate::sequence::Running;
use crate::speculation::Outlook;

/// A sequence that waits for pages.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub id: SequenceId,
    pub request: Request,
    pub length_max: usize,
}

/// The rows of one step that belong to one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    /// Index into the running sequences.
    pub running: usize,
    /// Which of its tokens are computed.
    pub tokens: Range<usize>,
    /// Whether the last of them gives the next token.
    pub samples: bool,
    /// Which of the plan's guesses are computed behind them.
    pub drafts: Range<usize>,
}

/// The rows of one step. Kept between steps, to avoid allocating.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub slices: Vec<Slice>,
    /// Guesses of all sequences.
    pub drafts: Vec<u32>,
}

impl Plan {
    /// How many rows the step has, if none of them is of a prompt.
    pub(crate) fn decode_rows(&self) -> Option<usize> {
        let is_decode = self.slices.iter().all(|slice| slice.samples && slice.tokens.len() == 1);
        (is_decode && !self.slices.is_empty()).then_some(self.slices.len() + self.drafts.len())
    }
}

#[derive(Debug, Default)]
pub(crate) struct Schedule {
    pub running: Vec<Running>,
    pub waiting: VecDeque<Waiting>,
}

impl Schedule {
    /// Plans a step of at most `rows_max` rows: one row for each sequence that is generating, so that none stalls;
    /// what is left for prompts, in the order of their arrival; what is left then for guesses, as far as they are
    /// worth it beside the others at a `row_cost` in units of a step of one row.
    pub(crate) fn plan(&mut self, rows_max: usize, row_cost: f32, plan: &mut Plan) {
        plan.slices.clear();
        plan.drafts.clear();
        let mut left = rows_max;
        let all = || self.running.iter().enumerate();
        let generating = all().filter(|(_, sequence)| sequence.pending() == 1);
        let prompts = all().filter(|(_, sequence)| sequence.pending() > 1);
        for (index, sequence) in generating.chain(prompts) {
            let count = sequence.pending().min(left);
            if count == 0 {
                break;
            }
            left -= count;
            let tokens = sequence.computed..sequence.computed + count;
            let samples = tokens.end == sequence.tokens.len();
            plan.slices.push(Slice { running: index, tokens, samples, drafts: 0..0 });
        }
        self.add_drafts(rows_max, left, row_cost, plan);
    }

    fn add_drafts(&mut self, rows_max: usize, mut left: usize, row_cost: f32, plan: &mut Plan) {
        let mut outlook = Outlook::new(rows_max - left, row_cost);
        for slice in plan.slices.iter_mut().filter(|slice| slice.samples && slice.tokens.len() == 1) {
            let sequence = &mut self.running[slice.running];
            let count_max = sequence.drafts_max().min(left);
            let first = plan.drafts.len();
            if let Some(drafter) = &mut sequence.drafter {
                drafter.draft(&sequence.tokens, &sequence.end_tokens, count_max, &mut outlook, &mut plan.drafts);
            }
            slice.drafts = first..plan.drafts.len();
            left -= slice.drafts.len();
        }
    }
}

#[cfg(test)]
mod tests;
