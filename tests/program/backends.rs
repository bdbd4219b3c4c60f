//! Models on other backends than the native one, with the real program.

use std::fs;
use std::process::Output;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::phi2::phi2;
use crate::server::{Server, ruvllm, start};
use crate::support::home;

fn run(home: &TempDir, arguments: &[&str]) -> Output {
    ruvllm(home).args(arguments).output().expect("the program runs")
}

fn printed(home: &TempDir, arguments: &[&str]) -> String {
    let output = run(home, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn json_of(home: &TempDir, arguments: &[&str]) -> Value {
    serde_json::from_str(&printed(home, arguments)).expect("one JSON object")
}

#[test]
fn show_names_the_backend_of_a_model() {
    let (home, folder) = (home(), tempfile::tempdir().expect("a folder"));
    let path = phi2(folder.path());
    let path = path.to_str().expect("UTF-8");
    let backend = |arguments: &[&str]| json_of(&home, arguments)["backend"].clone();
    assert_eq!(backend(&["show", "smollm2", "--json"])["name"], "native");
    assert_eq!(backend(&["show", "smollm2", "--backend", "candle", "--json"])["name"], "candle");
    assert_eq!(backend(&["show", path, "--json"])["name"], "candle");
    let none = backend(&["show", path, "--backend", "native", "--json"]);
    assert!(none["name"].is_null() && none["reason"].as_str().expect("a text").contains("to candle: phi2"), "{none}");
    assert!(printed(&home, &["show", path]).contains("candle: supports the architecture 'phi2'"));
    let fit = json_of(&home, &["show", path, "--fit", "--json"]);
    assert_eq!((&fit["fits"], &fit["quantizations"]), (&json!(true), &json!([])));
    let none = ["--backend", "mistralrs", "--mistralrs", "/nowhere/mistralrs"];
    let shown = backend(&[&["show", "smollm2", "--json"][..], &none].concat());
    assert!(shown["name"].is_null() && shown["reason"].as_str().expect("a text").contains("/nowhere"), "{shown}");
    let refused = run(&home, &[&["run", "smollm2", "hi"][..], &none].concat());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("no program at /nowhere/mistralrs"), "{said}");
}

#[test]
fn run_answers_on_the_backend_that_is_asked_for() {
    let (home, folder) = (home(), tempfile::tempdir().expect("a folder"));
    let path = phi2(folder.path());
    let how = ["--raw", "--temperature", "0", "--max-tokens", "4", "--context", "256", "--json"];
    let arguments = [&["run", "smollm2", "The capital of France is", "--backend", "candle"][..], &how].concat();
    assert!(json_of(&home, &arguments)["text"].as_str().expect("a text").contains("Paris"));
    let arguments = [&["run", path.to_str().expect("UTF-8"), "Hello", "--threads", "1"][..], &how].concat();
    let output = run(&home, &arguments);
    let (answer, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{said}"));
    assert_eq!(answer["usage"]["completion_tokens"], 4);
    assert!(said.contains("runs on candle: --threads has no effect"), "{said}");
}

/// The entry of a request in the witness log, which is written a second after the request at the latest.
pub fn witnessed(server: &Server, request: &str) -> Value {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let answer = server.get(&format!("/v1/witness/{request}"), &server.operator());
        if answer.starts_with("HTTP/1.1 200") {
            let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
            return serde_json::from_str::<Value>(body).expect("JSON")["entry"].clone();
        }
        assert!(Instant::now() < deadline, "{answer}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn one_server_runs_models_on_different_backends() {
    let home = home();
    // Beside the shared store's models, as it would have been pulled.
    let folder = home.path().join("files");
    fs::create_dir(&folder).expect("a folder");
    let path = phi2(&folder);
    let models = [path.to_str().expect("UTF-8"), "smollm2"];
    let flags = ["--alias", "small=smollm2", "--context", "256", "--sequences", "2", "--log-level", "info"];
    let server = start(&home, &[&models[..], &flags].concat());
    let listed = server.get_json("/admin/models");
    let mut backends: Vec<(String, Value)> = (listed["models"].as_array().expect("models").iter())
        .map(|model| (model["name"].as_str().expect("a name").to_owned(), model["backend"].clone()))
        .collect();
    backends.sort_by(|a, b| a.0.cmp(&b.0));
    let names: Vec<&str> = backends.iter().map(|(name, _)| &**name).collect();
    let of = |part: &str| backends.iter().find(|(name, _)| name.contains(part)).map(|(_, backend)| backend.clone());
    assert_eq!((of("phi2"), of("smollm2")), (Some(json!("candle")), Some(json!("native"))), "{names:?}");
    let phi2 = names.iter().find(|name| name.contains("phi2")).expect("it is there");
    for (model, backend) in [(*phi2, "candle"), ("small", "native")] {
        let body = json!({ "model": model, "messages": [{ "role": "user", "content": "Hi" }], "max_tokens": 3 });
        let id = format!("x-request-id: to-{backend}\r\n");
        let (status, answer) = server.post("/v1/chat/completions", &id, &body);
        assert_eq!((status, &answer["usage"]["completion_tokens"]), (200, &json!(3)), "{answer}");
        assert_eq!(witnessed(&server, &format!("to-{backend}"))["backend"], backend);
    }
    server.signal("TERM");
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn a_server_may_be_told_what_runs_one_of_its_models() {
    let home = home();
    let server = start(&home, &["smollm2", "--backend-of", "smollm2=candle", "--context", "256", "--sequences", "1"]);
    let listed = server.get_json("/admin/models");
    let model = &listed["models"][0];
    assert_eq!((&model["backend"], &model["kernels"]), (&json!("candle"), &json!("candle")));
    assert!(printed(&home, &["ps", "--url", &format!("http://{}", server.address)]).contains("candle"));
}
