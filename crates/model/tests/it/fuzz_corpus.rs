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
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/adapter");
    let mut sound = 0;
    for entry in fs::read_dir(corpus).expect("a corpus") {
        let entry = entry.expect("a file");
        let name = entry.file_name().into_string().expect("a name");
        let opened = model::adapter::open_files(&fs::read(entry.path()).expect("readable"));
        match name.split_once('-').map_or(&*name, |(kind, _)| kind) {
            "found" => {}
            "refused" => drop(opened.expect_err(&name)),
            _ => {
                opened.unwrap_or_else(|error| panic!("{name}: {error}"));
                sound += 1;
            }
        }
    }
    assert!(sound >= 9, "seeds are missing");
}

/// Otherwise the fuzzer would begin with what is refused at once.
#[test]
fn the_fuzzers_folders_are_what_their_names_say() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/hugging_face");
    let mut sound = 0;
    for entry in fs::read_dir(corpus).expect("a corpus") {
        let entry = entry.expect("a file");
        let name = entry.file_name().into_string().expect("a name");
        let opened = model::hugging_face::open_files(&fs::read(entry.path()).expect("readable"));
        match name.split_once('-').map_or(&*name, |(kind, _)| kind) {
            "found" => {}
            "refused" => drop(opened.expect_err(&name)),
            _ => {
                opened.unwrap_or_else(|error| panic!("{name}: {error}"));
                sound += 1;
            }
        }
    }
    assert!(sound >= 12, "seeds are missing");
}
