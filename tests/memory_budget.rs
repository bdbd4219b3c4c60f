//! One budget for the memory of a server: models come and go within it. And engines, whose share of it changes.

#[path = "support/server.rs"]
#[allow(dead_code)]
mod server;
mod support;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use ruvllm_engine::Request;
use ruvllm_runtime::{Engine, Prompt};
use serde_json::{Value, json};
use server::{Server, ruvllm, start};
use support::{home, smollm2};
use tempfile::TempDir;

/// A home folder in which the default model has several names.
fn home_with(names: &[&str]) -> TempDir {
    let home = tempfile::tempdir().expect("a folder");
    let file = smollm2();
    let folder = file.parent().expect("a folder");
    let manifest = fs::read_to_string(folder.join("manifest.json")).expect("a manifest");
    let manifest: Value = serde_json::from_str(&manifest).expect("JSON");
    for name in names {
        let own = home.path().join("models").join(name);
        fs::create_dir_all(&own).expect("a folder");
        link(&file, &own.join(file.file_name().expect("a name")));
        let mut manifest = manifest.clone();
        manifest["name"] = json!(name);
        fs::write(own.join("manifest.json"), manifest.to_string()).expect("a file");
    }
    home
}

fn link(from: &Path, to: &Path) {
    if fs::hard_link(from, to).is_err() {
        fs::copy(from, to).expect("a copy");
    }
}

fn ask(server: &Server, model: &str, max_tokens: usize) -> (u16, Value) {
    let body = json!({ "model": model, "prompt": "Once upon a time", "max_tokens": max_tokens, "temperature": 0 });
    server.post("/v1/completions", "", &body)
}

fn models(server: &Server) -> Value {
    let response = server.get("/admin/models", &server.operator());
    let body = response.split_once("\r\n\r\n").expect("a body").1;
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {body}"))
}

