//! What must hold whatever database the memory is in. Each test gets a memory of its own.

mod choices;
mod learning;
mod versions;
mod workers;

use std::time::Duration;

pub use choices::*;
pub use learning::*;
pub use versions::*;
pub use workers::*;

use ruvllm_memory::{
    DimensionStats, EdgeKind, ErrorFilter, Item, Kind, Memory, MemoryError, Policy, PolicyQuery, PolicySource, Range,
    SessionQuery, Trace, WitnessQuery, now_ms,
};
use serde_json::json;

use crate::support::{entry, failed, of_tenant, trace, turn, vector};

const HOUR_MS: i64 = 3_600_000;

/// All tests, as a table for a macro.
#[macro_export]
macro_rules! suite {
    ($open:path) => {
        suite!($open: entries_are_found_by_time_figures_and_meaning, similar_requests_are_linked,
               a_tenant_sees_only_its_own, sessions_grow_and_are_found, sessions_expire_and_are_removed,
               policies_are_stored_searched_and_cached,
               the_chain_holds_through_retention, aggregates_are_those_of_the_entries,
               embeddings_of_another_model_are_refused, bad_input_is_refused_by_name,
               a_jump_of_the_clock_forgets_nothing_at_once,
               feedback_is_an_entry_of_its_own_and_the_last_counts, requests_are_known_by_their_ids_to_their_tenant,
               trajectories_have_a_retention_of_their_own, a_forgotten_request_leaves_its_digest_only,
               a_user_and_a_tenant_are_forgotten_everywhere, versions_are_promoted_rolled_back_and_forced,
               versions_that_were_learned_from_what_is_forgotten_are_withdrawn,
               changes_are_annotations_that_name_the_adapter, choices_are_found_by_tenant_with_what_came_of_them,
               a_router_is_a_version_that_goes_with_what_it_was_learned_from, workers_come_and_go,
               workers_that_share_a_memory_serve_the_same_file_under_a_name);
    };
    ($open:path: $($test:ident),*) => {
        $(#[test]
        fn $test() {
            suite::$test(&$open(stringify!($test)));
        })*
    };
}

fn search(memory: &Memory, query: WitnessQuery) -> Vec<String> {
    memory.witness().search(&query).unwrap().into_iter().map(|found| found.entry.request).collect()
}

pub fn entries_are_found_by_time_figures_and_meaning(memory: &Memory) {
    let now = now_ms();
    let mut traces: Vec<Trace> =
        (0..60).map(|at| trace(entry(&format!("r{at}"), at % 6, now - (60 - at as i64) * HOUR_MS))).collect();
    traces[7].witness = failed(traces[7].witness.clone(), "timeout");
    traces[13].witness = failed(traces[13].witness.clone(), "context_length");
    traces[20].witness.entry.latency.total_ms = 5_000.0;
    traces[21].witness.entry.model = "qwen".into();
    memory.record(&traces).unwrap();

    let newest = search(memory, WitnessQuery { count_max: 3, ..WitnessQuery::default() });
    assert_eq!(newest, ["r59", "r58", "r57"]);
    let page = memory.witness().search(&WitnessQuery { count_max: 3, ..WitnessQuery::default() }).unwrap();
    let before = page.last().map(|found| found.id);
    assert_eq!(search(memory, WitnessQuery { before, count_max: 1, ..WitnessQuery::default() }), ["r56"]);
    let (since_ms, until_ms) = (Some(now - 3 * HOUR_MS), Some(now - HOUR_MS));
    assert_eq!(search(memory, WitnessQuery { since_ms, until_ms, ..WitnessQuery::default() }), ["r58", "r57"]);
    let slow = Some(Range::parse("latency", ">1000").unwrap());
    assert_eq!(search(memory, WitnessQuery { latency_ms: slow, ..WitnessQuery::default() }), ["r20"]);
    assert_eq!(search(memory, WitnessQuery { model: Some("qwen".into()), ..WitnessQuery::default() }), ["r21"]);
    assert!(search(memory, WitnessQuery { model: Some("unknown".into()), ..WitnessQuery::default() }).is_empty());
    let error = |error| search(memory, WitnessQuery { error: Some(error), ..WitnessQuery::default() });
    assert_eq!(error(ErrorFilter::Any), ["r13", "r7"]);
    assert_eq!(error(ErrorFilter::Kind("timeout".into())), ["r7"]);
    let count_max = 100;
    assert_eq!(
        search(memory, WitnessQuery { error: Some(ErrorFilter::None), count_max, ..WitnessQuery::default() }).len(),
        58
    );

    // By meaning, alone and with everything else.
    let like = || Some(vector(3, 0));
    let near =
        memory.witness().search(&WitnessQuery { like: like(), count_max: 10, ..WitnessQuery::default() }).unwrap();
    assert_eq!(near.len(), 10);
    for found in &near {
        assert_eq!(found.entry.request[1..].parse::<u64>().unwrap() % 6, 3, "{}", found.entry.request);
        assert!(found.similarity.unwrap() > 0.8);
    }
    assert!(near.is_sorted_by(|a, b| a.similarity >= b.similarity));
    let bad = WitnessQuery {
        like: Some(vector(1, 0)),
        quality: Some(Range::parse("quality", "<0.5").unwrap()),
        since_ms: Some(now - 55 * HOUR_MS),
        error: Some(ErrorFilter::Kind("timeout".into())),
        ..WitnessQuery::default()
    };
    assert_eq!(search(memory, bad), ["r7"]);
    let answers = WitnessQuery { like: Some(vector(502, 0)), count_max: 3, ..WitnessQuery::default() };
    assert!(memory.witness().search(&answers).unwrap().iter().all(|found| found.similarity.unwrap() > 0.8));
    let asked = WitnessQuery { is_answer_searched: false, ..answers };
    assert!(memory.witness().search(&asked).unwrap().iter().all(|found| found.similarity.unwrap() < 0.5));

    let one = memory.witness().by_request("r7").unwrap();
    assert_eq!(one[0].1.error.as_ref().unwrap().kind, "timeout");
    assert_eq!(memory.witness().get(one[0].0).unwrap().unwrap(), one[0].1);
}

