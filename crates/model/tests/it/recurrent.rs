//! Recurrent states: taken back with draft tokens that were wrong, copied, saved and restored, without changing a bit of
//! what follows.

use std::path::Path;
use std::sync::Arc;

use ruvllm_kernels::{KernelSet, Pool};
use ruvllm_model::formats::gguf::Gguf;
use ruvllm_model::{CpuRunner, Model};
use ruvllm_runner::{
    Batch, BatchError, PAGE_TOKENS, PageBytes, PageFormat, PageLocation, Rotation, Runner, RunnerError, StateSlot,
};

const ARCHITECTURES: [&str; 4] = ["lfm2", "lfm2moe", "qwen35", "qwen35moe"];
const TOKENS: usize = 70;
const PAGES: usize = 8;

fn runner(architecture: &str, set: KernelSet) -> CpuRunner {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/architectures");
    let gguf = Gguf::open(root.join(architecture).join("model.gguf")).expect("a sound file");
    let model = Model::load(&gguf, 128, &mut |_| {}).expect("a sound model");
    let mut runner = CpuRunner::new(Arc::new(model), Pool::new(2, set), 64);
    let page_bytes = runner.limits().kv_shape.page_bytes(PageFormat::F16);
    runner.reserve_pages(2 * PAGES * page_bytes, Rotation::None);
    runner.reserve_states(4);
    runner
}

/// One of two sequences.
#[derive(Clone, Copy)]
struct Sequence {
    slot: StateSlot,
    first_page: usize,
}

const ONE: Sequence = Sequence { slot: StateSlot(0), first_page: 0 };
const OTHER: Sequence = Sequence { slot: StateSlot(2), first_page: PAGES };

fn push(batch: &mut Batch, runner: &CpuRunner, sequence: Sequence, start: usize, tokens: &[u32], drafts: usize) {
    let page_bytes = runner.limits().kv_shape.page_bytes(PageFormat::F16);
    let pages = (0..PAGES).map(|page| sequence.first_page + page);
    let pages = pages.map(|page| PageLocation { offset: page * page_bytes, format: PageFormat::F16 });
    batch.push(start, tokens.iter().copied(), tokens.len(), pages, None);
    batch.set_state(sequence.slot, drafts);
}

/// Runs rows of a sequence and returns the logits of each.
fn run(runner: &mut CpuRunner, sequence: Sequence, start: usize, tokens: &[u32], drafts: usize) -> Vec<Vec<f32>> {
    let mut batch = Batch::default();
    push(&mut batch, runner, sequence, start, tokens, drafts);
    runner.submit(&batch).expect("a sound batch");
    runner.wait().expect("it runs");
    (0..tokens.len()).map(|i| runner.logits(i).to_vec()).collect()
}

fn text(seed: usize) -> Vec<u32> {
    (0..TOKENS).map(|i| ((i * 37 + seed * 11 + i * i / 3) % 256) as u32).collect()
}

