//! Feedback, trajectories and forgetting, whatever database the memory is in.

use ruvllm_memory::{
    ErrorFilter, ExampleQuery, ExportFormat, Feedback, Forget, Forgotten, Memory, MemoryError, SessionQuery, Trace,
    WitnessQuery, now_ms,
};
use serde_json::{Value, json};

use crate::support::{entry, feedback, of_tenant, trace, trajectory, turn, vector};

const DAY_MS: i64 = 24 * 3_600_000;

fn score(score: f64) -> Feedback {
    Feedback { score: Some(score), ..Feedback::default() }
}

fn correction(text: &str) -> Feedback {
    Feedback { correction: Some(text.into()), ..Feedback::default() }
}

/// A request of a user, kept to learn from.
pub(super) fn learned(request: &str, tenant: &str, user: &str, at_ms: i64) -> Trace {
    let mut trace = trace(of_tenant(entry(request, 1, at_ms), tenant));
    trace.witness.entry.user = Some(user.into());
    trace.witness.entry.response = Some(format!("chatcmpl-{request}"));
    trace.trajectory = Some(trajectory(&trace.witness.entry));
    trace
}

fn lines(memory: &Memory, query: &ExampleQuery) -> Vec<Value> {
    let mut lines = Vec::new();
    memory
        .learning()
        .examples(query, &mut |example| {
            lines.extend(example.line());
            Ok(())
        })
        .unwrap();
    lines
}

