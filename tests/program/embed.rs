//! `ruvllm embed` and the other commands with a model for embeddings: the real program, the real model.

use crate::support;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use crate::support::minilm;
use serde_json::Value;

fn ruvllm(arguments: &[&str]) -> Output {
    ruvllm_reading(arguments, "")
}

fn ruvllm_reading(arguments: &[&str], input: &str) -> Output {
    minilm();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ruvllm"));
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    // Whoever fails before reading does not take it.
    let _ = child.stdin.take().expect("standard input").write_all(input.as_bytes());
    child.wait_with_output().expect("it ends")
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).expect("text")
}

fn stderr(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr.clone()).expect("text")
}

fn vectors(text: &str) -> Vec<Vec<f32>> {
    text.lines().map(|line| serde_json::from_str(line).expect("an array")).collect()
}

#[test]
fn each_text_becomes_a_line_with_its_vector_wherever_it_comes_from() {
    let by_arguments = stdout(&ruvllm(&["embed", "minilm", "A cat.", "A car."]));
    let found = vectors(&by_arguments);
    assert_eq!(found.iter().map(Vec::len).collect::<Vec<_>>(), [384, 384]);
    let length: f32 = found[0].iter().map(|value| value * value).sum();
    assert!((length - 1.0).abs() < 1e-5, "{length}");
    let by_input = stdout(&ruvllm_reading(&["embed", "minilm"], "A cat.\nA car.\n"));
    assert_eq!(by_input, by_arguments);
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "A cat.\r\nA car.").expect("written");
    let path = file.path().to_str().expect("a path");
    assert_eq!(stdout(&ruvllm(&["embed", "minilm", "--file", path])), by_arguments);
}

#[test]
fn json_tells_counts_beside_the_vectors() {
    let answer = stdout(&ruvllm(&["embed", "all-minilm-l6-v2", "--json", "hello world"]));
    let answer: Value = serde_json::from_str(&answer).expect("one object");
    assert_eq!((&answer["dimensions"], &answer["tokens"]), (&384.into(), &4.into()));
    assert_eq!(answer["embeddings"][0]["embedding"].as_array().expect("a vector").len(), 384);
}

#[test]
fn similar_texts_are_told_by_a_table() {
    let texts = ["a cat on a mat", "a kitten on a rug", "the tax declaration of 2021"];
    let arguments = [&["embed", "minilm", "--similarity", "--json"][..], &texts].concat();
    let answer: Value = serde_json::from_str(&stdout(&ruvllm(&arguments))).expect("one object");
    let value = |a: usize, b: usize| answer["similarity"][a][b].as_f64().expect("a number");
    assert!((value(0, 0) - 1.0).abs() < 1e-4);
    assert!(value(0, 1) > value(0, 2) + 0.3, "{answer}");
    let table = stdout(&ruvllm(&[&["embed", "minilm", "--similarity"][..], &texts].concat()));
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(table.contains("1 a cat on a mat") && table.contains("1.000"), "{table}");
}

#[test]
fn texts_that_cannot_be_embedded_are_told_by_their_number() {
    let long = "word ".repeat(300);
    let said = stderr(&ruvllm(&["embed", "minilm", "short", &long]));
    assert!(said.contains("text 2 has 302 tokens") && said.contains("--truncate"), "{said}");
    let output = ruvllm(&["embed", "minilm", "--truncate", "short", &long]);
    assert_eq!(vectors(&stdout(&output)).len(), 2);
    assert!(String::from_utf8_lossy(&output.stderr).contains("46 tokens were dropped"));
    let said = stderr(&ruvllm_reading(&["embed", "minilm"], "one\n\nthree\n"));
    assert!(said.contains("text 2 is empty"), "{said}");
    let said = stderr(&ruvllm_reading(&["embed", "minilm"], ""));
    assert!(said.contains("there is no text"), "{said}");
}

#[test]
fn models_of_the_other_kind_are_refused_with_what_would_be_right() {
    support::smollm2();
    let said = stderr(&ruvllm(&["embed", "smollm2", "text"]));
    assert!(said.contains("generates text") && said.contains("minilm"), "{said}");
    let said = stderr(&ruvllm(&["run", "minilm", "text"]));
    assert!(said.contains("ruvllm embed"), "{said}");
}

#[test]
fn the_other_commands_know_models_of_several_files() {
    let shown = stdout(&ruvllm(&["show", "minilm", "--verify"]));
    for expected in ["bert", "384", "candle", "1_Pooling/config.json (checked)", "tokenizer.json (checked)"] {
        assert!(shown.contains(expected), "{expected} in\n{shown}");
    }
    let shown: Value = serde_json::from_str(&stdout(&ruvllm(&["show", "minilm", "--json"]))).expect("one object");
    assert_eq!(shown["files"].as_array().expect("files").len(), 5);
    let listed: Value = serde_json::from_str(&stdout(&ruvllm(&["list", "--json"]))).expect("one object");
    let models = listed["models"].as_array().expect("models");
    let minilm = models.iter().find(|model| model["name"] == "minilm").expect("it is listed");
    assert!(minilm["bytes"].as_u64().expect("a number") > 90_868_376, "{minilm}");
    let pulled: Value = serde_json::from_str(&stdout(&ruvllm(&["pull", "minilm", "--json"]))).expect("one object");
    assert_eq!(pulled["bytes"], minilm["bytes"]);
    let tokens = stdout(&ruvllm(&["tokenize", "minilm", "Embeddings"]));
    assert!(tokens.contains("##bed"), "{tokens}");
}