pub fn similar_requests_are_linked(memory: &Memory) {
    let now = now_ms();
    for at in 0..4 {
        memory.record(&[trace(entry(&format!("r{at}"), at % 2, now + at as i64))]).unwrap();
    }
    let id = |request: &str| memory.witness().by_request(request).unwrap()[0].0;
    let linked = memory.witness().reachable(id("r2"), 1, 0.0, 10).unwrap();
    assert_eq!(linked.iter().map(|(_, edge)| edge.target).collect::<Vec<_>>(), [id("r0")]);
    assert!(linked[0].1.kind == EdgeKind::Similar && linked[0].1.weight > 0.8);
    let first = memory.witness().reachable(id("r1"), 1, 0.0, 10).unwrap();
    assert!(first.is_empty(), "an edge leads to the earlier one");
    assert_eq!(memory.witness().reachable(id("r3"), 1, 0.0, 10).unwrap()[0].1.target, id("r1"));
}

pub fn a_tenant_sees_only_its_own(memory: &Memory) {
    let now = now_ms();
    for tenant in ["acme", "globex", ""] {
        let witness = of_tenant(entry(&format!("of-{tenant}"), 1, now), tenant);
        let turn = turn(tenant, "talk", &format!("I am {tenant}"), now);
        memory.record(&[Trace { witness, turn: Some(turn), ..Trace::default() }]).unwrap();
        let policy = Policy { tenant: tenant.into(), ..Policy::new("router", "own", json!({ "of": tenant })) };
        memory.policies().put(&policy, Some(&vector(1, 3))).unwrap();
    }
    let tenant = || Some("acme".to_owned());
    let like = Some(vector(1, 0));
    assert_eq!(search(memory, WitnessQuery { tenant: tenant(), ..WitnessQuery::default() }), ["of-acme"]);
    assert_eq!(search(memory, WitnessQuery { tenant: tenant(), like, ..WitnessQuery::default() }), ["of-acme"]);
    assert!(search(memory, WitnessQuery { tenant: Some("nobody".into()), ..WitnessQuery::default() }).is_empty());
    let sessions = memory.sessions().list(&SessionQuery { tenant: tenant(), ..SessionQuery::default() }).unwrap();
    assert_eq!(sessions.len(), 1);
    assert_eq!(sessions[0].tenant, "acme");
    assert_eq!(memory.sessions().get("acme", "talk").unwrap().unwrap().messages[0]["content"], "I am acme");
    let own = memory.policies().in_force("acme").unwrap();
    assert_eq!(own[&("router".into(), "own".into())].parameters["of"], "acme");
    // Who has stored nothing still has everybody's.
    let other = memory.policies().in_force("initech").unwrap();
    assert_eq!(other[&("router".into(), "own".into())].parameters["of"], "");
    for recalled in memory.recall(&vector(1, 0), &[], Some("acme"), 20).unwrap() {
        let owner = match recalled.item {
            Item::Request(entry) => entry.tenant,
            Item::Session(session) => session.tenant,
            Item::Policy(policy) => policy.tenant,
        };
        assert_eq!(owner, "acme", "{:?}", recalled.kind);
    }
    assert_eq!(
        memory.witness().stats(&WitnessQuery { tenant: tenant(), ..WitnessQuery::default() }, 4).unwrap().all.requests,
        1
    );
    assert!(!memory.sessions().remove("nobody", "talk").unwrap());
    assert!(memory.sessions().get("globex", "talk").unwrap().is_some());
}