pub(super) fn exported(memory: &Memory) -> Vec<Value> {
    let mut out = Vec::new();
    memory.witness().export(&WitnessQuery::default(), ExportFormat::Jsonl, &mut out, &mut |_| {}).unwrap();
    String::from_utf8(out).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

pub(super) fn verified(memory: &Memory) -> ruvllm_memory::Verified {
    let verified = memory.witness().verify(&mut |_| {}).unwrap();
    assert!(verified.is_sound(), "{:?}", verified.problems);
    verified
}

pub fn feedback_is_an_entry_of_its_own_and_the_last_counts(memory: &Memory) {
    let now = now_ms();
    memory.record(&[learned("r1", "acme", "ada", now), trace(of_tenant(entry("r2", 2, now), "acme"))]).unwrap();
    for said in [score(1.0), correction("No: 4."), score(-0.25)] {
        memory.learning().annotate(&feedback("acme", "r1", said)).unwrap();
    }
    memory.learning().annotate(&feedback("acme", "r2", score(1.0))).unwrap();
    assert_eq!(verified(memory).entries, 6);

    let of = |request: &str| {
        let (_, entry) = memory.witness().by_request(request).unwrap().remove(0);
        memory.witness().feedback(&entry).unwrap()
    };
    assert_eq!((of("r1").len(), of("chatcmpl-r1").len(), of("r2").len()), (3, 3, 1), "all are kept");
    let examples = lines(memory, &ExampleQuery::default());
    assert_eq!(examples.len(), 1, "only what was kept is learned from");
    assert_eq!((&examples[0]["rejected"], examples[0]["messages"].as_array().unwrap().len()), (&json!("Five."), 1));

    // Entries of another kind are no requests: neither figures nor searches count them.
    assert_eq!(memory.witness().stats(&WitnessQuery::default(), 1).unwrap().all.requests, 2);
    assert_eq!(memory.witness().search(&WitnessQuery::default()).unwrap().len(), 2);
    let kinds: Vec<Value> = exported(memory).iter().map(|line| line["kind"].clone()).collect();
    assert_eq!(kinds.iter().filter(|kind| **kind == "feedback").count(), 4);
    let mut parquet = Vec::new();
    let all = memory.witness().export(&WitnessQuery::default(), ExportFormat::Parquet, &mut parquet, &mut |_| {});
    assert_eq!((all.unwrap().entries, &parquet[..4]), (6, &b"PAR1"[..]));
    let answered = WitnessQuery { error: Some(ErrorFilter::None), ..WitnessQuery::default() };
    let counted = memory.witness().export(&answered, ExportFormat::Jsonl, &mut Vec::new(), &mut |_| {}).unwrap();
    assert_eq!(counted.entries, 2, "a filter by figures selects requests");

    let status = memory.learning().status().unwrap();
    let acme = &status.tenants[0];
    assert_eq!((acme.tenant.as_str(), acme.trajectories, acme.users), ("acme", 1, 1));
    assert_eq!((acme.rated.down, acme.rated.corrected), (1, 0), "the last one counts");
    assert_eq!((acme.feedback.up, acme.feedback.down, acme.feedback.corrected), (2, 1, 1));
}

pub fn requests_are_known_by_their_ids_to_their_tenant(memory: &Memory) {
    let now = now_ms();
    let mut second = learned("r1#2", "acme", "ada", now);
    second.witness.entry.response = Some("chatcmpl-r1".into());
    memory.record(&[learned("r1", "acme", "ada", now), second, trace(entry("r1", 1, now))]).unwrap();
    let find = |tenant: Option<&str>, id: &str| memory.learning().find_request(tenant, id).unwrap();
    for (id, request) in [("r1", "r1"), ("chatcmpl-r1", "r1"), ("r1#2", "r1#2"), ("chatcmpl-r1#2", "r1#2")] {
        let known = find(Some("acme"), id).unwrap();
        assert_eq!((known.request.as_str(), known.tenant.as_str(), known.keeps_text), (request, "acme", true), "{id}");
    }
    assert!(!find(Some(""), "r1").unwrap().keeps_text);
    assert_eq!(find(None, "chatcmpl-r1").unwrap().tenant, "acme");
    for (tenant, id) in
        [("globex", "r1"), ("", "chatcmpl-r1"), ("acme", "r2"), ("acme", "chatcmpl-r1#3"), ("acme", "#")]
    {
        assert_eq!(find(Some(tenant), id), None, "{tenant} {id}");
    }
}

pub fn trajectories_have_a_retention_of_their_own(memory: &Memory) {
    let now = now_ms();
    memory.record(&[learned("old", "acme", "ada", now - 91 * DAY_MS)]).unwrap();
    memory.record(&[learned("newer", "acme", "ada", now - 30 * DAY_MS)]).unwrap();
    memory.learning().annotate(&feedback("acme", "newer", score(1.0))).unwrap();
    memory.record(&[trace(entry("now", 1, now))]).unwrap();
    assert_eq!(memory.apply_retention(now).unwrap().trajectories, 1);
    // The batches are dated by when they were written, so the log has kept all of them.
    let status = memory.learning().status().unwrap();
    assert_eq!((status.tenants[0].trajectories, status.tenants[0].rated.up), (1, 1));
    assert_eq!(memory.apply_retention(now + 8 * DAY_MS).unwrap().entries, 3);
    let known = memory.learning().find_request(Some("acme"), "newer").unwrap();
    assert!(known.is_some_and(|known| known.keeps_text), "feedback can still be given");
    memory.learning().annotate(&feedback("acme", "newer", correction("Four."))).unwrap();
    let examples = lines(memory, &ExampleQuery { user: Some("ada".into()), ..ExampleQuery::default() });
    assert_eq!(examples[0]["messages"][1]["content"], "Four.");
    assert!(lines(memory, &ExampleQuery { tenant: Some("globex".into()), ..ExampleQuery::default() }).is_empty());
    verified(memory);
}

pub fn a_forgotten_request_leaves_its_digest_only(memory: &Memory) {
    let now = now_ms();
    let mut first = learned("r1", "acme", "ada", now);
    first.turn = Some(turn("acme", "talk", "a secret", now));
    first.witness.entry.session = Some("talk".into());
    memory.record(&[first, learned("r2", "acme", "ada", now)]).unwrap();
    memory.learning().annotate(&feedback("acme", "r1", correction("another secret"))).unwrap();
    let before = verified(memory);
    let what = |tenant: &str| Forget::Request { tenant: Some(tenant.into()), id: "chatcmpl-r1".into() };
    let missing = memory.learning().forget(&what("globex"), "req-x");
    assert!(matches!(missing, Err(MemoryError::NotFound { kind: "request", .. })), "others cannot");

    let forgotten = memory.learning().forget(&what("acme"), "req-x").unwrap();
    let expected = Forgotten { requests: 1, feedback: 1, trajectories: 1, sessions: 1, embeddings: 3, versions: 0 };
    assert_eq!(forgotten, expected);
    let after = verified(memory);
    assert_eq!((after.forgotten, after.entries, after.batches_not_recomputed), (2, before.entries + 1, 0));
    assert!(
        memory.witness().by_request("r1").unwrap().is_empty()
            && memory.sessions().get("acme", "talk").unwrap().is_none()
    );
    assert_eq!(memory.learning().find_request(None, "r1").unwrap(), None);
    assert_eq!(memory.learning().status().unwrap().tenants[0].trajectories, 1);
    let text = exported(memory).iter().map(Value::to_string).collect::<String>();
    assert!(!text.contains("secret") && text.contains("\"forgotten\""), "{text}");
    let near = WitnessQuery { like: Some(vector(1, 0)), ..WitnessQuery::default() };
    let near: Vec<String> =
        memory.witness().search(&near).unwrap().into_iter().map(|found| found.entry.request).collect();
    assert_eq!(near, ["r2"]);
    let said = memory.learning().forgotten(now).unwrap();
    assert_eq!((said[0].1.scope.as_str(), &said[0].1.requests), ("request", &vec!["r1".to_owned()]));
    // It is forgotten, so it cannot be again.
    assert!(matches!(memory.learning().forget(&what("acme"), "req-x"), Err(MemoryError::NotFound { .. })));
}

pub fn a_user_and_a_tenant_are_forgotten_everywhere(memory: &Memory) {
    let now = now_ms();
    // More than one portion.
    let mut traces: Vec<Trace> = (0..450).map(|at| learned(&format!("a{at}"), "acme", "ada", now)).collect();
    traces.push(learned("b", "acme", "bob", now));
    traces.push(learned("g", "globex", "ada", now));
    for trace in &mut traces {
        (trace.witness.prompt_embedding, trace.witness.answer_embedding) = (None, None);
    }
    let mut of_ada = turn("acme", "hers", "hello", now);
    of_ada.user = Some("ada".into());
    traces[0].turn = Some(of_ada);
    memory.record(&traces).unwrap();
    let mut by_ada = feedback("acme", "b", correction("by ada"));
    by_ada.user = Some("ada".into());
    memory.learning().annotate(&by_ada).unwrap();
    memory.learning().annotate(&feedback("acme", "a7", score(1.0))).unwrap();
    let of_user = |user: &str| WitnessQuery { user: Some(user.into()), count_max: 1000, ..WitnessQuery::default() };
    assert_eq!(memory.witness().search(&of_user("ada")).unwrap().len(), 451);
    let sessions = SessionQuery { user: Some("ada".into()), ..SessionQuery::default() };
    assert_eq!(memory.sessions().list(&sessions).unwrap()[0].user.as_deref(), Some("ada"));

    let ada = Forget::User { tenant: Some("acme".into()), name: "ada".into() };
    let forgotten = memory.learning().forget(&ada, "req-x").unwrap();
    let expected = Forgotten { requests: 450, feedback: 2, trajectories: 450, sessions: 1, embeddings: 1, versions: 0 };
    assert_eq!(forgotten, expected);
    assert_eq!(memory.witness().search(&of_user("ada")).unwrap().len(), 1, "of another tenant");
    assert!(memory.sessions().list(&sessions).unwrap().is_empty());
    assert_eq!(verified(memory).forgotten, 452);
    let text = exported(memory).iter().map(Value::to_string).collect::<String>();
    assert!(!text.contains("by ada"));
    assert!(lines(memory, &ExampleQuery::default()).is_empty(), "nor is it learned from");
    assert_eq!(memory.learning().status().unwrap().forgotten_requests, 450);

    let forgotten = memory.learning().forget(&Forget::Tenant("acme".into()), "req-y").unwrap();
    assert_eq!((forgotten.requests, forgotten.trajectories), (1, 1));
    let unknown = memory.learning().forget(&Forget::Tenant("nobody".into()), "req-y");
    assert!(matches!(unknown, Err(MemoryError::NotFound { kind: "tenant", .. })));
    let left = memory.learning().status().unwrap();
    let trajectories: Vec<_> = left.tenants.iter().map(|one| (one.tenant.as_str(), one.trajectories)).collect();
    assert_eq!(trajectories, [("globex", 1)]);
    for name in ["", "a\0b", "line\nbreak", &"x".repeat(513)] {
        let wrong = memory.learning().forget(&Forget::User { tenant: None, name: name.into() }, "req-z");
        assert!(matches!(wrong, Err(MemoryError::Invalid { field: "user", .. })), "{name:?}");
    }
    verified(memory);
}
