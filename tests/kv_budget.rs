//! The KV budget is a promise. In a file of its own: the memory of the process is looked at.

mod support;

use std::collections::HashMap;
use std::fs;

use ruvllm_engine::{Core, Event, PrefixUse, Request};
use ruvllm_runtime::{Engine, Prompt};
use support::smollm2;

const SESSIONS: usize = 400;
/// Sessions that run together.
const AT_ONCE: usize = 8;
/// Beginnings that sessions share, so that opening so many takes seconds.
const BEGINNINGS: usize = 4;
/// Ends inside a page: its last tokens and the first of a session's own fill one that is the session's alone.
const BEGINNING_TOKENS: usize = 184;
const OWN_TOKENS_MIN: usize = 8;
/// The tokens of a session that fill pages.
const PAGED_TOKENS: usize = 192;
/// A fifth of what all sessions would take in memory.
const BUDGET: usize = 32 << 20;
/// Buffers of a step, the tree, what the allocator keeps.
const SLACK: usize = 24 << 20;
/// One of so many sessions is compared with a computation without any cache.
const SAMPLED: usize = 50;

fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("there is a line");
    let kib: usize = line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number");
    kib << 10
}

/// Runs requests together and gives the events of each. After every step the books are within the budget; `resident_max`
/// is raised to what the process takes.
fn run(core: &mut Core, requests: impl Iterator<Item = Request>, resident_max: &mut usize) -> Vec<Vec<Event>> {
    let ids: Vec<_> = requests.map(|request| core.submit(request).expect("a sound request")).collect();
    let mut events: HashMap<_, Vec<Event>> = HashMap::new();
    while !core.is_idle() {
        for event in core.step() {
            let event = event.expect("sound logits");
            events.entry(event.sequence).or_default().push(event);
        }
        assert!(core.cache_stats().used_bytes <= BUDGET);
        *resident_max = resident_bytes().max(*resident_max);
    }
    ids.iter().map(|id| events.remove(id).expect("every request is answered")).collect()
}

#[test]
fn four_hundred_sessions_stay_within_the_budget_and_all_of_them_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = support::disk(folder.path());
    let builder = Engine::builder(smollm2()).context(Some(256)).sequences(AT_ONCE).disk(Some(disk));
    let mut engine = builder.kv_budget_bytes(Some(BUDGET)).build().expect("the default model loads");
    let essays = include_str!("data/essays.txt");
    let tokens = engine.encode(&Prompt::Text(essays.to_owned())).expect("plain text");
    let session = |number: usize| {
        let beginning = &tokens[number % BEGINNINGS * BEGINNING_TOKENS..][..BEGINNING_TOKENS];
        let own = &tokens[BEGINNINGS * BEGINNING_TOKENS + number * 2..][..OWN_TOKENS_MIN + number % 5];
        [beginning, own].concat()
    };
    let request = |prompt: Vec<u32>, max_tokens| Request { max_tokens: Some(max_tokens), ..Request::new(prompt) };
    let core = &mut engine.core();
    // Everything but pages is in use after the first answer.
    run(core, [request(session(0), 2)].into_iter(), &mut 0);
    let before = resident_bytes();
    let mut most = 0;

    // Each session goes on behind the first token of its answer; the second is what it has to go on with.
    let mut answers = Vec::new();
    for first in (0..SESSIONS).step_by(AT_ONCE) {
        let requests = (first..first + AT_ONCE).map(|number| request(session(number), 2));
        for events in run(core, requests, &mut most) {
            answers.push([events[0].sampled.token, events[1].sampled.token]);
        }
    }
    let resumed = |number: usize| request([&session(number)[..], &answers[number][..1]].concat(), 1);
    // No session near another that was opened at the same time.
    let order: Vec<usize> = (0..SESSIONS).map(|place| place * 617 % SESSIONS).collect();
    for numbers in order.chunks(AT_ONCE) {
        let requests = numbers.iter().map(|number| resumed(*number));
        for (number, events) in numbers.iter().zip(run(core, requests, &mut most)) {
            let report = events[0].prefix.as_ref().expect("the first event reports");
            assert!(report.cached_tokens >= PAGED_TOKENS, "session {number}: {report:?}");
            assert_eq!(events[0].sampled.token, answers[*number][1], "session {number}");
        }
    }
    let stats = core.cache_stats();
    assert!(stats.evicted_pages > 400 && stats.disk.is_some_and(|disk| disk.read > 300), "{stats:?}");

    let sample: Vec<usize> = (0..SESSIONS).step_by(SAMPLED).collect();
    for numbers in sample.chunks(AT_ONCE) {
        let requests = numbers.iter().map(|number| Request { prefix_use: PrefixUse::OFF, ..resumed(*number) });
        for (number, events) in numbers.iter().zip(run(core, requests, &mut most)) {
            assert_eq!(events[0].sampled.token, answers[*number][1], "session {number} without a cache");
        }
    }
    assert!(most <= before + BUDGET + SLACK, "{} MiB more than before", (most - before) >> 20);
}