pub fn sessions_grow_and_are_found(memory: &Memory) {
    let now = now_ms();
    for at in 0..3 {
        let witness = entry(&format!("r{at}"), 9, now + at);
        let mut trace = Trace {
            witness,
            turn: Some(turn("", "trip to Oslo", &format!("turn {at}"), now + at)),
            ..Trace::default()
        };
        trace.witness.entry.session = Some("trip to Oslo".into());
        memory.record(&[trace]).unwrap();
    }
    let session = memory.sessions().get("", "trip to Oslo").unwrap().unwrap();
    assert_eq!((session.turns, session.messages.len()), (3, 6));
    assert_eq!((session.created_ms, session.active_ms), (now, now + 2));
    assert_eq!(session.messages[4], json!({ "role": "user", "content": "turn 2" }));
    assert!(memory.sessions().get("", "another").unwrap().is_none());
    let of_session = WitnessQuery { session: Some("trip to Oslo".into()), ..WitnessQuery::default() };
    let requests = memory.witness().search(&of_session).unwrap();
    assert_eq!(requests.iter().map(|found| found.entry.request.as_str()).collect::<Vec<_>>(), ["r2", "r1", "r0"]);
    let found = memory.recall(&vector("turn 1".len() as u64, 0), &[Kind::Session], None, 5).unwrap();
    assert_eq!(found.len(), 1);
    assert!(matches!(&found[0].item, Item::Session(session) if session.name == "trip to Oslo"));
    let steps = memory.witness().reachable(found[0].id, 1, 0.0, 10).unwrap();
    assert_eq!(steps.len(), 3, "a session leads to its requests");
    let mut other = session.clone();
    other.name = "a copy".into();
    other.adapter = Some("legal".into());
    memory.sessions().put(&other).unwrap();
    let found = memory.sessions().list(&SessionQuery::default()).unwrap();
    let copy = found.iter().find(|session| session.name == "a copy").unwrap();
    assert_eq!((found.len(), copy.adapter.as_deref(), copy.messages), (2, Some("legal"), 6));
    assert_eq!(memory.sessions().get("", "a copy").unwrap(), Some(other));
}

pub fn sessions_expire_and_are_removed(memory: &Memory) {
    let now = now_ms();
    let add = |name: &str, at_ms| {
        let turn = Some(turn("", name, "hello", at_ms));
        memory.record(&[Trace { witness: entry(name, 1, at_ms), turn, ..Trace::default() }]).unwrap();
    };
    add("old", now - 31 * 24 * HOUR_MS);
    add("new", now);
    add("other", now);
    assert!(memory.sessions().remove("", "other").unwrap());
    assert!(!memory.sessions().remove("", "other").unwrap());
    assert_eq!(memory.apply_retention(now).unwrap().sessions, 1);
    let left = memory.sessions().list(&SessionQuery::default()).unwrap();
    assert_eq!(left.iter().map(|session| session.name.as_str()).collect::<Vec<_>>(), ["new"]);
    assert_eq!(memory.recall(&vector(5, 0), &[Kind::Session], None, 5).unwrap().len(), 1);
}

