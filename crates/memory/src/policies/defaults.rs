//! Built-in policies. A stored one of the same type and name replaces them.

use serde_json::json;

use super::{Policy, PolicySource};

/// Returns the built-in policies by type and name.
pub fn defaults() -> Vec<Policy> {
    // Empty, so that requests are answered as without a memory.
    let router = Policy::new("router", "default", json!({}));
    vec![Policy { confidence: 0.5, source: PolicySource::Default, ..router }]
}
