//! What each fuzz target does with its bytes: nothing may panic, overflow the stack, or take long or much memory.
//!
//! Here are plain functions without a fuzzer, so that the tests of each crate can include its folder and replay the corpora
//! (`replay.rs`). A target in `fuzz_targets/` only calls one of them.

pub mod cli;
pub mod kv;
pub mod memory;
pub mod model;
pub mod packs;
pub mod server;
pub mod store;
pub mod text;

use std::collections::HashSet;
use std::panic;
use std::sync::{Mutex, PoisonError};

/// Lets the product catch panics of the crates that it fences in, which the fuzzer would take for findings. One that nothing
/// catches still ends the target. Tells of each place once.
pub fn allow_fenced_panics() {
    let told = Mutex::new(HashSet::new());
    panic::set_hook(Box::new(move |info| {
        let place = info.location().map(ToString::to_string);
        if told.lock().unwrap_or_else(PoisonError::into_inner).insert(place) {
            eprintln!("{info}");
        }
    }));
}
