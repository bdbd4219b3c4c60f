//! Entries and vectors for tests.

use ruvllm_memory::{
    Annotation, Failure, Feedback, Latency, Quality, Routing, Said, TokenCounts, Trace, Trajectory, TrajectoryPrompt,
    Turn, WitnessEntry, WitnessRecord, now_ms,
};
use serde_json::json;

pub const DIMENSION: usize = 768;

/// A direction in space for each topic, with a little noise for each of its texts.
pub fn vector(topic: u64, variant: u64) -> Vec<f32> {
    let noise = |seed: u64| {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d;
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        }
    };
    let (mut base, mut other) = (noise(topic + 1), noise(topic * 1_000_003 + variant + 7));
    (0..DIMENSION).map(|_| base() + 0.2 * other()).collect()
}

/// An entry about a topic, at a time.
pub fn entry(request: &str, topic: u64, at_ms: i64) -> WitnessRecord {
    let entry = WitnessEntry {
        request: request.into(),
        at_ms,
        model: "smollm2".into(),
        routing: Routing { model: "smollm2".into(), temperature: 0.7, top_p: 0.9, ..Routing::default() },
        quality: Some(Quality { score: 0.8, ..Quality::default() }),
        latency: Latency { total_ms: 120.5, prefill_ms: 20.25, ..Latency::default() },
        tokens: TokenCounts { prompt: 30, answer: 40 },
        ..WitnessEntry::default()
    };
    let variant = at_ms as u64;
    WitnessRecord {
        entry,
        prompt_embedding: Some(vector(topic, variant)),
        answer_embedding: Some(vector(topic + 500, variant)),
    }
}

pub fn trace(witness: WitnessRecord) -> Trace {
    Trace { witness, ..Trace::default() }
}

pub fn failed(mut witness: WitnessRecord, kind: &str) -> WitnessRecord {
    witness.entry.error = Some(Failure { kind: kind.into(), message: format!("it was a {kind}") });
    witness.entry.quality = Some(Quality { score: 0.1, ..Quality::default() });
    witness
}

pub fn of_tenant(mut witness: WitnessRecord, tenant: &str) -> WitnessRecord {
    witness.entry.tenant = tenant.into();
    witness
}

pub fn turn(tenant: &str, session: &str, said: &str, at_ms: i64) -> Turn {
    Turn {
        session: session.into(),
        tenant: tenant.into(),
        model: "smollm2".into(),
        messages: vec![
            json!({ "role": "user", "content": said }),
            json!({ "role": "assistant", "content": format!("You said {said}.") }),
        ],
        embedding: Some(vector(said.len() as u64, at_ms as u64)),
        at_ms,
        ..Turn::default()
    }
}

/// What is kept of an entry's request to learn from.
pub fn trajectory(entry: &WitnessEntry) -> Trajectory {
    Trajectory {
        request: entry.request.clone(),
        response: entry.response.clone(),
        at_ms: entry.at_ms,
        tenant: entry.tenant.clone(),
        user: entry.user.clone(),
        model: entry.model.clone(),
        model_digest: "0a".repeat(32),
        sampling: json!({ "temperature": 0.7 }),
        prompt: TrajectoryPrompt::Messages(vec![json!({ "role": "user", "content": "2 + 2?" })]),
        answer: json!({ "role": "assistant", "content": "Five." }),
        prompt_tokens: vec![1, 2, 3],
        answer_tokens: vec![4, 5],
        ..Trajectory::default()
    }
}

pub fn feedback(tenant: &str, about: &str, said: Feedback) -> Annotation {
    Annotation {
        request: format!("feedback on {about}"),
        at_ms: now_ms(),
        tenant: tenant.into(),
        about: Some(about.into()),
        user: None,
        model: "smollm2".into(),
        said: Said::Feedback(said),
    }
}

/// Another program that has the file of a memory open, with its key.
pub fn another_program(folder: &std::path::Path) -> rusqlite::Connection {
    let key = std::fs::read_to_string(folder.join("memory.key")).unwrap();
    let connection = rusqlite::Connection::open(folder.join("memory.db")).unwrap();
    connection.execute_batch(&format!("PRAGMA key = \"x'{}'\"", key.trim())).unwrap();
    connection
}

/// Waits for something that must happen, however busy the machine is.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(180);
    while !is_so() {
        assert!(std::time::Instant::now() < deadline, "never: {what}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}
