//! The KV budget is a promise. In a file of its own: the memory of the process is looked at.

mod support;

use std::fs;

use ruvllm_engine::Request;
use ruvllm_runtime::{DiskOptions, Engine, Prompt};
use support::{run_together, smollm2};

const SESSIONS: usize = 40;
const TURN_TOKENS: usize = 200;
/// A sixth of what all sessions would take in memory.
const BUDGET: usize = 32 << 20;
/// Buffers of a step, the tree, what the allocator keeps.
const SLACK: usize = 24 << 20;

fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("there is a line");
    let kib: usize = line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number");
    kib << 10
}

#[test]
fn many_sessions_stay_within_the_budget_and_all_of_them_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = DiskOptions { folder: folder.path().to_owned(), budget_bytes: 1 << 30 };
    let builder = Engine::builder(smollm2()).context(Some(512)).sequences(4).disk(Some(disk));
    let mut engine = builder.kv_budget_bytes(Some(BUDGET)).build().expect("the default model loads");
    let essays = include_str!("data/essays.txt");
    let tokens = engine.encode(&Prompt::Text(essays.to_owned())).expect("plain text");
    let session = |number: usize| tokens[number * 50..number * 50 + TURN_TOKENS].to_vec();
    let request = |prompt: Vec<u32>| Request { max_tokens: Some(4), ..Request::new(prompt) };
    // Everything but pages is in use after the first answer.
    run_together(&mut engine, &[request(session(0))]);
    let before = resident_bytes();
    let mut most = 0;
    let mut turns = Vec::new();
    for first in (0..SESSIONS).step_by(4) {
        let requests: Vec<Request> = (first..first + 4).map(|number| request(session(number))).collect();
        for (request, events) in requests.iter().zip(run_together(&mut engine, &requests)) {
            let answer: Vec<u32> = events.iter().map(|event| event.sampled.token).collect();
            turns.push([&request.prompt[..], &answer, &session(7)[..5]].concat());
        }
        most = most.max(resident_bytes());
        assert!(engine.core().cache_stats().used_bytes <= BUDGET);
    }
    for turn in &turns {
        let events = run_together(&mut engine, &[request(turn.clone())]).remove(0);
        let report = events[0].prefix.as_ref().expect("the first event reports");
        assert!(report.cached_tokens >= 192, "{report:?}");
        most = most.max(resident_bytes());
    }
    let stats = engine.core().cache_stats();
    assert!(stats.evicted_pages > 200 && stats.disk.is_some_and(|disk| disk.read > 100), "{stats:?}");
    assert!(most <= before + BUDGET + SLACK, "{} MiB more than before", (most - before) >> 20);
}
