//! The process is killed at random moments under load: the memory opens every time, and nothing that was acknowledged is lost.

#![cfg(unix)]

use crate::support;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{entry, trace, turn};
use ruvllm_memory::{Memory, MemoryOptions, Trace, WitnessQuery, now_ms};

const KILLS: usize = 100;
const FOLDER: &str = "RUVLLM_CRASH_TEST_FOLDER";

/// What the killed process does: stores batches and says which of them are stored.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let memory = Memory::open(MemoryOptions::in_folder(Path::new(&folder))).unwrap();
    let first = memory.status().unwrap().entries;
    let mut out = std::io::stdout().lock();
    for at in first.. {
        let request = format!("r{at}");
        let turn = (at % 3 == 0).then(|| turn("", "talk", &request, now_ms()));
        let mut traces = vec![Trace { witness: entry(&request, at % 7, now_ms()), turn, ..Trace::default() }];
        traces.extend((0..at % 4).map(|more| trace(entry(&format!("{request}-{more}"), more, now_ms()))));
        memory.record(&traces).unwrap();
        writeln!(out, "stored {request}").unwrap();
        out.flush().unwrap();
        if at % 50 == 0 {
            memory.maintain().unwrap();
        }
    }
}

#[test]
fn killed_a_hundred_times_it_loses_nothing_that_was_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let mut stored = Vec::new();
    for round in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "crash::child", "--nocapture", "--test-threads=1"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut acknowledged = lines.filter_map(|line| line.rsplit_once("stored ").map(|(_, name)| name.to_owned()));
        // Spread over opening, writing and maintenance: every fourth may not come to write, the others have written.
        let batches = (round % 4) * (round % 9);
        stored.extend(acknowledged.by_ref().take(batches));
        std::thread::sleep(Duration::from_millis((round as u64 * 37) % 90));
        child.kill().unwrap();
        child.wait().unwrap();
        stored.extend(acknowledged);

        let memory = Memory::open(MemoryOptions::in_folder(folder.path())).unwrap();
        if let Some(last) = stored.last() {
            assert_eq!(memory.witness().by_request(last).unwrap().len(), 1, "round {round}: {last}");
        }
        if round % 10 == 9 {
            let verified = memory.witness().verify(&mut |_| {}).unwrap();
            assert!(verified.is_sound(), "round {round}: {:?}", verified.problems);
        }
        std::mem::forget(memory);
    }
    assert!(stored.len() > KILLS, "only {} batches were stored", stored.len());
    let memory = Memory::open(MemoryOptions::in_folder(folder.path())).unwrap();
    memory.check().unwrap();
    for request in &stored {
        assert_eq!(memory.witness().by_request(request).unwrap().len(), 1, "{request}");
    }
    let verified = memory.witness().verify(&mut |_| {}).unwrap();
    assert!(verified.is_sound(), "{:?}", verified.problems);
    let like = WitnessQuery { like: Some(support::vector(2, 0)), count_max: 5, ..WitnessQuery::default() };
    assert_eq!(memory.witness().search(&like).unwrap().len(), 5);
}
