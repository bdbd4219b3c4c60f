//! What was computed outlives the process, however that ends, and damage to it costs time and nothing else.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use crate::server::{Server, start};
use crate::support::{home, smollm2};
use serde_json::{Value, json};

/// About 2,000 tokens of instructions.
fn system() -> &'static str {
    &include_str!("../data/essays.txt")[..9500]
}

const QUESTION: &str = "What is the first essay about?";

/// The command line of both: chats, and answers to one question.
fn arguments(folder: &Path) -> Vec<&str> {
    let folder = folder.to_str().expect("UTF-8");
    vec!["run", "smollm2", "--system", system(), "--temperature", "0", "-n", "24", "--kv-disk", folder]
}

fn ruvllm(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ruvllm")).args(arguments).output().expect("the program starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

/// The answer to the question, what was loaded for it from disk, and what was said beside it.
fn answer(folder: &Path) -> (String, u64, String) {
    let output = ruvllm(&[&arguments(folder)[..], &["--json", QUESTION]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let answer: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    let loaded = answer["usage"]["prompt_tokens_details"]["loaded_tokens"].as_u64().expect("a count");
    (answer["text"].as_str().expect("a text").to_owned(), loaded, stderr(&output))
}

/// The files of pages, from the one that was not used for longest.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let shelves = fs::read_dir(folder).expect("a folder").flatten();
    let mut files: Vec<PathBuf> = shelves
        .flat_map(|shelf| fs::read_dir(shelf.path()).expect("a shelf").flatten().map(|file| file.path()))
        .collect();
    files.sort_by_key(|file| file.metadata().and_then(|data| data.modified()).expect("files have times"));
    files
}

#[test]
fn a_chat_that_was_killed_is_found_again() {
    smollm2();
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/killed_chat.py");
    let path = folder.to_str().expect("UTF-8");
    let mut chat = Command::new("python3");
    chat.args([script, path, QUESTION, env!("CARGO_BIN_EXE_ruvllm")]).args(arguments(folder));
    let chat = chat.output().expect("python3 runs");
    assert!(chat.status.success(), "{}", stderr(&chat));
    let terminal = String::from_utf8(chat.stdout).expect("UTF-8");
    let written = pages(folder);

    let (text, loaded, remarks) = answer(folder);
    assert!(loaded >= 1900, "{loaded} tokens were loaded");
    assert!(text.len() > 40 && terminal.contains(&text), "{text:?} is not in {terminal:?}");
    assert_eq!(remarks, "");

    // Pages are written in the order of the text, so this one is in its middle.
    let damaged = &written[written.len() / 2];
    let mut bytes = fs::read(damaged).expect("it is there");
    bytes[1000] ^= 1;
    fs::write(damaged, bytes).expect("it can be written");
    let (after_damage, loaded, remarks) = answer(folder);
    assert_eq!(after_damage, text);
    assert!((800..1200).contains(&loaded), "{loaded} tokens were loaded");
    let name = damaged.file_name().and_then(|name| name.to_str()).expect("UTF-8");
    assert!(remarks.starts_with("warning: ") && remarks.contains(name) && remarks.contains("was changed"), "{remarks}");
    assert_eq!(remarks.lines().count(), 1, "{remarks}");

    let (again, loaded, remarks) = answer(folder);
    assert_eq!((again, remarks), (text, String::new()), "what was damaged is computed and saved again");
    assert!(loaded >= 1900, "{loaded} tokens were loaded");
}

#[test]
fn another_server_goes_on_with_what_one_has_computed() {
    let (home, folder) = (home(), tempfile::tempdir().expect("a folder"));
    let path = folder.path().to_str().expect("UTF-8");
    let arguments = ["smollm2", "--context", "4096", "--no-memory", "--kv-disk", path];
    // Both look at the folder while it is empty.
    let servers = [start(&home, &arguments), start(&home, &arguments)];
    let messages = json!([{ "role": "system", "content": system() }, { "role": "user", "content": QUESTION }]);
    let body = json!({ "model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": 24 });
    let ask = |server: &Server| {
        let (status, answer) = server.post("/v1/chat/completions", "", &body);
        assert_eq!(status, 200, "{answer}");
        let usage = &answer["usage"];
        let tokens = (usage["prompt_tokens"].as_u64(), usage["prompt_tokens_details"]["cached_tokens"].as_u64());
        (answer["choices"][0]["message"]["content"].clone(), tokens)
    };
    let (text, tokens) = ask(&servers[0]);
    let (Some(prompt), Some(0)) = tokens else { panic!("{tokens:?}") };
    let began = Instant::now();
    while pages(folder.path()).len() < prompt as usize / 16 {
        assert!(began.elapsed() < Duration::from_secs(60), "not all pages are written");
        thread::sleep(Duration::from_millis(20));
    }
    let (moved, tokens) = ask(&servers[1]);
    assert_eq!(moved, text);
    let cached = tokens.1.expect("a count");
    assert!(cached + 16 >= prompt, "{cached} of {prompt} tokens were found");
}

#[test]
fn folders_and_sizes_that_cannot_be_used_are_told_with_their_flag() {
    smollm2();
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    fs::write(&file, b"").expect("written");
    let (folder, file) = (folder.path().to_str().expect("UTF-8"), file.to_str().expect("UTF-8"));
    // Nothing can be written to the second, not even by an administrator.
    for (flags, told) in [
        (vec!["--kv-disk", file], ["--kv-disk needs a folder", file]),
        (vec!["--kv-disk", "/proc/self"], ["--kv-disk needs a folder", "/proc/self"]),
        (vec!["--kv-disk", folder, "--kv-disk-size", "1000"], ["--kv-disk-size", "1000 bytes are too few"]),
        (vec!["--kv-disk", folder, "--kv-disk-size", "0"], ["--kv-disk-size", "such as 512M"]),
        (vec!["--kv-disk", folder, "--kv-disk-size", "banana"], ["--kv-disk-size", "such as 512M"]),
        (vec!["--kv-disk-size", "1G"], ["--kv-disk <FOLDER>", "required"]),
    ] {
        let output = ruvllm(&[&["run", "smollm2", "hi", "-n", "1", "-c", "64"], &flags[..]].concat());
        let message = stderr(&output);
        assert!(!output.status.success() && message.starts_with("error: "), "{flags:?}: {message}");
        assert!(told.iter().all(|part| message.contains(part)), "{flags:?}: {message}");
        assert!(!message.contains("panicked"), "{message}");
    }
}
