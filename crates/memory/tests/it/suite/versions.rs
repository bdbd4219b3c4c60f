//! Versions that were learned, whatever database the memory is in.

use ruvllm_memory::{
    Forget, LearnedScope, LearnedVersion, Memory, MemoryError, NewVersion, Said, ScopeState, VersionState,
    WitnessQuery, now_ms,
};
use serde_json::json;

use super::learning::{exported, learned, verified};

fn scope(tenant: &str, user: Option<&str>) -> LearnedScope {
    LearnedScope { tenant: tenant.into(), user: user.map(Into::into), model: "smollm2".into() }
}

fn version(digit: &str, parent: i64, requests: &[&str]) -> NewVersion {
    NewVersion {
        router: None,
        adapter: digit.repeat(64),
        bytes: 7,
        model_digest: "0a".repeat(32),
        parent,
        requests: requests.iter().map(|request| (*request).into()).collect(),
        users: vec!["ada".into()],
        items: vec!["i".into()],
        report: json!({ "loss": 1.5 }),
    }
}

fn add(memory: &Memory, scope: &LearnedScope, new: &NewVersion, promotes: bool) -> i64 {
    memory.learning().add_version(scope, new, (promotes, now_ms()), "learn@1").unwrap()
}

fn state(memory: &Memory, scope: &LearnedScope) -> (i64, Vec<i64>) {
    let ScopeState { version, trail, .. } = memory.learning().scope_state(scope).unwrap();
    (version, trail)
}

fn states(memory: &Memory, scope: &LearnedScope) -> Vec<VersionState> {
    memory.learning().versions(scope).unwrap().into_iter().map(|LearnedVersion { state, .. }| state).collect()
}

fn problem(outcome: Result<impl std::fmt::Debug, MemoryError>) -> String {
    outcome.unwrap_err().to_string()
}

/// What the log says was done, the oldest first.
fn actions(memory: &Memory) -> Vec<String> {
    let all = exported(memory).into_iter().filter(|line| line["kind"] == "learning");
    all.map(|line| format!("{} {} {}", line["action"].as_str().unwrap(), line["before"], line["version"])).collect()
}

pub fn versions_are_promoted_rolled_back_and_forced(memory: &Memory) {
    let (learning, acme) = (memory.learning(), scope("acme", None));
    assert_eq!((state(memory, &acme), learning.versions(&acme).unwrap().len()), ((0, vec![]), 0));
    assert!(problem(learning.roll_back(&acme, "me")).contains("nothing was served before"));
    let before = learning.served_change().unwrap();
    assert_eq!(add(memory, &acme, &version("a", 0, &["r1"]), true), 1);
    assert_ne!(learning.served_change().unwrap(), before);
    assert!(
        problem(learning.add_version(&acme, &version("b", 0, &[]), (true, 0), "me")).contains("version 1 is served")
    );
    assert_eq!(add(memory, &acme, &version("b", 1, &["r2"]), false), 2);
    assert_eq!(add(memory, &acme, &version("c", 1, &["r3"]), true), 3);
    assert_eq!(state(memory, &acme), (3, vec![0, 1]));
    let found = learning.versions(&acme).unwrap().remove(1);
    assert_eq!((found.version, found.state, found.body), (2, VersionState::Refused, version("b", 1, &["r2"])));

    assert!(problem(learning.promote(&acme, 2, false, "me")).contains("--force"));
    assert!(problem(learning.promote(&acme, 9, true, "me")).contains("there is no version \"9\""));
    learning.promote(&acme, 2, true, "me").unwrap();
    assert!(problem(learning.promote(&acme, 2, false, "me")).contains("served already"));
    assert_eq!(states(memory, &acme), [VersionState::Promoted, VersionState::Forced, VersionState::Promoted]);
    let served = learning.served_versions().unwrap();
    assert_eq!((served.len(), served[0].version, &served[0].adapter), (1, 2, &"b".repeat(64)));
    assert_eq!((learning.roll_back(&acme, "me").unwrap(), state(memory, &acme)), (3, (3, vec![0, 1])));
    learning.reset(&acme, "me").unwrap();
    assert!(learning.served_versions().unwrap().is_empty());
    assert!(problem(learning.reset(&acme, "me")).contains("already"));
    assert_eq!((learning.roll_back(&acme, "me").unwrap(), learning.roll_back(&acme, "me").unwrap()), (3, 1));

    // Other scopes are not touched.
    let ada = scope("acme", Some("ada"));
    assert_eq!(add(memory, &ada, &version("d", 0, &[]), true), 1);
    assert_eq!((state(memory, &acme).0, state(memory, &scope("globex", None)).0), (1, 0));
    assert_eq!(
        actions(memory),
        [
            "promoted 0 1",
            "promoted 1 3",
            "forced 3 2",
            "rolled_back 2 3",
            "reset 3 0",
            "rolled_back 0 3",
            "rolled_back 3 1",
            "promoted 0 1"
        ]
    );
    assert_eq!(verified(memory).entries, 8);
    assert!(memory.witness().search(&WitnessQuery::default()).unwrap().is_empty(), "they are no requests");
}

