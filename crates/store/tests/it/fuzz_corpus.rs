//! What the fuzzer knows to reach code, or has once found, on every run of the tests.

#[path = "../../../../fuzz/src/store/mod.rs"]
mod store;

use crate::replay::replay;

#[test]
fn manifests_are_refused_or_stay_in_their_folder() {
    replay("manifest", store::manifest::run);
}
