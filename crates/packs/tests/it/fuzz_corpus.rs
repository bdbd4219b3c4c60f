//! What the fuzzer knows to reach code, or has once found, on every run of the tests.

#[path = "../../../../fuzz/src/packs/mod.rs"]
mod packs;

use crate::replay::replay;

#[test]
fn packs_are_refused_or_sound() {
    replay("kernel_pack", packs::kernel_pack::run);
}
