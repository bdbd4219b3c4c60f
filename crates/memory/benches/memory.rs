//! What the memory costs: writing, looking up, searching, and room on disk.
//!
//!     cargo bench -p ruvllm-memory --bench memory [-- --entries 20000 --json]

#[allow(dead_code)]
#[path = "../tests/it/support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use ruvllm_memory::{ExportFormat, Memory, MemoryOptions, Trace, WitnessQuery, now_ms};
use serde_json::json;
use support::{entry, trace, turn, vector};

/// As many as the recorder writes at a time.
const BATCH: usize = 100;
const LOOKUPS: usize = 2_000;
const SCANS: usize = 20;
const OPENINGS: usize = 200;
/// Requests of a week at one a second.
const WEEK: f64 = 7.0 * 24.0 * 3600.0;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let after =
        |flag: &str| arguments.iter().position(|argument| argument == flag).and_then(|at| arguments.get(at + 1));
    let entries: usize = after("--entries").and_then(|count| count.parse().ok()).unwrap_or(20_000);
    let folder = tempfile::tempdir().expect("a folder");
    let open = || Memory::open(MemoryOptions::in_folder(folder.path())).expect("it opens");
    let before = resident_bytes();
    let memory = open();
    memory.recall(&vector(0, 0), &[], None, 1).expect("a search");
    let idle = resident_bytes().saturating_sub(before);

    let mut append = Vec::new();
    for first in (0..entries).step_by(BATCH) {
        let batch: Vec<Trace> =
            (first..first + BATCH).map(|at| trace(entry(&format!("r{at}"), at as u64 % 500, now_ms()))).collect();
        let started = Instant::now();
        memory.record(&batch).expect("it is stored");
        append.push(started.elapsed() / BATCH as u32);
    }
    for at in 0..200 {
        let turn = Some(turn("", &format!("session {at}"), "What is the weather in Oslo tomorrow?", now_ms()));
        memory.record(&[Trace { turn, ..trace(entry("s", 1, now_ms())) }]).expect("it is stored");
    }
    let session = timed(|at| drop(memory.sessions().get("", &format!("session {}", at % 200)).expect("a session")));
    let policies = timed(|_| drop(memory.policies().in_force("").expect("policies")));
    let search = timed(|at| {
        let like = Some(vector(at as u64 % 500, 1));
        let query = WitnessQuery { like, count_max: 10, since_ms: Some(0), ..WitnessQuery::default() };
        assert_eq!(memory.witness().search(&query).expect("entries").len(), 10);
    });
    // Far more than SQLite keeps decrypted: every page is read from the file.
    let export = (0..SCANS)
        .map(|_| {
            let started = Instant::now();
            let (query, out) = (WitnessQuery::default(), &mut std::io::sink());
            memory.witness().export(&query, ExportFormat::Jsonl, out, &mut |_| {}).expect("an export");
            started.elapsed() / entries as u32
        })
        .collect();
    memory.maintain().expect("maintenance");
    drop(memory);
    let opening = (0..OPENINGS)
        .map(|_| {
            let started = Instant::now();
            drop(open());
            started.elapsed()
        })
        .collect();
    let started = Instant::now();
    let memory = open();
    memory.recall(&vector(0, 0), &[], None, 1).expect("a search");
    let reopen = started.elapsed();
    let bytes = memory.status().expect("a status").bytes as f64 / entries as f64;

    let rows = [
        ("append, each of a hundred entries", append),
        ("opening", opening),
        ("export of everything, each entry", export),
        ("session look-up", session),
        ("policies in force", policies),
        ("search of 10 by meaning and time, with their texts", search),
    ];
    if arguments.iter().any(|argument| argument == "--json") {
        let times: Vec<_> = rows
            .iter()
            .map(|(name, times)| json!({ "what": name, "p50_us": at(times, 0.5), "p99_us": at(times, 0.99) }))
            .collect();
        println!(
            "{}",
            json!({ "entries": entries, "times": times, "bytes_per_entry": bytes, "week_gb": bytes * WEEK / 1e9,
                               "idle_bytes": idle, "reopen_ms": reopen.as_secs_f64() * 1e3 })
        );
        return;
    }
    println!("{entries} entries with two vectors each");
    for (name, times) in &rows {
        println!("{name:<52} p50 {:>8.1} us  p99 {:>8.1} us", at(times, 0.5), at(times, 0.99));
    }
    println!("{bytes:.0} bytes an entry: {:.2} GB for a week of one request a second", bytes * WEEK / 1e9);
    println!("idle memory {:.1} MB, opened again in {:.0} ms", idle as f64 / 1e6, reopen.as_secs_f64() * 1e3);
}

fn timed(mut work: impl FnMut(usize)) -> Vec<Duration> {
    (0..LOOKUPS)
        .map(|at| {
            let started = Instant::now();
            work(at);
            started.elapsed()
        })
        .collect()
}

fn at(times: &[Duration], share: f64) -> f64 {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[((share * sorted.len() as f64) as usize).min(sorted.len() - 1)].as_secs_f64() * 1e6
}

/// What this process takes in memory; 0 where that cannot be told.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).unwrap_or(0) * 1024
}