pub fn policies_are_stored_searched_and_cached(memory: &Memory) {
    let built_in = memory.policies().in_force("").unwrap();
    assert!(built_in.values().all(|policy| policy.source == PolicySource::Default) && !built_in.is_empty());
    let mut policy = Policy::new("router", "default", json!({ "temperature": 0.2 }));
    policy.confidence = 0.9;
    policy.source = PolicySource::Deep;
    memory.policies().put(&policy, Some(&vector(1, 0))).unwrap();
    // The store keeps whatever type there is: which ones are read is known above it.
    memory
        .policies()
        .put(&Policy::new("pattern", "contracts", json!({ "hint": "be brief" })), Some(&vector(2, 0)))
        .unwrap();
    let stored =
        memory.policies().list(&PolicyQuery { kind: Some("router".into()), ..PolicyQuery::default() }).unwrap();
    assert_eq!(stored.len(), 1);
    assert_eq!(stored[0].confidence, 0.9);
    assert!(stored[0].created_ms > 0);
    assert_eq!(
        memory.policies().in_force("").unwrap()[&("router".into(), "default".into())].parameters["temperature"],
        0.2
    );
    let near = memory.recall(&vector(2, 9), &[Kind::Policy], None, 1).unwrap();
    assert!(matches!(&near[0].item, Item::Policy(policy) if policy.name == "contracts"));
    // Whoever uses one leaves a mark.
    let mut user = entry("user", 1, now_ms() + 5_000);
    user.entry.routing.policy = Some("router/default".into());
    memory.record(&[trace(user.clone())]).unwrap();
    let stored =
        memory.policies().list(&PolicyQuery { kind: Some("router".into()), ..PolicyQuery::default() }).unwrap();
    assert_eq!(stored[0].accessed_ms, user.entry.at_ms);
    policy.parameters = json!({ "temperature": 0.3 });
    memory.policies().put(&policy, None).unwrap();
    assert_eq!(memory.policies().list(&PolicyQuery::default()).unwrap().len(), 2, "it took the place of the other");
    assert!(memory.policies().remove("", "router", "default").unwrap());
    assert!(!memory.policies().remove("", "router", "default").unwrap());
    assert_eq!(
        memory.policies().in_force("").unwrap()[&("router".into(), "default".into())].source,
        PolicySource::Default
    );
}

pub fn the_chain_holds_through_retention(memory: &Memory) {
    let now = now_ms();
    for batch in 0..8i64 {
        let traces: Vec<Trace> = (0..5).map(|at| trace(entry(&format!("r{batch}-{at}"), 1, now + at))).collect();
        memory.record(&traces).unwrap();
    }
    let verified = memory.witness().verify(&mut |_| {}).unwrap();
    assert!(verified.is_sound(), "{:?}", verified.problems);
    assert_eq!((verified.batches, verified.entries, verified.vectors), (8, 40, 80));
    // A week and a day later, all but the newest batch go.
    let removed = memory.apply_retention(now + 8 * 24 * HOUR_MS).unwrap();
    assert_eq!((removed.batches, removed.entries), (7, 35));
    let after = memory.witness().verify(&mut |_| {}).unwrap();
    assert!(after.is_sound(), "{:?}", after.problems);
    assert_eq!((after.batches, &after.hash), (1, &verified.hash));
    memory.record(&[trace(entry("later", 1, now))]).unwrap();
    assert!(memory.witness().verify(&mut |_| {}).unwrap().is_sound());
    assert_eq!(memory.status().unwrap().vectors, 12);
}

pub fn aggregates_are_those_of_the_entries(memory: &Memory) {
    let now = now_ms();
    let traces: Vec<Trace> = (0..100)
        .map(|at| {
            let mut witness = entry(&format!("r{at}"), 1, now - (100 - at) * 60_000);
            witness.entry.latency.total_ms = (at + 1) as f64;
            witness.entry.model = if at % 4 == 0 { "qwen" } else { "smollm2" }.into();
            trace(if at < 10 { failed(witness, "timeout") } else { witness })
        })
        .collect();
    memory.record(&traces).unwrap();
    let stats = memory.witness().stats(&WitnessQuery::default(), 10).unwrap();
    assert_eq!((stats.all.requests, stats.all.errors, stats.errors["timeout"]), (100, 10, 10));
    let latency = stats.all.latency_ms;
    assert_eq!((latency.p50, latency.p90, latency.p99, latency.max), (50.0, 90.0, 99.0, 100.0));
    assert!((stats.all.quality.unwrap() - 0.73).abs() < 1e-9);
    assert_eq!((stats.models["qwen"].requests, stats.models["smollm2"].requests), (25, 75));
    assert_eq!((stats.all.prompt_tokens, stats.all.answer_tokens), (3000, 4000));
    assert_eq!(stats.trend.iter().map(|bucket| bucket.requests).sum::<u64>(), 100);
    assert!(stats.trend[0].quality.unwrap() < stats.trend[5].quality.unwrap());
    let since_ms = Some(now - Duration::from_secs(600).as_millis() as i64);
    let recent = memory.witness().stats(&WitnessQuery { since_ms, ..WitnessQuery::default() }, 10).unwrap();
    assert_eq!((recent.all.requests, recent.all.errors), (10, 0));
    let none = memory.witness().stats(&WitnessQuery { model: Some("x".into()), ..WitnessQuery::default() }, 3).unwrap();
    assert_eq!((none.all.requests, none.trend.len()), (0, 3));
}

