//! `POST /v1/rerank` and `ruvllm rerank`: the real program with a tiny random cross-encoder. What it computes is compared with
//! transformers in `crates/backends/tests/it/rerank.rs`.

use crate::support;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::server::{Server, start};
use crate::support::minilm;
use serde_json::{Value, json};
use tempfile::TempDir;

const LONG: &str = "the harbour was quiet and the ships carried tea and coal while the river ran past ";

fn model_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/rerank/bert/model.safetensors")
}

/// A home folder, and a server with the model and its name there.
fn started(others: &[&str]) -> (TempDir, Server, String) {
    minilm();
    let home = support::home();
    let path = model_path();
    let server = start(&home, &[&[path.to_str().expect("a path")], others].concat());
    let loaded = server.get_json("/admin/models");
    let models = loaded["models"].as_array().expect("models").clone();
    let names = models.iter().map(|model| model["name"].as_str().expect("a name").to_owned());
    let name = names.into_iter().find(|name| !others.contains(&&**name)).expect("the model is loaded");
    (home, server, name)
}

fn rerank(server: &Server, path: &str, body: &Value) -> Value {
    let (status, answer) = server.post(path, "", body);
    assert_eq!(status, 200, "{answer}");
    answer
}

#[test]
fn documents_are_answered_in_the_order_of_their_scores() {
    let (_home, server, model) = started(&[]);
    let documents = json!(["ice", { "text": "who wrote it", "title": "b" }, "nobody can say", "ice"]);
    let body = json!({ "model": model, "query": "who wrote this letter", "documents": documents });
    let answer = rerank(&server, "/v1/rerank", &body);
    assert!(answer["id"].as_str().expect("an id").starts_with("rerank-"), "{answer}");
    assert_eq!(answer["model"], json!(model));
    let results = answer["results"].as_array().expect("results");
    assert_eq!(results.len(), 4);
    let scores: Vec<f64> = results.iter().map(|one| one["relevance_score"].as_f64().expect("a number")).collect();
    assert!(scores.is_sorted_by(|a, b| a >= b) && scores.iter().all(|score| (0.0..=1.0).contains(score)), "{answer}");
    for result in results {
        let (logit, score) = (result["logit"].as_f64().expect("a number"), result["relevance_score"].as_f64());
        assert!((score.expect("a number") - 1.0 / (1.0 + (-logit).exp())).abs() < 1e-6, "{result}");
        let document = &documents[result["index"].as_u64().expect("an index") as usize];
        let expected = if document.is_string() { json!({ "text": document }) } else { document.clone() };
        assert_eq!(result["document"], expected);
    }
    let place = |index: u64| results.iter().position(|one| one["index"] == index).expect("it is there");
    assert_eq!(place(3), place(0) + 1, "of equals the first comes first: {answer}");
    let tokens = answer["usage"]["prompt_tokens"].as_u64().expect("a count");
    assert!(tokens > 40, "{answer}");
    assert_eq!(answer["usage"], json!({ "prompt_tokens": tokens, "total_tokens": tokens }));
    let meta = json!({ "api_version": { "version": "2" }, "billed_units": { "search_units": 1 },
                       "tokens": { "input_tokens": tokens, "output_tokens": 0 } });
    assert_eq!(answer["meta"], meta);
    assert_eq!(rerank(&server, "/rerank", &body)["results"], answer["results"]);
    let without = rerank(&server, "/v2/rerank", &body);
    let with_top = json!({ "model": model, "query": "who wrote this letter", "documents": documents, "top_n": 2,
                           "return_documents": false, "rank_fields": ["title"], "max_chunks_per_doc": 3 });
    let two = rerank(&server, "/v1/rerank", &with_top);
    for (index, result) in two["results"].as_array().expect("results").iter().enumerate() {
        assert_eq!((result, result.get("document")), (&without["results"][index], None));
    }
    assert_eq!(two["results"].as_array().expect("results").len(), 2);
}

