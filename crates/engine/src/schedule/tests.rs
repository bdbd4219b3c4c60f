use std::time::Duration;

use ruvllm_kv::Namespace;

use super::*;
use crate::{PrefixReport, Request, SequenceId, Speculation, Tenant};

/// A sequence whose text repeats itself, with `pending` tokens to compute.
fn repeating(id: u64, length: usize, pending: usize, speculation: Speculation) -> Sequence {
    let prompt: Vec<u32> = (0..length as u32).map(|i| i % 5).collect();
    let request = Request { speculation, ..Request::new(prompt) };
    let mut sequence = Sequence::new(SequenceId(id), request, Namespace::of(&[]).into(), length + 100);
    sequence.start(PrefixReport::default(), None);
    sequence.computed = length - pending;
    sequence
}

fn limits(rows_max: usize, row_cost: f32) -> StepLimits {
    StepLimits {
        now: Duration::ZERO,
        rows_max,
        logit_rows_max: rows_max,
        slowdown_max: 2.0,
        row_cost,
        drafts_stay_in_page: false,
        drafts_max: usize::MAX,
    }
}

/// The plan of a step, where prompts may delay others as much as they like.
fn plan(running: Vec<Sequence>, rows_max: usize, row_cost: f32) -> Plan {
    let mut schedule = Schedule { running, ..Schedule::default() };
    schedule.pacer.observe(1, 0, Duration::from_secs(1));
    schedule.pacer.observe(1, 1, Duration::from_secs(2));
    plan_of(&mut schedule, StepLimits { slowdown_max: 1e6, ..limits(rows_max, row_cost) })
}

fn plan_of(schedule: &mut Schedule, limits: StepLimits) -> Plan {
    let mut plan = Plan::default();
    schedule.plan(limits, &mut plan);
    let rows: usize = plan.slices.iter().map(|slice| slice.tokens.len() + slice.drafts.len()).sum();
    assert!(rows <= limits.rows_max);
    plan
}

fn generating(count: u64) -> Vec<Sequence> {
    (0..count).map(|id| repeating(id, 30, 1, Speculation::On)).collect()
}

#[test]
fn every_generating_sequence_has_its_row_before_prompts_and_drafts() {
    let mut running = vec![repeating(0, 40, 40, Speculation::On)];
    running.extend(generating(3));
    let planned = plan(running, 4, 0.05);
    assert_eq!(planned.slices.iter().map(|slice| slice.running).collect::<Vec<_>>(), [1, 2, 3, 0]);
    assert_eq!(planned.slices[3].tokens, 0..1);
    assert!(planned.drafts.is_empty(), "there is no row left");
}

#[test]
fn prompts_have_their_rows_before_drafts() {
    let with_prompt = |prompt: usize, rows_max: usize| {
        let mut running = generating(1);
        running.push(repeating(9, prompt, prompt, Speculation::On));
        let planned = plan(running, rows_max, 0.1);
        assert_eq!(planned.decode_rows(), None);
        (planned.slices[1].tokens.len(), planned.drafts.len())
    };
    assert_eq!(with_prompt(200, 64), (63, 0));
    assert_eq!(with_prompt(100, 128), (100, 0), "a draft is less sure than a prompt's row");
    assert!(with_prompt(2, 128).1 > 0, "a short prompt leaves time for draft tokens");
}

#[test]
fn a_wide_batch_leaves_less_to_drafts() {
    let drafts = |count: u64| plan(generating(count), 128, 0.1).drafts.len();
    assert!(drafts(1) >= 5);
    assert!(drafts(4) < 4 * drafts(1), "{} for four, {} for one", drafts(4), drafts(1));
    assert_eq!(drafts(64), 0);
    assert_eq!(plan(Vec::new(), 128, 0.1).decode_rows(), None);
    assert_eq!(plan(generating(1), 128, 0.1).decode_rows(), Some(1 + drafts(1)));
}

#[test]
fn drafts_stay_within_the_rows_and_the_sequence() {
    assert_eq!(plan(generating(1), 3, 0.02).drafts.len(), 2);
    let mut near_end = generating(1);
    near_end[0].length_max = 33;
    assert_eq!(plan(near_end, 128, 0.02).drafts, [0, 1], "the token behind them is the last");
    let off = vec![repeating(0, 30, 1, Speculation::Off)];
    assert!(plan(off, 128, 0.02).drafts.is_empty());
}

#[test]
fn drafts_end_with_the_page_where_something_happens_there() {
    let mut schedule = Schedule { running: vec![repeating(0, 28, 1, Speculation::On)], ..Schedule::default() };
    assert!(plan_of(&mut schedule, limits(128, 0.02)).drafts.len() > 4);
    let planned = plan_of(&mut schedule, StepLimits { drafts_stay_in_page: true, ..limits(128, 0.02) });
    assert_eq!((planned.slices[0].tokens.clone(), planned.drafts.len()), (27..28, 4));
}