pub fn embeddings_of_another_model_are_refused(memory: &Memory) {
    assert_eq!(memory.embeddings().name().unwrap(), None);
    let standard = DimensionStats { centre: vec![0.1, -2e-9, 1.0 / 3.0], spread: vec![0.7, 1e-30, 5.0] };
    memory.embeddings().declare("minilm", Some(&standard)).unwrap();
    memory.embeddings().declare("minilm", None).unwrap();
    assert_eq!(memory.embeddings().dimension_stats().unwrap(), Some(standard), "the first stays");
    let error = memory.embeddings().declare("mpnet", None).unwrap_err();
    assert!(matches!(error, MemoryError::OtherEmbedding { .. }), "{error}");
    memory.record(&[trace(entry("r", 1, now_ms()))]).unwrap();
    memory.embeddings().clear().unwrap();
    assert_eq!(memory.embeddings().dimension_stats().unwrap(), None);
    memory.embeddings().declare("mpnet", None).unwrap();
    let verified = memory.witness().verify(&mut |_| {}).unwrap();
    assert!(verified.is_sound());
    assert_eq!((verified.entries, verified.vectors, verified.vectors_gone), (1, 0, 2));
    assert!(memory.recall(&vector(1, 0), &[], None, 5).unwrap().is_empty());
    // Shorter ones are filled up with zeros, which changes no angle.
    let mut short = entry("short", 1, now_ms());
    short.prompt_embedding = Some(vector(4, 0)[..384].to_vec());
    memory.record(&[trace(short)]).unwrap();
    let near = memory.recall(&vector(4, 0)[..384], &[Kind::Request], None, 1).unwrap();
    assert!(near[0].similarity > 0.99);
}

pub fn bad_input_is_refused_by_name(memory: &Memory) {
    let told = |result: Result<(), MemoryError>, field: &str| {
        let error = result.expect_err(field).to_string();
        assert!(error.starts_with(field), "{error}");
    };
    told(memory.policies().put(&Policy::new("", "a", json!({})), None), "type");
    told(memory.policies().put(&Policy::new("router", "with space", json!({})), None), "name");
    told(memory.policies().put(&Policy::new("router", "a", json!([1])), None), "parameters");
    let policy = Policy { confidence: f64::NAN, ..Policy::new("router", "a", json!({})) };
    told(memory.policies().put(&policy, None), "confidence");
    for name in ["", "a\nb", &"x".repeat(201)] {
        let turn = Some(turn("", name, "hello", 1));
        told(memory.record(&[Trace { witness: entry("r", 1, 1), turn, ..Trace::default() }]), "session");
    }
    let mut witness = entry("r", 1, 1);
    for wrong in [vec![f32::NAN; 768], vec![0.0; 768], vec![1.0; 769], vec![]] {
        witness.prompt_embedding = Some(wrong);
        assert!(matches!(memory.record(&[trace(witness.clone())]), Err(MemoryError::Vector(_))));
    }
    assert!(memory.recall(&[f32::INFINITY; 768], &[], None, 5).is_err());
    assert_eq!(memory.status().unwrap().entries, 0, "nothing was stored half");
    // Quotes and the like are data.
    let nasty = "'; DROP TABLE witness; -- \" \u{0} \u{1F600}";
    let mut witness = entry(&nasty.replace('\u{0}', ""), 1, now_ms());
    witness.entry.documents = vec![nasty.into()];
    memory.record(&[trace(witness)]).unwrap();
    assert_eq!(memory.witness().search(&WitnessQuery::default()).unwrap()[0].entry.documents, [nasty]);
}

