//! Built-in policies. A stored one of the same type and name replaces them.

use serde_json::json;

use super::{Policy, PolicySource};

/// Returns the built-in policies by type and name.
pub fn defaults() -> Vec<Policy> {
    let all = [
        // How strongly learning holds on to what was learned before.
        ("ewc", "default", json!({ "lambda": 1000.0 }), 0.5),
        ("kernel", "default", json!({ "set": "detected" }), 1.0),
        // From which similarity on an earlier request is linked to a new one, and to how many.
        ("pattern", "default", json!({ "similarity_min": 0.6, "neighbours": 3 }), 0.5),
        ("quantization", "default", json!({ "kv": "auto" }), 0.8),
        // Empty, so that requests are answered as without a memory.
        ("router", "default", json!({}), 0.5),
    ];
    let policy = |(kind, name, parameters, confidence)| Policy {
        confidence,
        source: PolicySource::Default,
        ..Policy::new(kind, name, parameters)
    };
    all.into_iter().map(policy).collect()
}
