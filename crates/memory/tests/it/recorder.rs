//! The thread that writes: nothing waits for it, and what it cannot take is counted.

use crate::support;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{entry, feedback, trace, trajectory, turn};
use ruvllm_memory::{
    Feedback, Forget, Memory, MemoryOptions, Recorder, TRAJECTORY_BYTES_MAX, Trace, TrajectoryPrompt, WitnessQuery,
    now_ms,
};

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
    support::until("all is written", || recorder.flush());
    let stats = recorder.stats();
    assert_eq!((stats.written, stats.overflowed, stats.lost, stats.waiting), (250, 0, 0, 0));
    let verified = memory.witness().verify(&mut |_| {}).unwrap();
    assert_eq!((verified.entries, verified.batches), (250, 3), "a hundred at a time");
    let last = Trace { turn: Some(turn("", "talk", "hello", now_ms())), ..trace(entry("last", 1, now_ms())) };
    recorder.record(last);
    drop(recorder);
    assert_eq!(memory.witness().by_request("last").unwrap().len(), 1, "nothing is left when it ends");
    assert_eq!(memory.sessions().get("", "talk").unwrap().unwrap().turns, 1);
}

#[test]
fn an_entry_does_not_wait_for_others_for_long() {
    let (_folder, memory) = memory();
    let recorder = Recorder::start(Arc::clone(&memory), None).unwrap();
    recorder.record(trace(entry("alone", 1, now_ms())));
    let deadline = Instant::now() + Duration::from_secs(300);
    while memory.witness().search(&WitnessQuery::default()).unwrap().is_empty() {
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
    support::until("all is written", || recorder.flush());
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
            support::until("all is written", || recorder.flush());
            assert_eq!(memory.sessions().get("acme", "talk").unwrap().unwrap(), session);
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
    support::until("all is written", || recorder.flush());
    assert_eq!(recorder.session("", "talk").unwrap().unwrap().turns, 3, "each counts once");
    assert_eq!(memory.status().unwrap().vectors, 3, "of two requests and the session");
    let like = WitnessQuery { like: Some(support::vector(8, 1)), count_max: 1, ..WitnessQuery::default() };
    assert_eq!(memory.witness().search(&like).unwrap()[0].entry.request, "long");
}

#[test]
fn a_session_that_is_too_large_costs_no_other_tenants_entries() {
    let (_folder, memory) = memory();
    let recorder = Recorder::start(Arc::clone(&memory), None).unwrap();
    for at in 0..20 {
        recorder.record(trace(support::of_tenant(entry(&format!("acme-{at}"), 1, now_ms()), "acme")));
        if at == 7 {
            let huge = turn("globex", "talk", &"x".repeat(11 << 20), now_ms());
            recorder.record(Trace { turn: Some(huge), ..trace(entry("huge", 1, now_ms())) });
        }
    }
    support::until("all is written", || recorder.flush());
    let stats = recorder.stats();
    assert_eq!((stats.written, stats.lost, stats.waiting, stats.waiting_bytes), (21, 0, 0, 0));
    assert_eq!(memory.witness().by_request("huge").unwrap().len(), 1, "what can be stored of it is");
    assert!(recorder.session("globex", "talk").unwrap().is_none());
    assert!(memory.witness().verify(&mut |_| {}).unwrap().is_sound());
}

#[test]
fn an_entry_that_cannot_be_stored_is_left_out_alone() {
    let (_folder, memory) = memory();
    let recorder = Recorder::start(Arc::clone(&memory), None).unwrap();
    for at in 0..10 {
        let mut witness = entry(&format!("r{at}"), 1, now_ms());
        if at == 3 {
            witness.prompt_embedding = Some(vec![f32::NAN; 768]);
        }
        if at == 6 {
            witness.entry.latency.total_ms = f64::NAN;
        }
        recorder.record(trace(witness));
    }
    support::until("all is written", || recorder.flush());
    let stats = recorder.stats();
    assert_eq!((stats.written, stats.lost), (9, 1));
    assert!(memory.witness().by_request("r6").unwrap().is_empty());
    assert_eq!(memory.witness().by_request("r3").unwrap().len(), 1, "without its embedding");
}

/// Another program writes and does not end.
#[test]
fn a_locked_file_holds_up_nobody_and_is_written_when_it_is_free_again() {
    let (folder, memory) = memory();
    let recorder = Recorder::start(Arc::clone(&memory), None).unwrap();
    recorder.record(Trace { turn: Some(turn("", "talk", "hello", now_ms())), ..trace(entry("before", 1, now_ms())) });
    support::until("all is written", || recorder.flush());
    let other = support::another_program(folder.path());
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut large = trace(entry("large", 1, now_ms()));
    large.to_embed = Some(["x".repeat(1 << 20), String::new()]);
    for _ in 0..200 {
        recorder.record(large.clone());
    }
    let stats = recorder.stats();
    assert!(stats.overflowed >= 100 && stats.waiting >= 10, "bounded in bytes: {stats:?}");
    assert!(recorder.queued_bytes() <= recorder.queued_bytes_max(), "{stats:?}");
    assert_eq!(recorder.session("", "talk").unwrap().unwrap().turns, 1, "reading goes on");
    assert!(!memory.policies().known("").is_empty());
    assert!(!recorder.flush(), "it says that it could not");
    assert_eq!(recorder.stats().lost, 0);
    other.execute_batch("COMMIT").unwrap();
    support::until("it is picked up again", || recorder.stats().waiting == 0);
    let stats = recorder.stats();
    assert_eq!((stats.written + stats.overflowed, stats.lost, recorder.queued_bytes()), (201, 0, 0));
    assert_eq!(memory.status().unwrap().entries, stats.written);

    // And if it never is: the end does not wait for it.
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    recorder.record(trace(entry("last", 1, now_ms())));
    drop(recorder);
    other.execute_batch("ROLLBACK").unwrap();
}

#[test]
fn a_request_is_known_while_it_waits_to_be_written_and_not_once_it_is_forgotten() {
    let (_folder, memory) = memory();
    let recorder = Recorder::start(Arc::clone(&memory), None).unwrap();
    let mut trace = Trace { prompt: Some(7), ..trace(entry("r1", 1, now_ms())) };
    trace.witness.entry.response = Some("chatcmpl-1".into());
    trace.trajectory = Some(trajectory(&trace.witness.entry));
    recorder.record(trace);
    let known = recorder.recent_request("", "chatcmpl-1").unwrap();
    assert_eq!((known.request.as_str(), known.keeps_text), ("r1", true));
    assert_eq!((recorder.recent_request("acme", "r1"), recorder.recent_request("", "r2")), (None, None));
    assert_eq!(recorder.answered(7).as_deref(), Some("r1"));
    assert!(recorder.annotate(feedback("", "r1", Feedback { score: Some(1.0), ..Feedback::default() })));
    let forgotten = recorder.forget(&Forget::Request { tenant: None, id: "r1".into() }, "req-x").unwrap();
    assert_eq!((forgotten.trajectories, forgotten.feedback), (1, 1), "what was waiting is forgotten, too");
    assert_eq!((recorder.recent_request("", "r1"), recorder.answered(7)), (None, None));
    assert!(memory.witness().verify(&mut |_| {}).unwrap().is_sound());
}

#[test]
fn a_trajectory_that_is_too_large_does_not_take_its_request_along() {
    let (_folder, memory) = memory();
    let recorder = Recorder::start(Arc::clone(&memory), None).unwrap();
    let mut large = trace(entry("large", 1, now_ms()));
    let mut kept = trajectory(&large.witness.entry);
    kept.prompt = TrajectoryPrompt::Text("x".repeat(TRAJECTORY_BYTES_MAX));
    large.trajectory = Some(kept);
    recorder.record(large);
    recorder.record(trace(entry("small", 1, now_ms())));
    support::until("both are written", || recorder.flush());
    assert_eq!((recorder.stats().written, recorder.stats().lost), (2, 0));
    assert_eq!(memory.status().unwrap().trajectories, 0);
}
