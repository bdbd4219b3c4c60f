//! Random requests, cancellations, deadlines, memory pressure and damaged files, from a seed. After every step the accounts
//! must balance, and every answer must be the one that the request gets alone, with nothing cached.

mod run;
mod setting;
mod situations;
mod told;

use std::thread::{self, available_parallelism};
use std::time::Instant;

use run::{Seen, simulate};
use setting::{Device, FAKE, Setting, TINY};

#[test]
fn on_a_fake_runner_too_and_for_longer() {
    for (seed, tiers, pages) in [(11, "f16", 30), (12, "f16:32,q8:96,q4", 30), (13, "q8", 20)] {
        let seen = simulate(Setting { seed, tiers, budget_bytes: pages << 11, with_disk: false, ..FAKE });
        assert!(seen.answers > 1000 && seen.cancelled > 50 && seen.overdue > 0 && seen.refused > 0, "{seen:?}");
        assert!(seen.cached_tokens > 10_000 && seen.preemptions > 0 && seen.evicted > 1000, "{seen:?}");
        assert!(seen.failed > 50 && seen.drafts_accepted > 100 && seen.told > 1000, "{seen:?}");
    }
}

/// Answers are those without a draft model, whatever it drafts, and its pages are always those of the sequence.
#[test]
fn a_draft_model_changes_no_answer() {
    for (seed, tiers, device) in
        [(51, "f16", Device::Fake), (52, "f16:32,q8:96,q4", Device::Fake), (53, "q8", Device::FakeRecurrent)]
    {
        let seen = simulate(Setting { seed, tiers, device, with_disk: false, has_draft: true, ..FAKE });
        println!("seed {seed}: {seen:?}");
        assert!(seen.answers > 1000 && seen.cancelled > 50 && seen.failed > 50, "{seen:?}");
        assert!(seen.drafted_by_model > 50 && seen.accepted_by_model > 20, "{seen:?}");
        assert!(seen.accepted_by_model < seen.drafted_by_model, "{seen:?}");
    }
}

/// Texts that are observed have the lowest priority: they change no answer, and are the same whenever their pages were
/// needed.
#[test]
fn what_is_observed_beside_requests_disturbs_none() {
    for (seed, tiers, device) in [
        (71, "f16", Device::Fake),
        (72, "f16:32,q8:96,q4", Device::Fake),
        (73, "q8", Device::FakeRecurrent),
        (74, "f16", Device::FakeSlots),
    ] {
        let seen =
            simulate(Setting { seed, tiers, device, budget_bytes: 30 << 11, with_disk: false, observes: true, ..FAKE });
        println!("seed {seed}: {seen:?}");
        assert!(seen.answers > 1000 && seen.observed > 20 && seen.interrupted > 20, "{seen:?}");
    }
}

/// What layers with a window read is always there, though pages behind it lose their part of them.
#[test]
fn what_is_in_a_window_is_never_given_back() {
    // Pages of 64 KiB: formats do not share a slab.
    let large = Setting { device: Device::FakeWindowed, heads: 8, head_dim: 64, budget_bytes: 12 << 20, ..FAKE };
    let large = Setting { own_tokens: 140, ..large };
    for (seed, tiers, with_disk) in
        [(41, "f16", false), (42, "f16:32,q8:96,q4", false), (43, "q8", false), (44, "f16", true)]
    {
        let steps = if with_disk { 2500 } else { 10_000 };
        let seen = simulate(Setting { seed, tiers, steps, with_disk, ..large });
        println!("seed {seed}: {seen:?}");
        assert!(seen.answers > 100 && seen.cancelled > 10 && seen.evicted > 100 && seen.trimmed > 0, "{seen:?}");
        // How much of what is rare a run with a disk meets depends on how fast the disk is.
        assert!(seen.cached_tokens > 1000 && seen.failed > 5 && seen.drafts_accepted > 0, "{seen:?}");
    }
}

/// Every sequence goes on from a state of its very tokens, wherever that comes from: a snapshot in memory or on disk, behind
/// draft tokens that were right or wrong, after a pause or a failure.
#[test]
fn recurrent_states_are_always_those_of_the_tokens_before() {
    for (seed, tiers, pages, with_disk) in
        [(21, "f16", 30, false), (22, "f16:32,q8:96,q4", 30, false), (23, "q8", 20, false), (24, "f16", 30, true)]
    {
        let steps = if with_disk { 3000 } else { 20_000 };
        let device = Device::FakeRecurrent;
        let seen = simulate(Setting { device, seed, tiers, steps, budget_bytes: pages << 11, with_disk, ..FAKE });
        println!("seed {seed}: {seen:?}");
        assert!(seen.answers > 100 && seen.cancelled > 10 && seen.preemptions > 0 && seen.evicted > 100, "{seen:?}");
        assert!(seen.cached_tokens > 1000 && seen.failed > 5 && seen.drafts_accepted > 10, "{seen:?}");
        assert!(!with_disk || seen.loaded_tokens > 100, "{seen:?}");
    }
}

/// A runner that keeps everything of a sequence in its slot is never asked for any of it.
#[test]
fn a_runner_that_caches_no_prefixes_computes_every_prompt() {
    let seen =
        simulate(Setting { device: Device::FakeSlots, seed: 61, budget_bytes: 30 << 11, with_disk: false, ..FAKE });
    println!("{seen:?}");
    assert!(seen.answers > 1000 && seen.cancelled > 50 && seen.preemptions > 0 && seen.failed > 50, "{seen:?}");
    assert_eq!((seen.cached_tokens, seen.evicted, seen.drafts_accepted), (0, 0, 0), "{seen:?}");
}