pub fn versions_that_were_learned_from_what_is_forgotten_are_withdrawn(memory: &Memory) {
    let now = now_ms();
    let requests = [("r1", "ada"), ("r2", "bob"), ("r3", "ada")];
    memory.record(&requests.map(|(request, user)| learned(request, "acme", user, now))).unwrap();
    let (learning, acme, ada) = (memory.learning(), scope("acme", None), scope("acme", Some("ada")));
    for (parent, digit, requests) in [(0, "a", &["r2"][..]), (1, "b", &["r2", "r3"]), (2, "c", &["r1", "r3"])] {
        add(memory, &acme, &NewVersion { users: Vec::new(), ..version(digit, parent, requests) }, true);
    }
    add(memory, &ada, &version("d", 0, &["r1", "r3"]), true);
    assert_eq!(learning.version_adapters().unwrap().len(), 4);

    let request = Forget::Request { tenant: None, id: "r3".into() };
    assert_eq!(learning.forget(&request, "me").unwrap().versions, 3);
    let withdrawn = VersionState::Withdrawn;
    assert_eq!(states(memory, &acme), [VersionState::Promoted, withdrawn, withdrawn]);
    assert_eq!((state(memory, &acme), state(memory, &ada)), ((1, vec![0]), (0, vec![])));
    assert_eq!(learning.version_adapters().unwrap(), ["a".repeat(64)].into());
    assert!(problem(learning.promote(&acme, 3, true, "me")).contains("was forgotten"));
    let left = learning.versions(&acme).unwrap().remove(2).body;
    assert!(left.requests.is_empty() && left.items.is_empty() && left.report["loss"] == 1.5, "figures stay");
    // A training that had read it before it was forgotten comes too late.
    let late = learning.add_version(&acme, &version("e", 1, &["r3"]), (true, now), "me");
    assert!(problem(late).contains("was forgotten"));

    // Whoever is forgotten is forgotten by name, too.
    assert_eq!(add(memory, &ada, &version("f", 0, &[]), true), 2);
    assert_eq!(learning.forget(&Forget::User { tenant: None, name: "ada".into() }, "me").unwrap().versions, 1);
    assert!(learning.versions(&ada).unwrap().is_empty() && state(memory, &acme).0 == 1);
    let told: String = exported(memory).iter().map(ToString::to_string).collect();
    assert!(!told.contains("\"ada\""), "{told}");
    assert_eq!(learning.forget(&Forget::Tenant("acme".into()), "me").unwrap().versions, 1);
    assert!(learning.versions(&acme).unwrap().is_empty() && learning.served_versions().unwrap().is_empty());
    verified(memory);
}

pub fn changes_are_annotations_that_name_the_adapter(memory: &Memory) {
    let acme = scope("acme", Some("ada"));
    add(memory, &acme, &version("a", 0, &[]), true);
    let lines = exported(memory);
    let line = &lines[0];
    assert_eq!((&line["tenant"], &line["user"], &line["model"]), (&json!("acme"), &json!("ada"), &json!("smollm2")));
    assert_eq!((&line["request"], &line["adapter"]), (&json!("learn@1"), &json!("a".repeat(64))));
    let said: Said = serde_json::from_value(line.clone()).unwrap();
    assert!(matches!(said, Said::Learning(change) if change.action == "promoted" && change.version == 1));
}