pub fn a_jump_of_the_clock_forgets_nothing_at_once(memory: &Memory) {
    let (now, minute, hour) = (now_ms(), Duration::from_secs(60), Duration::from_secs(3600));
    let add = |name: &str| {
        let turn = Some(turn("", name, "hello", now));
        memory.record(&[Trace { witness: entry(name, 1, now), turn, ..Trace::default() }]).unwrap();
    };
    add("one");
    add("two");
    let days = |count: i64| count * 24 * HOUR_MS;
    // Forward by two months, back to 1970, and right again: a few minutes each.
    for wall_ms in [now, now + days(60), now + days(60), 0, 0, now] {
        let removed = memory.maintain_at(wall_ms, minute).unwrap();
        assert_eq!((removed.batches, removed.sessions), (0, 0), "at {wall_ms}");
    }
    // A session that begins while it is 1970 is not old the moment that the clock is right again.
    let turn = Some(turn("", "begun in 1970", "hello", 0));
    memory.record(&[Trace { witness: entry("of 1970", 1, 0), turn, ..Trace::default() }]).unwrap();
    assert_eq!(memory.maintain_at(now, minute).unwrap().sessions, 0);
    assert_eq!(memory.sessions().list(&SessionQuery::default()).unwrap().len(), 3);
    assert_eq!(memory.witness().search(&WitnessQuery::default()).unwrap().len(), 3, "found by their order");
    // If it goes on, it is believed: a day for each hour.
    let mut removed = 0;
    for _ in 0..24 * 60 / 24 + 2 {
        removed += memory.maintain_at(now + days(60), hour).unwrap().sessions;
    }
    assert_eq!(removed, 3);
    assert_eq!(memory.status().unwrap().entries, 1, "the newest batch stays");
    assert!(memory.witness().verify(&mut |_| {}).unwrap().is_sound());
}

/// Of a memory whose tenants may have 100 kB of sessions each.
pub fn the_sessions_of_a_tenant_stay_within_their_quota(memory: &Memory) {
    let now = now_ms();
    let names = |tenant: &str| {
        let query = SessionQuery { tenant: Some(tenant.into()), ..SessionQuery::default() };
        memory.sessions().list(&query).unwrap().into_iter().map(|session| session.name).collect::<Vec<_>>()
    };
    let add = |tenant: &str, name: &str, bytes: usize, at_ms| {
        let turn = Some(turn(tenant, name, &"x".repeat(bytes), at_ms));
        memory.record(&[Trace { witness: entry(name, 1, at_ms), turn, ..Trace::default() }]).unwrap();
    };
    add("acme", "theirs", 10_000, now);
    for at in 0..20 {
        add("globex", &format!("s{at}"), 10_000, now + 1 + at);
    }
    assert_eq!(names("globex"), ["s19", "s18", "s17", "s16"], "each has what was said and what was answered");
    assert_eq!(names("acme"), ["theirs"], "others' stay");
    add("globex", "alone", 200_000, now + 100);
    assert_eq!(names("globex"), ["alone"], "what is being said now stays in any case");
    assert!(memory.witness().verify(&mut |_| {}).unwrap().is_sound());
}

/// Of a memory that may have a megabyte.
pub fn sessions_make_room_as_entries_do(memory: &Memory) {
    let now = now_ms() - 1_000_000;
    for at in 0..40 {
        let name = format!("s{at}");
        let turn = Some(turn("", &name, &"x".repeat(50_000), now + at));
        let witness = ruvllm_memory::WitnessRecord { entry: entry(&name, 1, now).entry, ..Default::default() };
        memory
            .record(&[Trace {
                witness,
                turn: turn.map(|turn| ruvllm_memory::Turn { embedding: None, ..turn }),
                ..Trace::default()
            }])
            .unwrap();
    }
    let removed = memory.apply_retention(now_ms()).unwrap();
    assert!(removed.sessions > 0, "{removed:?}");
    let left = memory.sessions().list(&SessionQuery::default()).unwrap();
    assert!(!left.is_empty() && left.len() < 30, "{}", left.len());
    assert_eq!(left[0].name, "s39", "the oldest go first");
    assert!(left.iter().map(|session| session.bytes).sum::<usize>() <= 1_000_000);
    assert!(memory.witness().verify(&mut |_| {}).unwrap().is_sound());
}