/// Queue, pauses, deadlines and failures are the engine's even where the tokens are not.
#[test]
fn a_runner_that_chooses_tokens_is_asked_for_no_logits() {
    let device = Device::FakeChoosing;
    let seen = simulate(Setting { device, seed: 62, budget_bytes: 30 << 11, with_disk: false, ..FAKE });
    println!("{seen:?}");
    assert!(seen.answers > 1000 && seen.cancelled > 50 && seen.preemptions > 0 && seen.failed > 50, "{seen:?}");
    assert_eq!((seen.cached_tokens, seen.drafts_accepted), (0, 0), "{seen:?}");
}

#[test]
fn a_recurrent_model_answers_as_if_alone() {
    for (seed, architecture) in [(31, "lfm2"), (32, "qwen35")] {
        let device = Device::Recurrent(architecture);
        let seen = simulate(Setting { device, seed, steps: 1000, budget_bytes: 1 << 20, ..TINY });
        println!("{architecture}: {seen:?}");
        assert!(seen.answers > 50 && seen.cached_tokens > 500, "{seen:?}");
    }
}
/// `just simulate` runs it, on all cores.
#[test]
#[ignore = "takes minutes"]
fn ten_million_steps_break_nothing() {
    const STEPS: usize = 100_000;
    let run = |seed: u64| {
        let (tiers, pages) =
            [("f16", 30), ("f16:32,q8:96,q4", 30), ("q8", 20), ("f16:16,q8/q4", 60)][seed as usize % 4];
        let device = [Device::Fake, Device::Fake, Device::FakeRecurrent, Device::FakeWindowed][seed as usize / 4 % 4];
        simulate(Setting { device, seed, tiers, budget_bytes: pages << 11, steps: STEPS, with_disk: false, ..FAKE })
    };
    let threads = available_parallelism().map_or(1, usize::from) as u64;
    let started = Instant::now();
    let seen: Vec<Seen> = thread::scope(|scope| {
        let share =
            |first: u64| scope.spawn(move || (first..100).step_by(threads as usize).map(run).collect::<Vec<_>>());
        let shares: Vec<_> = (0..threads).map(share).collect();
        shares.into_iter().flat_map(|share| share.join().expect("nothing breaks")).collect()
    });
    let (steps, seconds) = (seen.len() * STEPS, started.elapsed().as_secs_f64());
    let alone: usize = seen.iter().map(|seen| seen.steps_alone).sum();
    println!(
        "{steps} steps and {alone} of the requests alone in {seconds:.0} s on {threads} threads: {:.0} a second, {:.0} \
         with those",
        steps as f64 / seconds,
        (steps + alone) as f64 / seconds
    );
    assert!(seen.iter().map(|seen| seen.answers).sum::<usize>() > 100_000);
}

#[test]
fn every_answer_is_the_one_that_the_request_gets_alone() {
    for (seed, tiers, pages) in [(1, "f16", 30), (2, "f16", 30), (3, "q8", 20)] {
        let seen = simulate(Setting { seed, tiers, budget_bytes: pages << 11, ..TINY });
        println!("seed {seed}: {seen:?}");
        assert!(seen.answers > 100 && seen.cancelled > 5 && seen.overdue > 0 && seen.refused > 0, "{seen:?}");
        assert!(seen.cached_tokens > 1000 && seen.loaded_tokens > 100, "{seen:?}");
        assert!(seen.preemptions > 0 && seen.evicted > 100, "{seen:?}");
    }
}

/// Wherever they come from: computed, in memory, from disk, before or after a pause, behind draft tokens.
#[test]
fn hidden_states_are_those_that_the_request_gets_alone() {
    let seen = simulate(Setting { seed: 1, keeps_states: true, ..TINY });
    assert!(seen.answers > 100 && seen.cached_tokens > 1000 && seen.loaded_tokens > 100, "{seen:?}");
    assert!(seen.preemptions > 0 && seen.evicted > 100, "{seen:?}");
}

/// Without a disk, where pages with their states take more of the budget.
#[test]
fn keeping_hidden_states_makes_no_difference_to_anything_else() {
    let plain = Setting { seed: 4, with_disk: false, ..TINY };
    let (with, without) = (simulate(Setting { keeps_states: true, ..plain }), simulate(plain));
    assert_eq!(format!("{with:?}"), format!("{without:?}"));
}

#[test]
fn without_a_disk_what_is_evicted_is_computed_again() {
    let seen = simulate(Setting { seed: 4, with_disk: false, ..TINY });
    assert!(seen.answers > 80 && seen.preemptions > 0 && seen.evicted > 100 && seen.loaded_tokens == 0, "{seen:?}");
}

/// Pages of 64 KiB, three slabs: the accounts must balance while pages change their format and place.
#[test]
fn tiers_keep_their_accounts() {
    let large = Setting { heads: 8, head_dim: 64, budget_bytes: 6 << 20, ..TINY };
    for (seed, tiers) in [(5, "f16:32,q8:96,q4"), (6, "f16:48,q8/q4")] {
        let seen = simulate(Setting { seed, tiers, ..large });
        println!("seed {seed}: {seen:?}");
        assert!(seen.answers > 100 && seen.evicted > 20 && seen.cooled > 100, "{seen:?}");
        assert!(seen.cached_tokens > 1000 && seen.loaded_tokens > 100, "{seen:?}");
    }
}