#[test]
fn draft_tokens_that_were_wrong_leave_no_trace() {
    for architecture in ARCHITECTURES {
        for set in KernelSet::available() {
            let mut runner = runner(architecture, set);
            let tokens = text(1);
            let alone = run(&mut runner, ONE, 0, &tokens[..64], 0);
            // Rows of right and wrong draft tokens behind the token that is certain, as many of each as there can be.
            let mut at = 0;
            for (step, right) in [0, 3, 8, 1, 0, 5, 8, 2, 7, 4].into_iter().cycle().enumerate() {
                let drafts_max = runner.limits().drafts_max;
                let rows = (1 + drafts_max).min(64 - at);
                let right = right.min(rows - 1);
                let mut drafted = tokens[at..at + rows].to_vec();
                drafted[1 + right..].iter_mut().for_each(|token| *token = (*token + 1 + step as u32) % 256);
                let logits = run(&mut runner, ONE, at, &drafted, rows - 1);
                for (i, logits) in logits[..=right].iter().enumerate() {
                    assert!(*logits == alone[at + i], "{architecture} on {}, token {}", set.name(), at + i);
                }
                at += 1 + right;
                if at >= 60 {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_state_can_be_copied_saved_and_gone_on_from() {
    for architecture in ARCHITECTURES {
        let mut runner = runner(architecture, KernelSet::best());
        let tokens = text(2);
        let alone = run(&mut runner, ONE, 0, &tokens[..64], 0);
        run(&mut runner, ONE, 0, &tokens[..PAGE_TOKENS - 3], 0);
        // The last of the page are draft tokens that turn out right; those behind it do not.
        let mut drafted = tokens[PAGE_TOKENS - 3..][..6].to_vec();
        drafted[3..].fill(9);
        run(&mut runner, ONE, PAGE_TOKENS - 3, &drafted, 5);
        runner.copy_state(ONE.slot, StateSlot(1), PAGE_TOKENS);
        let saved = runner.read_state(StateSlot(1), PAGE_TOKENS).into_owned();
        // The sequence itself goes on, and comes back to the copy.
        run(&mut runner, ONE, PAGE_TOKENS, &[7; 20], 0);
        runner.copy_state(StateSlot(1), ONE.slot, PAGE_TOKENS);
        assert_eq!(run(&mut runner, ONE, PAGE_TOKENS, &tokens[PAGE_TOKENS..64], 0)[..], alone[PAGE_TOKENS..]);
        // And to what was saved.
        assert!(runner.write_state(ONE.slot, PAGE_TOKENS, &saved));
        assert_eq!(run(&mut runner, ONE, PAGE_TOKENS, &tokens[PAGE_TOKENS..64], 0)[..], alone[PAGE_TOKENS..]);
        assert!(!runner.write_state(ONE.slot, PAGE_TOKENS, &saved[1..]), "a state that was cut short");
        assert_eq!(saved.len(), runner.limits().state_bytes);
    }
}

#[test]
fn sequences_do_not_see_each_other() {
    for architecture in ARCHITECTURES {
        let mut runner = runner(architecture, KernelSet::best());
        let (one, other) = (text(3), text(4));
        let alone = [run(&mut runner, ONE, 0, &one[..40], 0), run(&mut runner, OTHER, 0, &other[..40], 0)];
        for start in [0, 10, 20, 30] {
            let mut batch = Batch::default();
            push(&mut batch, &runner, ONE, start, &one[start..start + 10], 0);
            push(&mut batch, &runner, OTHER, start, &other[start..start + 10], 0);
            runner.submit(&batch).expect("a sound batch");
            for i in 0..10 {
                assert!(runner.logits(i) == alone[0][start + i], "{architecture}, token {}", start + i);
                assert!(runner.logits(10 + i) == alone[1][start + i], "{architecture}, token {}", start + i);
            }
        }
    }
}

#[test]
fn what_does_not_go_on_from_its_state_is_refused() {
    let mut runner = runner("qwen35", KernelSet::best());
    run(&mut runner, ONE, 0, &text(5)[..20], 0);
    let mut submit = |sequence: Sequence, start: usize, drafts: usize| {
        let mut batch = Batch::default();
        push(&mut batch, &runner, sequence, start, &[1; 12], drafts);
        runner.submit(&batch)
    };
    let elsewhere = |slot, start| Err(RunnerError::Batch(BatchError::StateElsewhere { slot, start }));
    assert_eq!(submit(ONE, 19, 0), elsewhere(ONE.slot, 19));
    assert_eq!(submit(ONE, 21, 0), elsewhere(ONE.slot, 21));
    assert_eq!(submit(ONE, 20, 9), elsewhere(ONE.slot, 20), "more draft tokens than can be taken back");
    assert_eq!(submit(OTHER, 20, 0), elsewhere(OTHER.slot, 20));
    let nowhere = Sequence { slot: StateSlot(4), ..ONE };
    assert_eq!(submit(nowhere, 0, 0), Err(RunnerError::Batch(BatchError::NoState)));
    assert_eq!(submit(ONE, 20, 8), Ok(()));
    let mut batch = Batch::default();
    push(&mut batch, &runner, ONE, 21, &[1], 0);
    push(&mut batch, &runner, Sequence { slot: ONE.slot, ..OTHER }, 0, &[1], 0);
    assert_eq!(runner.submit(&batch), Err(RunnerError::Batch(BatchError::StateShared(ONE.slot))));
}