#[test]
fn prompts_take_what_those_that_generate_can_bear() {
    let mut schedule = Schedule { running: generating(2), ..Schedule::default() };
    schedule.running.push(repeating(9, 8000, 8000, Speculation::Off));
    // 5 ms a step, and half a millisecond for each row of a prompt.
    schedule.pacer.observe(2, 0, Duration::from_millis(5));
    schedule.pacer.observe(2, 10, Duration::from_millis(10));
    let planned = plan_of(&mut schedule, limits(512, 0.1));
    assert_eq!((planned.generating(), planned.prompt_rows(), planned.drafts.len()), (2, 16, 0));
    schedule.running.drain(..2);
    assert_eq!(plan_of(&mut schedule, limits(512, 0.1)).prompt_rows(), 512, "alone it may have all");
}

#[test]
fn priority_then_fairness_then_arrival_decide_who_starts() {
    let mut schedule = Schedule::default();
    let mut add = |id: u64, tenant: &str, priority: i8| {
        let mut sequence = repeating(id, 20, 20, Speculation::Off);
        (sequence.tenant, sequence.priority) = (Tenant::new(tenant), priority);
        schedule.enqueue(sequence);
    };
    add(0, "greedy", 0);
    add(1, "greedy", 0);
    add(2, "modest", 0);
    add(3, "modest", 0);
    add(4, "greedy", 1);
    let order = |schedule: &mut Schedule| {
        schedule.sort_waiting();
        schedule.waiting.iter().map(|sequence| sequence.id.0).collect::<Vec<_>>()
    };
    assert_eq!(order(&mut schedule), [4, 0, 1, 2, 3]);
    schedule.shares.serve(&Tenant::new("greedy"), 100, 0);
    assert_eq!(order(&mut schedule), [4, 2, 3, 0, 1]);
    schedule.running = std::mem::take(&mut schedule.waiting);
    let paused = schedule.preemption_victim().map(|index| schedule.running[index].id.0);
    assert_eq!(paused, Some(3), "the last of those with the lowest priority");
}

#[test]
fn prompts_come_in_small_portions_while_several_tenants_do() {
    let prompt = |id, tenant: &str| {
        let mut sequence = repeating(id, 4000, 4000, Speculation::Off);
        sequence.tenant = Tenant::new(tenant);
        sequence
    };
    let mut schedule = Schedule { running: vec![prompt(0, "one")], ..Schedule::default() };
    schedule.pacer.observe(0, 128, Duration::from_millis(256));
    schedule.enqueue(prompt(1, "one"));
    assert_eq!(plan_of(&mut schedule, limits(128, 0.05)).prompt_rows(), 128, "nobody else is there");
    let mut other = prompt(2, "other");
    other.submitted = Duration::from_secs(7);
    schedule.enqueue(other);
    let at = |seconds| StepLimits { now: Duration::from_secs(seconds), ..limits(128, 0.05) };
    // A row takes two milliseconds, so this is the least.
    assert_eq!(plan_of(&mut schedule, at(8)).prompt_rows(), 32);
    schedule.pacer = StepPacer::default();
    schedule.pacer.observe(0, 128, Duration::from_millis(64));
    assert_eq!(plan_of(&mut schedule, at(8)).prompt_rows(), 50);
    assert_eq!(plan_of(&mut schedule, at(60)).prompt_rows(), 128, "that was long ago");
}

#[test]
fn a_tenant_with_all_places_gives_one_to_another_that_has_none() {
    let of = |id, tenant: &str| {
        let mut sequence = repeating(id, 30, 1, Speculation::Off);
        sequence.tenant = Tenant::new(tenant);
        sequence
    };
    let running = vec![of(0, "a"), of(1, "a"), of(2, "b"), of(3, "a")];
    let mut schedule = Schedule { running, ..Schedule::default() };
    assert_eq!(schedule.victim_for_waiting_tenant(), None, "nobody waits");
    schedule.waiting = vec![of(9, "c")];
    assert_eq!(schedule.victim_for_waiting_tenant(), Some(3), "the last of the one with the most");
    schedule.waiting = vec![of(9, "b")];
    assert_eq!(schedule.victim_for_waiting_tenant(), None, "it has a place");
    schedule.waiting = vec![of(9, "c")];
    schedule.running.iter_mut().for_each(|running| running.priority = 1);
    assert_eq!(schedule.victim_for_waiting_tenant(), None, "who is more important does not give way");
    schedule.running = vec![of(0, "a"), of(1, "b")];
    assert_eq!(schedule.victim_for_waiting_tenant(), None, "nobody has more than one");
}