#[test]
fn what_is_cut_is_named() {
    let (_home, server, model) = started(&[]);
    let body = json!({ "model": model, "query": "ice", "documents": ["ice", LONG.repeat(5)] });
    let answer = rerank(&server, "/v1/rerank", &body);
    let cut = |result: &Value| result["truncated_tokens"].as_u64();
    let results = answer["results"].as_array().expect("results");
    let long = results.iter().find(|one| one["index"] == 1).expect("it is there");
    assert!(cut(long).expect("a count") > 50, "{answer}");
    assert_eq!(answer["usage"]["truncated_tokens"].as_u64(), cut(long));
    assert!(answer["meta"]["warnings"][0].as_str().expect("a warning").starts_with("1 documents were too long"));
    let mut limited = body.clone();
    limited["max_tokens_per_doc"] = json!(4);
    assert!(rerank(&server, "/v1/rerank", &limited)["usage"]["truncated_tokens"].as_u64() > cut(long));
    for field in ["truncate", "truncation"] {
        let mut refusing = body.clone();
        refusing[field] = json!(false);
        let (status, answer) = server.post("/v1/rerank", "", &refusing);
        assert_eq!((status, answer["error"]["param"].as_str()), (400, Some("documents[1]")), "{answer}");
        assert_eq!(answer["error"]["code"], "context_length_exceeded");
    }
}

#[test]
fn what_is_wrong_is_told_with_its_field() {
    let (_home, server, model) = started(&["minilm"]);
    let good = json!({ "model": model, "query": "ice", "documents": ["ice"] });
    let with = |field: &str, value: Value| {
        let mut body = good.clone();
        body[field] = value;
        body
    };
    for (body, status, param) in [
        (json!({ "model": model, "query": "ice" }), 400, "documents"),
        (json!({ "model": model, "documents": ["ice"] }), 400, "query"),
        (with("query", json!("")), 400, "query"),
        (with("query", json!(["ice"])), 400, "query"),
        (with("documents", json!([])), 400, "documents"),
        (with("documents", json!("ice")), 400, "documents"),
        (with("documents", json!(vec!["ice"; 1001])), 400, "documents"),
        (with("documents", json!(vec!["ice"; 10_001])), 400, "documents"),
        (with("documents", json!(["ice", ""])), 400, "documents[1]"),
        (with("documents", json!(["ice", 5])), 400, "documents[1]"),
        (with("documents", json!(["ice", null])), 400, "documents[1]"),
        (with("documents", json!(["ice", { "image": "x" }])), 400, "documents[1].text"),
        (with("documents", json!(["ice", { "text": 5 }])), 400, "documents[1].text"),
        (with("top_n", json!(0)), 400, "top_n"),
        (with("top_n", json!(-1)), 400, "top_n"),
        (with("max_tokens_per_doc", json!(0)), 400, "max_tokens_per_doc"),
        (with("return_documents", json!("yes")), 400, "return_documents"),
        (with("return_document", json!(true)), 400, "return_document"),
        (with("model", json!("none")), 404, "model"),
        (with("model", json!("minilm")), 400, "model"),
        (with("model", json!("smollm2")), 400, "model"),
    ] {
        let shown = body.to_string().chars().take(100).collect::<String>();
        let (got, answer) = server.post("/v1/rerank", "", &body);
        assert_eq!((got, answer["error"]["param"].as_str()), (status, Some(param)), "{shown}: {answer}");
    }
    for (path, body) in [
        ("/v1/embeddings", json!({ "model": model, "input": "ice" })),
        ("/v1/completions", json!({ "model": model, "prompt": "ice" })),
    ] {
        let (status, answer) = server.post(path, "", &body);
        assert_eq!((status, answer["error"]["code"].as_str()), (400, Some("unsupported_model")), "{path}: {answer}");
        assert!(answer["error"]["message"].as_str().expect("a message").contains("reranking"), "{answer}");
    }
    rerank(&server, "/v1/rerank", &with("documents", json!(vec!["ice"; 1000])));
    rerank(&server, "/v1/rerank", &with("unheard_of", json!(1)));
}