fn names(models: &Value) -> Vec<String> {
    let all = models["models"].as_array().expect("a list").iter();
    all.map(|model| model["name"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn models_that_do_not_fit_together_answer_in_turns() {
    let home = home_with(&["a", "b", "c", "d"]);
    let arguments =
        ["a", "--memory", "820M", "--context", "1024", "--models-max", "8", "--log-level", "warn", "--no-memory"];
    let server = start(&home, &arguments);
    let mut answers = Vec::new();
    for model in ["a", "b", "c", "d", "a", "c"] {
        let (status, answer) = ask(&server, model, 8);
        assert_eq!(status, 200, "{model}: {answer}");
        answers.push(answer["choices"][0]["text"].clone());
        let loaded = models(&server);
        assert!(names(&loaded).contains(&model.to_owned()) && names(&loaded).len() <= 2, "{loaded}");
        let (budget, resident) = (&loaded["memory"]["budget_bytes"], &loaded["memory"]["resident_bytes"]);
        assert!(resident.as_u64().expect("a number") <= budget.as_u64().expect("a number"), "{loaded}");
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    // The one named at the start came last: it was needed again, so it is there again.
    let metrics = server.get("/metrics", &server.operator());
    assert!(metrics.contains("ruvllm_memory_budget_bytes 859832320"), "{metrics}");
    assert!(metrics.contains("ruvllm_memory_model_bytes{model_name=\"c\",part=\"kv\"}"), "{metrics}");
    let ps = ruvllm(&home).args(["ps", "--url", &format!("http://{}", server.address)]).output().expect("it runs");
    let ps = String::from_utf8_lossy(&ps.stdout).into_owned();
    assert!(ps.contains("c: KV cache") && ps.contains("all (--memory)"), "{ps}");
}

#[test]
fn a_model_that_does_not_fit_beside_those_in_use_says_what_would_have_to_go() {
    let home = home_with(&["a", "b"]);
    let arguments = ["a", "--memory", "620M", "--context", "1024", "--log-level", "warn", "--no-memory"];
    let server = start(&home, &arguments);
    let long = json!({ "model": "a", "prompt": "Once", "max_tokens": 1000, "stream": true,
                       "logit_bias": { "0": -100, "2": -100 } });
    let mut answering = server.send("/v1/completions", "", &long);
    std::io::Read::read_exact(&mut answering, &mut [0; 512]).expect("it has begun");
    let (status, refusal) = ask(&server, "b", 4);
    assert_eq!(status, 503, "{refusal}");
    let message = refusal["error"]["message"].as_str().expect("a message");
    assert!(message.contains("which are in use: a ("), "{message}");
    drop(answering);
    let until = Instant::now() + Duration::from_secs(60);
    // When the client is gone, the model is idle.
    while ask(&server, "b", 4).0 != 200 {
        assert!(Instant::now() < until, "{}", models(&server));
    }
}

#[test]
fn a_model_that_can_never_fit_is_refused_at_the_start() {
    let home = home();
    for (memory, said) in [("450M", "--memory"), ("1M", "leaves nothing for models")] {
        let output =
            ruvllm(&home).args(["serve", "smollm2", "--memory", memory, "--port", "0"]).output().expect("it runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && errors.contains(said), "{memory}: {errors}");
    }
}

#[test]
fn models_that_nobody_uses_go_after_a_while_and_those_named_stay() {
    let home = home_with(&["a", "b"]);
    let arguments =
        ["a", "--keep-alive", "1s", "--alias", "other=b", "--context", "1024", "--log-level", "warn", "--no-memory"];
    let server = start(&home, &arguments);
    assert_eq!(ask(&server, "other", 4).0, 200);
    let until = Instant::now() + Duration::from_secs(60);
    while names(&models(&server)) != ["a"] {
        assert!(Instant::now() < until, "{}", models(&server));
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(ask(&server, "other", 4).0, 200, "it comes back when it is asked for");
    let administer = |action: &str| {
        server.post(&format!("/admin/models/{action}"), &server.operator(), &json!({ "model": "other" }))
    };
    let (status, answer) = administer("reload");
    assert_eq!((status, names(&answer)), (200, vec!["a".to_owned(), "b".to_owned()]), "an alias names its model");
    let (status, answer) = administer("unload");
    assert_eq!((status, names(&answer)), (200, vec!["a".to_owned()]), "an alias names its model");
    assert_eq!(administer("reload").0, 404, "it is no longer loaded");
}

#[test]
fn an_engine_gives_up_what_it_caches_when_its_share_shrinks_and_grows_again() {
    const MIB: usize = 1 << 20;
    let mut engine =
        Engine::builder(smollm2()).context(Some(512)).sequences(4).build().expect("the default model loads");
    let before = engine.status().cache.budget_bytes;
    let essays = include_str!("data/essays.txt");
    let tokens = engine.encode(&Prompt::Text(essays.to_owned())).expect("plain text");
    let request = |at: usize| Request { max_tokens: Some(2), ..Request::new(tokens[at * 350..][..350].to_vec()) };
    let requests: Vec<Request> = (0..4).map(request).collect();
    let answers = |engine: &mut Engine| -> Vec<Vec<u32>> {
        let all = support::run_together(engine, &requests).into_iter();
        all.map(|events| events.iter().map(|event| event.sampled.token).collect()).collect()
    };
    let first = answers(&mut engine);
    assert!(engine.core().cache_stats().held_bytes > 20 * MIB);
    let resident = resident_bytes();
    assert!(engine.set_kv_budget(15 * MIB).expect("it lives"), "nothing runs that could hold more");
    let stats = engine.core().cache_stats();
    assert!(stats.held_bytes <= 15 * MIB && stats.budget_bytes <= 15 * MIB, "{stats:?}");
    assert!(resident_bytes() + 5 * MIB < resident, "the system has it back");
    // Two of them have room at a time.
    assert_eq!(answers(&mut engine), first);
    assert!(engine.core().cache_stats().held_bytes <= 15 * MIB);
    assert!(engine.set_kv_budget(usize::MAX).expect("it lives"));
    assert_eq!((answers(&mut engine), engine.core().cache_stats().budget_bytes), (first, before));
}

fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("Linux tells");
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).expect("there is a line");
    let kib: usize = line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number");
    kib << 10
}
