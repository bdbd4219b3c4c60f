//! The thread that writes: nothing waits for it, and what it cannot take is counted.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use ruvllm_memory::{Memory, MemoryOptions, Recorder, Trace, WitnessQuery, now_ms};
use support::{entry, trace, turn};

fn memory() -> (tempfile::TempDir, Arc<Memory>) {
    let folder = tempfile::tempdir().unwrap();
    let memory = Arc::new(Memory::open(MemoryOptions::in_folder(folder.path())).unwrap());
    (folder, memory)
}

#[test]
fn what_was_taken_is_written_in_batches_and_at_the_end() {
    let (_folder, memory) = memory();
    let recorder = Recorder::start(Arc::clone(&memory), None).unwrap();
    for at in 0..250 {
        recorder.record(trace(entry(&format!("r{at}"), 1, now_ms())));
    }
    recorder.flush();
    let stats = recorder.stats();
    assert_eq!((stats.written, stats.overflowed, stats.lost, stats.waiting), (250, 0, 0, 0));
    let verified = memory.verify_witness(&mut |_| {}).unwrap();
    assert_eq!((verified.entries, verified.batches), (250, 3), "a hundred at a time");
    let last = Trace { turn: Some(turn("", "talk", "hello", now_ms())), ..trace(entry("last", 1, now_ms())) };
    recorder.record(last);
    drop(recorder);
    assert_eq!(memory.witness_of_request("last").unwrap().len(), 1, "nothing is left when it ends");
    assert_eq!(memory.session("", "talk").unwrap().unwrap().turns, 1);
}

#[test]
fn an_entry_does_not_wait_for_others_for_long() {
    let (_folder, memory) = memory();
    let recorder = Recorder::start(Arc::clone(&memory), None).unwrap();
    recorder.record(trace(entry("alone", 1, now_ms())));
    let deadline = Instant::now() + Duration::from_secs(300);
    while memory.search_witness(&WitnessQuery::default()).unwrap().is_empty() {
        assert!(Instant::now() < deadline, "it was never written");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_full_queue_is_counted_and_never_waited_for() {
    let (_folder, memory) = memory();
    let recorder = Recorder::start(Arc::clone(&memory), None).unwrap();
    let one = trace(entry("r", 1, now_ms()));
    // Faster than anybody can write.
    for _ in 0..30_000 {
        recorder.record(one.clone());
    }
    let stats = recorder.stats();
    assert!(stats.overflowed > 0, "{stats:?}");
    assert!(stats.waiting <= 10_200, "{stats:?}");
    recorder.flush();
    let stats = recorder.stats();
    assert_eq!((stats.written + stats.overflowed, stats.lost), (30_000, 0));
    assert_eq!(memory.status().unwrap().entries, stats.written);
}

#[test]
fn a_session_has_its_turns_before_they_are_written() {
    let (_folder, memory) = memory();
    let recorder = Recorder::start(Arc::clone(&memory), None).unwrap();
    for at in 0..40 {
        let turn = Some(turn("acme", "talk", &format!("turn {at}"), now_ms()));
        recorder.record(Trace { turn, ..trace(entry("r", 1, now_ms())) });
        let session = recorder.session("acme", "talk").unwrap().unwrap();
        assert_eq!((session.turns, session.messages.len()), (at + 1, 2 * (at as usize + 1)));
        if at % 7 == 0 {
            recorder.flush();
            assert_eq!(memory.session("acme", "talk").unwrap().unwrap(), session);
        }
    }
    assert!(recorder.session("", "talk").unwrap().is_none());
}

#[test]
fn texts_become_vectors_on_the_way() {
    let (_folder, memory) = memory();
    let embed = |texts: &[&str]| Ok(texts.iter().map(|text| support::vector(text.len() as u64, 0)).collect());
    let recorder = Recorder::start(Arc::clone(&memory), Some(Box::new(embed))).unwrap();
    for (request, asked) in [("short", "abc"), ("long", "abcdefgh"), ("plain", "")] {
        let mut one = trace(entry(request, 1, now_ms()));
        one.witness.prompt_embedding = None;
        one.witness.answer_embedding = None;
        one.to_embed = (!asked.is_empty()).then(|| [asked.to_owned(), String::new()]);
        one.turn = Some(turn("", "talk", request, now_ms()));
        recorder.record(one);
    }
    recorder.flush();
    assert_eq!(recorder.session("", "talk").unwrap().unwrap().turns, 3, "each counts once");
    assert_eq!(memory.status().unwrap().vectors, 3, "of two requests and the session");
    let like = WitnessQuery { like: Some(support::vector(8, 1)), count_max: 1, ..WitnessQuery::default() };
    assert_eq!(memory.search_witness(&like).unwrap()[0].entry.request, "long");
}
