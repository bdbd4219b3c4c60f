//! Which tokens run in the next step.

use std::collections::VecDeque;
use std::ops::Range;

use ruvllm_kv::PageTable;

use crate::SequenceId;
use crate::request::Request;
use crate::sampler::Sampler;

/// A sequence that holds pages.
#[derive(Debug)]
pub(crate) struct Running {
    pub id: SequenceId,
    /// Prompt and generated tokens.
    pub tokens: Vec<u32>,
    /// How many of them have keys and values in the pages.
    pub computed: usize,
    /// Where the sequence ends at the latest.
    pub length_max: usize,
    pub end_tokens: Vec<u32>,
    pub pages: PageTable,
    pub sampler: Sampler,
}

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
    /// Whether its last row gives the next token.
    pub samples: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Schedule {
    pub running: Vec<Running>,
    pub waiting: VecDeque<Waiting>,
}

impl Schedule {
    /// Plans a step of at most `rows_max` rows: one row for each sequence that is generating, so that none stalls,
    /// and what is left for prompts, in the order of their arrival.
    pub(crate) fn plan(&self, rows_max: usize) -> Vec<Slice> {
        let mut left = rows_max;
        let mut slices = Vec::new();
        let generating = |sequence: &&(usize, &Running)| sequence.1.tokens.len() - sequence.1.computed == 1;
        let all: Vec<(usize, &Running)> = self.running.iter().enumerate().collect();
        let prompts = all.iter().filter(|sequence| !generating(sequence));
        for (index, sequence) in all.iter().filter(generating).chain(prompts) {
            let count = (sequence.tokens.len() - sequence.computed).min(left);
            if count == 0 {
                break;
            }
            left -= count;
            let tokens = sequence.computed..sequence.computed + count;
            slices.push(Slice { running: *index, samples: tokens.end == sequence.tokens.len(), tokens });
        }
        slices
    }
}