#[test]
fn a_step_that_gives_a_tenant_its_first_token_is_not_made_longer_by_others() {
    let of = |id, tenant: &str, length, pending| {
        let mut sequence = repeating(id, length, pending, Speculation::Off);
        sequence.tenant = Tenant::new(tenant);
        sequence
    };
    let mut schedule = Schedule { running: vec![of(0, "greedy", 4000, 4000)], ..Schedule::default() };
    schedule.shares.serve(&Tenant::new("greedy"), 1000, 0);
    // Ten rows in the time of a shared step.
    schedule.pacer.observe(0, 100, Duration::from_millis(250));
    schedule.enqueue(of(1, "modest", 20, 20));
    schedule.running.append(&mut schedule.waiting);
    let rows = |schedule: &mut Schedule| -> Vec<_> {
        let planned = plan_of(schedule, limits(512, 0.05));
        planned.slices.iter().map(|slice| (slice.running, slice.tokens.len())).collect()
    };
    assert_eq!(rows(&mut schedule), [(1, 20)]);

    // Where others generate and were delayed too much already, it has its rows all the same.
    schedule.running.push(of(2, "greedy", 30, 1));
    schedule.pacer.observe(1, 0, Duration::from_millis(5));
    schedule.pacer.prompt_rows(2.0);
    schedule.pacer.observe(1, 100, Duration::from_millis(100));
    assert_eq!(schedule.pacer.prompt_rows(2.0), 0);
    assert_eq!(rows(&mut schedule), [(2, 1), (1, 20)]);
    // But not if it generates already.
    schedule.running.push(of(3, "modest", 30, 1));
    assert_eq!(rows(&mut schedule), [(2, 1), (3, 1)]);
}

/// How many milliseconds a prompt of 3,000 tokens takes while others ask for one token after each of many short prompts, in turns,
/// and some generate all the time.
fn long_prompt_ms(askers: u64, generators: u64) -> f64 {
    let of = |id, tenant: &str, length, pending| {
        let mut sequence = repeating(id, length, pending, Speculation::Off);
        sequence.tenant = Tenant::new(tenant);
        sequence
    };
    let mut schedule = Schedule::default();
    let mut next_id = 1000;
    let mut short = |tenant: &Tenant| {
        next_id += 1;
        of(next_id, tenant.name(), 40, 40)
    };
    schedule.enqueue(of(0, "long", 3000, 3000));
    (0..generators).for_each(|id| schedule.enqueue(of(1 + id, "writer", 30, 1)));
    (0..askers).for_each(|id| schedule.enqueue(short(&Tenant::new(&format!("asker {id}")))));
    let mut now = 0.0;
    for _ in 0..20_000 {
        schedule.sort_waiting();
        schedule.running.append(&mut schedule.waiting);
        let limits = StepLimits { now: Duration::from_secs_f64(now / 1e3), ..limits(128, 0.1) };
        let planned = plan_of(&mut schedule, limits);
        let took = 4.0 + 0.2 * planned.generating() as f64 + 0.6 * planned.prompt_rows() as f64;
        now += took;
        if !planned.exceeds_pace {
            schedule.pacer.observe(planned.generating(), planned.prompt_rows(), Duration::from_secs_f64(took / 1e3));
        }
        let mut answered = Vec::new();
        for slice in &planned.slices {
            let sequence = &mut schedule.running[slice.running];
            // Those that generate go on for ever.
            if sequence.tenant.name() != "writer" {
                sequence.computed += slice.tokens.len();
            }
            schedule.shares.serve(&sequence.tenant, slice.tokens.len(), usize::from(slice.samples));
            if slice.samples && sequence.tenant.name() == "long" {
                return now;
            }
            if slice.samples && sequence.tenant.name() != "writer" {
                answered.push(sequence.id);
            }
        }
        let (done, rest) = schedule.running.drain(..).partition(|sequence| answered.contains(&sequence.id));
        schedule.running = rest;
        let done: Vec<Sequence> = done;
        for sequence in done {
            let mut again = short(&sequence.tenant);
            again.submitted = Duration::from_secs_f64(now / 1e3);
            schedule.enqueue(again);
        }
    }
    f64::INFINITY
}

#[test]
fn many_short_prompts_of_others_do_not_starve_a_long_one() {
    let alone = long_prompt_ms(0, 0);
    for (askers, generators) in [(1, 0), (3, 0), (1, 2), (3, 2), (6, 4)] {
        let slower = long_prompt_ms(askers, generators) / alone;
        // Its share of the tenants' time, and again as much as small steps and those that generate cost.
        let fair = (1 + askers + u64::from(generators > 0)) as f64;
        assert!(slower < 3.0 * fair, "{slower:.1} times as long beside {askers} askers and {generators} that generate");
    }
}
