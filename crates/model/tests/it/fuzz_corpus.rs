//! What the fuzzer knows to reach code, or has once found, on every run of the tests.

#[path = "../../../../fuzz/src/model/mod.rs"]
mod model;

use std::fs;
use std::path::Path;

use crate::replay::replay;

#[test]
fn files_are_refused_or_sound() {
    replay("gguf", model::gguf::run);
}

#[test]
fn folders_are_refused_or_sound() {
    replay("hugging_face", model::hugging_face::run);
}

#[test]
fn adapters_are_refused_or_sound() {
    replay("adapter", model::adapter::run);
}

#[test]
fn the_fuzzers_adapters_are_what_their_names_say() {
    check_names("adapter", 9, |bytes| model::adapter::open_files(bytes).map(drop).map_err(|error| error.to_string()));
}

#[test]
fn the_fuzzers_folders_are_what_their_names_say() {
    let open = |bytes: &[u8]| model::hugging_face::open_files(bytes).map(drop).map_err(|error| error.to_string());
    check_names("hugging_face", 12, open);
}

/// Checks that a corpus has at least so many inputs that can be opened: otherwise the fuzzer would begin with what is refused at
/// once.
fn check_names(target: &str, sound_min: usize, open: impl Fn(&[u8]) -> Result<(), String>) {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(target);
    let mut sound = 0;
    for entry in fs::read_dir(corpus).expect("a corpus") {
        let entry = entry.expect("a file");
        let name = entry.file_name().into_string().expect("a name");
        let opened = open(&fs::read(entry.path()).expect("readable"));
        match name.split_once('-').map_or(&*name, |(kind, _)| kind) {
            "found" => {}
            "refused" => drop(opened.expect_err(&name)),
            _ => {
                opened.unwrap_or_else(|error| panic!("{name}: {error}"));
                sound += 1;
            }
        }
    }
    assert!(sound >= sound_min, "seeds are missing");
}
