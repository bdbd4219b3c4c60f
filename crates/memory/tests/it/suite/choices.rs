//! Choices between models, whatever database the memory is in.

use ruvllm_memory::{
    ChoiceOutcome, Feedback, Forget, LearnedScope, Memory, ModelChoice, NewVersion, ROUTER_MODEL, Trace, now_ms,
};
use serde_json::json;

use super::learning::verified;
use crate::support::{entry, feedback, of_tenant, trace};

fn chosen(request: &str, tenant: &str) -> Trace {
    let mut witness = of_tenant(entry(request, 1, now_ms()), tenant);
    witness.entry.routing.probabilities = [("small".into(), 0.9), ("large".into(), 0.1)].into();
    let choice = ModelChoice { by: "bandit/7".into(), default: "small".into(), features: "1.AAAA".into() };
    witness.entry.routing.choice = Some(choice);
    trace(witness)
}

fn requests(found: &[ChoiceOutcome]) -> Vec<&str> {
    found.iter().map(|one| one.entry.request.as_str()).collect()
}

pub fn choices_are_found_by_tenant_with_what_came_of_them(memory: &Memory) {
    let learning = memory.learning();
    let mark = learning.changes_mark().unwrap();
    let plain = trace(of_tenant(entry("plain", 1, now_ms()), "acme"));
    let mut again = chosen("again", "acme");
    again.witness.entry.regenerates = Some("c2".into());
    memory.record(&[chosen("c1", "acme"), plain, chosen("c2", "acme"), chosen("other", "globex"), again]).unwrap();
    let score = |score| Feedback { score: Some(score), ..Feedback::default() };
    for (tenant, about, said) in
        [("acme", "c1", score(-1.0)), ("acme", "c1", score(0.5)), ("globex", "c2", score(-1.0))]
    {
        learning.annotate(&feedback(tenant, about, said)).unwrap();
    }
    let found = learning.choices("acme", 10).unwrap();
    assert_eq!(requests(&found), ["c1", "c2", "again"]);
    assert_eq!(found[0].choice.by, "bandit/7");
    assert_eq!(found[0].entry.routing.probabilities["large"], 0.1);
    let said: Vec<Option<f64>> = found.iter().map(|one| one.feedback.as_ref()?.score).collect();
    assert_eq!(said, [Some(0.5), None, None], "the last counts, and only what its own tenant says");
    assert_eq!(found.iter().map(|one| one.is_asked_again).collect::<Vec<_>>(), [false, true, false]);
    assert_eq!(requests(&learning.choices("acme", 2).unwrap()), ["c2", "again"], "the newest");
    assert!(learning.choices("nobody", 10).unwrap().is_empty());

    let changes = learning.choice_changes(mark).unwrap();
    assert_eq!((changes.tenants, changes.has_forgotten), (["acme".into(), "globex".into()].into(), false));
    assert!(learning.choice_changes(changes.mark).unwrap().tenants.is_empty());
    learning.forget(&Forget::Request { tenant: Some("acme".into()), id: "c1".into() }, "me").unwrap();
    assert!(learning.choice_changes(changes.mark).unwrap().has_forgotten);
    assert_eq!(requests(&learning.choices("acme", 10).unwrap()), ["c2", "again"]);
    verified(memory);
}

pub fn a_router_is_a_version_that_goes_with_what_it_was_learned_from(memory: &Memory) {
    let learning = memory.learning();
    memory.record(&[chosen("c1", "acme")]).unwrap();
    let scope = LearnedScope { tenant: "acme".into(), user: None, model: ROUTER_MODEL.into() };
    let new = NewVersion {
        adapter: "a".repeat(64),
        router: Some(json!({ "weights": [1.5] })),
        requests: vec!["c1".into()],
        ..NewVersion::default()
    };
    assert_eq!(learning.add_version(&scope, &new, (true, now_ms()), "me").unwrap(), 1);
    let served = learning.served_routers().unwrap();
    assert_eq!((served.len(), &*served[0].tenant, served[0].version), (1, "acme", 1));
    assert_eq!(served[0].router, json!({ "weights": [1.5] }));
    assert!(learning.served_versions().unwrap().is_empty(), "it is no adapter");
    assert!(learning.version_adapters().unwrap().is_empty());
    learning.forget(&Forget::Request { tenant: None, id: "c1".into() }, "me").unwrap();
    assert!(learning.served_routers().unwrap().is_empty());
    assert_eq!(learning.versions(&scope).unwrap()[0].body.router, None, "nor are its weights kept");
}
