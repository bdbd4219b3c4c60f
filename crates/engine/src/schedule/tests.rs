use ruvllm_kv::PageTable;

use super::*;
use crate::{Sampling, Speculation};

/// A sequence whose text repeats itself, with `pending` tokens to compute.
fn repeating(id: u64, length: usize, pending: usize, speculation: Speculation) -> Running {
    let prompt: Vec<u32> = (0..length as u32).map(|i| i % 5).collect();
    let request =
        Request { prompt, sampling: Sampling::greedy(), max_tokens: None, end_tokens: Vec::new(), speculation };
    let mut running = Running::new(SequenceId(id), request, length + 100, PageTable::default());
    running.computed = length - pending;
    running
}

fn plan(running: Vec<Running>, rows_max: usize, row_cost: f32) -> Plan {
    let mut schedule = Schedule { running, waiting: VecDeque::new() };
    let mut plan = Plan::default();
    schedule.plan(rows_max, row_cost, &mut plan);
    let rows: usize = plan.slices.iter().map(|slice| slice.tokens.len() + slice.drafts.len()).sum();
    assert!(rows <= rows_max);
    plan
}

fn generating(count: u64) -> Vec<Running> {
    (0..count).map(|id| repeating(id, 30, 1, Speculation::On)).collect()
}

#[test]
fn every_generating_sequence_has_its_row_before_prompts_and_guesses() {
    let mut running = vec![repeating(0, 40, 40, Speculation::On)];
    running.extend(generating(3));
    let planned = plan(running, 4, 0.05);
    assert_eq!(planned.slices.iter().map(|slice| slice.running).collect::<Vec<_>>(), [1, 2, 3, 0]);
    assert_eq!(planned.slices[3].tokens, 0..1);
    assert!(planned.drafts.is_empty(), "there is no row left");
}

#[test]
fn prompts_have_their_rows_before_guesses() {
    let with_prompt = |prompt: usize, rows_max: usize| {
        let mut running = generating(1);
        running.push(repeating(9, prompt, prompt, Speculation::On));
        let planned = plan(running, rows_max, 0.1);
        assert_eq!(planned.decode_rows(), None);
        (planned.slices[1].tokens.len(), planned.drafts.len())
    };
    assert_eq!(with_prompt(200, 64), (63, 0));
    assert_eq!(with_prompt(100, 128), (100, 0), "a guess is less sure than a prompt's row");
    assert!(with_prompt(2, 128).1 > 0, "a short prompt leaves time for guesses");
}

#[test]
fn a_wide_batch_leaves_less_to_guesses() {
    let drafts = |count: u64| plan(generating(count), 128, 0.1).drafts.len();
    assert!(drafts(1) >= 5);
    assert!(drafts(4) < 4 * drafts(1), "{} for four, {} for one", drafts(4), drafts(1));
    assert_eq!(drafts(64), 0);
    assert_eq!(plan(Vec::new(), 128, 0.1).decode_rows(), None);
    assert_eq!(plan(generating(1), 128, 0.1).decode_rows(), Some(1 + drafts(1)));
}

#[test]
fn guesses_stay_within_the_rows_and_the_sequence() {
    assert_eq!(plan(generating(1), 3, 0.02).drafts.len(), 2);
    let mut near_end = generating(1);
    near_end[0].length_max = 33;
    assert_eq!(plan(near_end, 128, 0.02).drafts, [0, 1], "the token behind them is the last");
    let off = vec![repeating(0, 30, 1, Speculation::Off)];
    assert!(plan(off, 128, 0.02).drafts.is_empty());
}