#[test]
fn it_is_measured_and_whoever_hangs_up_is_not_computed_for() {
    let (_home, server, model) = started(&[]);
    rerank(&server, "/v1/rerank", &json!({ "model": model, "query": "ice", "documents": ["ice", "tea"] }));
    let metrics = server.get("/metrics", "");
    let label = format!(r#"model_name="{model}""#);
    for expected in [
        format!(r#"vllm:request_success_total{{{label},finished_reason="stop"}} 1"#),
        format!(r#"endpoint="/v1/rerank",method="POST",status="200",{label}}} 1"#),
    ] {
        assert!(metrics.contains(&expected), "{expected} in\n{metrics}");
    }
    let body = json!({ "model": model, "query": "ice", "documents": vec![LONG.repeat(60); 1000] });
    let running = || server.get_json("/admin/models")["models"][0]["running"].clone();
    let until = Instant::now() + Duration::from_secs(300);
    let stream = server.send("/v1/rerank", "", &body);
    while running() == 0 {
        assert!(Instant::now() < until, "it has not begun");
        thread::sleep(Duration::from_millis(1));
    }
    drop(stream);
    while running() != 0 {
        assert!(Instant::now() < until, "it still runs");
        thread::sleep(Duration::from_millis(5));
    }
    let aborted = format!(r#"{{{label},finished_reason="abort"}} 1"#);
    while !server.get("/metrics", "").contains(&aborted) {
        assert!(Instant::now() < until, "{}", server.get("/metrics", ""));
        thread::sleep(Duration::from_millis(5));
    }
}

fn ruvllm(arguments: &[&str], input: &str) -> Output {
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

#[test]
fn the_command_sorts_lines_and_files() {
    let path = model_path();
    let model = path.to_str().expect("a path");
    let lines = "ice floats\nnobody can say for certain\nbread needs flour\n";
    let answer = stdout(&ruvllm(&["rerank", model, "who wrote it", "--json"], lines));
    let answer: Value = serde_json::from_str(&answer).expect("one object");
    let results = answer["results"].as_array().expect("results");
    assert!(results.is_sorted_by(|a, b| a["logit"].as_f64() >= b["logit"].as_f64()) && results.len() == 3, "{answer}");
    let best = results[0]["text"].as_str().expect("a text");
    let table = stdout(&ruvllm(&["rerank", model, "who wrote it", "--top", "1"], lines));
    assert!(table.lines().count() == 1 && table.contains(best), "{table}");
    let folder = tempfile::tempdir().expect("a folder");
    let files: Vec<String> = lines
        .lines()
        .enumerate()
        .map(|(index, line)| {
            let file = folder.path().join(format!("{index}.txt"));
            std::fs::write(&file, line).expect("written");
            file.to_str().expect("a path").to_owned()
        })
        .collect();
    let arguments: Vec<&str> =
        ["rerank", model, "who wrote it"].into_iter().chain(files.iter().map(|file| &**file)).collect();
    let by_files = stdout(&ruvllm(&arguments, ""));
    let first = by_files.lines().next().expect("a line");
    assert!(first.contains(&*files[results[0]["index"].as_u64().expect("an index") as usize]), "{by_files}");
}

#[test]
fn the_command_says_what_is_wrong() {
    let path = model_path();
    let model = path.to_str().expect("a path");
    let minilm = minilm();
    for (arguments, input, said) in [
        (vec!["rerank", model, ""], "a\n", "the query is empty"),
        (vec!["rerank", model, "ice"], "", "there are no documents"),
        (vec!["rerank", model, "ice"], "a\n\nb\n", "a line is empty"),
        (vec!["rerank", model, "ice", "/nonexistent"], "", "cannot read /nonexistent"),
        (vec!["rerank", minilm.to_str().expect("a path"), "ice"], "a\n", "needs a cross-encoder"),
        (vec!["embed", model, "ice"], "", "it is for reranking"),
        (vec!["run", model, "ice"], "", "ruvllm rerank"),
    ] {
        let output = ruvllm(&arguments, input);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && error.contains(said), "{arguments:?}: {error}");
    }
    let shown = stdout(&ruvllm(&["show", model], ""));
    assert!(shown.contains("for reranking"), "{shown}");
}
