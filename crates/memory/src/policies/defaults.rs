//! Policies for a start without experience. A stored one of the same type and name takes their place.

use serde_json::json;

use super::{Policy, PolicySource};

/// By type and name.
pub fn defaults() -> Vec<Policy> {
    let all = [
        // How much what was learned before is held on to while learning.
        ("ewc", "default", json!({ "lambda": 1000.0 }), 0.5),
        ("kernel", "default", json!({ "set": "detected" }), 1.0),
        // From which similarity on a past request counts as like a new one.
        ("pattern", "default", json!({ "similarity_min": 0.6, "neighbours": 3 }), 0.5),
        ("quantization", "default", json!({ "kv": "auto" }), 0.8),
        // Says nothing, so that requests are answered as without a memory.
        ("router", "default", json!({}), 0.5),
    ];
    let policy = |(kind, name, parameters, confidence)| Policy {
        confidence,
        source: PolicySource::Default,
        ..Policy::new(kind, name, parameters)
    };
    all.into_iter().map(policy).collect()
}
