//! Requests that leave their model to the server, with the real program and real models.

use std::time::{Duration, Instant};

use crate::server::{Server, ruvllm, start};
use crate::support::{home, model, safetensors_folder};
use serde_json::{Value, json};
use tempfile::TempDir;

const SMALL: &str = "smollm2";
const OTHER: &str = "gemma3:270m";
const CAKES: [&str; 5] = [
    "How long do I bake an apple cake?",
    "How hot must the oven be to bake a cherry cake?",
    "How much sugar goes into a cheese cake?",
    "Can I bake a cake without any eggs?",
    "How do I bake a cake with two layers?",
];
const LOOPS: [&str; 5] = [
    "Why does `while (x > 0) { x++; }` never end?",
    "Why does `for (;;) { y--; }` never end?",
    "Is `while (true) { break; }` a loop that ends?",
    "Why is `for (i = 0; i < n; i--) {}` a loop without end?",
    "Why does `while (y > 9) { y++; }` never end?",
];

fn command(home: &TempDir, arguments: &[&str]) -> (bool, String) {
    let output = ruvllm(home).args(arguments).output().expect("the program runs");
    let text = if output.status.success() { output.stdout } else { output.stderr };
    (output.status.success(), String::from_utf8(text).expect("text"))
}

fn printed(home: &TempDir, arguments: &[&str]) -> String {
    let (succeeded, text) = command(home, arguments);
    assert!(succeeded, "{arguments:?}: {text}");
    text
}

fn refused(home: &TempDir, arguments: &[&str]) -> String {
    let (succeeded, text) = command(home, arguments);
    assert!(!succeeded, "{arguments:?}: {text}");
    text
}

fn key(home: &TempDir, name: &str, more: &[&str]) -> String {
    let key = printed(home, &[&["keys", "add", name, "--tenant", name], more].concat());
    format!("authorization: Bearer {}\r\n", key.trim())
}

/// An answer, as far as it says who gave it.
#[derive(Debug)]
struct Answer {
    model: String,
    id: String,
    /// What the headers say of the choice: the model, and how it was chosen.
    chosen: Option<String>,
    how: Option<String>,
}

/// Has a text continued by one token: the smaller of the two models has no chat template.
fn ask(server: &Server, headers: &str, model: &str, text: &str) -> Answer {
    let body = json!({ "model": model, "prompt": text, "max_tokens": 1, "temperature": 0 });
    let answer = server.post_and_read("/v1/completions", headers, &body);
    let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    let body: Value = serde_json::from_str(body).expect("JSON");
    let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
    let text = |field: &str| body[field].as_str().expect("a text").to_owned();
    Answer {
        model: text("model"),
        id: text("id"),
        chosen: header("x-ruvllm-model: "),
        how: header("x-ruvllm-router: "),
    }
}

fn rate(server: &Server, headers: &str, answer: &Answer, score: f64) {
    let (status, said) = server.post("/v1/feedback", headers, &json!({ "request_id": answer.id, "score": score }));
    assert_eq!(status, 202, "{said}");
}

/// Asks until an answer is as expected; what was learned in between takes a moment.
fn ask_until(server: &Server, headers: &str, question: &str, is_so: impl Fn(&Answer) -> bool) -> Answer {
    let started = Instant::now();
    loop {
        let answer = ask(server, headers, "auto", question);
        if is_so(&answer) {
            println!("{:?} until {answer:?}", started.elapsed());
            return answer;
        }
        assert!(started.elapsed() < Duration::from_secs(60), "{answer:?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn the_model_that_was_found_right_answers_what_is_left_open() {
    model(OTHER);
    let home = home();
    let (acme, globex) = (key(&home, "acme", &[]), key(&home, "globex", &[]));
    let quiet = key(&home, "quiet", &["--no-learn"]);
    let server = start(&home, &[SMALL, OTHER, "--context", "256", "--log-level", "warn", "--learn"]);
    let first = ask(&server, &acme, "auto", LOOPS[0]);
    assert_eq!((first.model.as_str(), first.chosen.as_deref()), (SMALL, Some(SMALL)), "the default");
    assert_eq!(first.how.as_deref(), Some("default; probability=1.000"));

    // Each is right about one subject.
    for (questions, right) in [(CAKES, SMALL), (LOOPS, OTHER)] {
        for question in &questions[..4] {
            for name in [SMALL, OTHER] {
                let answer = ask(&server, &acme, name, question);
                assert_eq!((answer.model.as_str(), answer.chosen.as_deref()), (name, None));
                rate(&server, &acme, &answer, if name == right { 1.0 } else { -1.0 });
            }
        }
    }
    let learned = ask_until(&server, &acme, LOOPS[4], |answer| answer.model == OTHER);
    assert!(learned.how.as_deref().is_some_and(|how| how.starts_with("bandit/")), "{learned:?}");
    assert_eq!(ask(&server, &acme, "auto", CAKES[4]).model, SMALL);
    // Nobody else is answered by what acme has said.
    for other in [&globex, &quiet] {
        (0..2).for_each(|_| assert_eq!(ask(&server, other, "auto", LOOPS[4]).model, SMALL));
    }
    assert_eq!(ask(&server, &quiet, "auto", LOOPS[4]).how, None, "nothing is learned from it either");

    // By every way to ask. Conversations need a chat template, which only one of them has.
    let messages = json!([{ "role": "user", "content": LOOPS[4] }]);
    let options = json!({ "num_predict": 1 });
    for (path, body, expected) in [
        ("/v1/chat/completions", json!({ "messages": messages, "max_tokens": 1 }), SMALL),
        ("/v1/responses", json!({ "input": LOOPS[4], "max_output_tokens": 1 }), SMALL),
        ("/v1/messages", json!({ "messages": messages, "max_tokens": 1 }), SMALL),
        ("/api/chat", json!({ "messages": messages, "options": options, "stream": false }), SMALL),
        ("/api/generate", json!({ "prompt": LOOPS[4], "options": options, "stream": false, "raw": true }), OTHER),
    ] {
        let mut body = body;
        body["model"] = json!("auto");
        let (status, answer) = server.post(path, &acme, &body);
        assert_eq!((status, &answer["model"]), (200, &json!(expected)), "{path}: {answer}");
    }
    let count = json!({ "model": "auto", "messages": messages });
    assert_eq!(server.post("/v1/messages/count_tokens", &acme, &count).0, 200);
    for (path, body, param) in [
        ("/v1/chat/completions", json!({ "messages": messages, "adapter": "legal" }), "adapter"),
        ("/v1/completions", json!({ "prompt": [1, 2, 3] }), "prompt"),
    ] {
        let mut body = body;
        body["model"] = json!("auto");
        let (status, error) = server.post(path, &acme, &body);
        assert_eq!((status, &error["error"]["param"]), (400, &json!(param)), "{error}");
    }
    let list = server.get_json("/v1/models");
    assert!(list["data"].as_array().is_some_and(|cards| cards.iter().all(|card| card["id"] != "auto")), "{list}");

    // What was decided by is in the log, with true probabilities.
    let entry = loop {
        let answer = server.get(&format!("/v1/witness/{}", learned.id), &acme);
        if answer.starts_with("HTTP/1.1 200") {
            break answer;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(entry.contains(r#""probabilities":{"gemma3:270m":1.0,"smollm2":0.0}"#), "{entry}");
    assert!(entry.contains(r#""choice":{"by":"bandit/"#) && entry.contains(r#""default":"smollm2""#), "{entry}");
    let nothing_left_to_chance = refused(&home, &["learn", "evaluate", "--tenant", "acme"]);
    assert!(nothing_left_to_chance.contains("--explore"), "{nothing_left_to_chance}");
    assert!(refused(&home, &["learn", "router", "--tenant", "acme"]).contains("--explore"));
    assert!(refused(&home, &["learn", "evaluate", "--tenant", "nobody"]).contains("no choices"));

    // What is forgotten steers nobody.
    printed(&home, &["learn", "forget", "--tenant", "acme"]);
    ask_until(&server, &acme, LOOPS[4], |answer| answer.model == SMALL);
}

#[test]
fn a_network_is_trained_and_judged_on_what_was_left_to_chance() {
    let home = tempfile::tempdir().unwrap();
    let folders = [safetensors_folder(&json!({})), safetensors_folder(&json!({}))];
    let [one, other] = [&folders[0], &folders[1]].map(|folder| folder.path().to_str().expect("a path"));
    let server = start(
        &home,
        &[one, other, "--context", "128", "--log-level", "warn", "--learn", "--explore", "0.5", "--second-price", "0"],
    );
    let mut counts = std::collections::BTreeMap::<String, usize>::new();
    let mut default = None;
    for number in 0..160 {
        let subject = if number % 2 == 0 { "even" } else { "odd" };
        let answer = ask(&server, "", "auto", &format!("{subject} {number}"));
        let default = default.get_or_insert_with(|| answer.model.clone());
        let is_right = (answer.model == *default) == (number % 2 == 0);
        rate(&server, "", &answer, if is_right { 1.0 } else { -1.0 });
        *counts.entry(answer.model).or_default() += 1;
    }
    assert!(counts.len() == 2 && counts.values().all(|count| *count >= 20), "{counts:?}");
    let mut names: Vec<&String> = counts.keys().collect();
    names.sort();
    // A session goes on with the model that it began with.
    for number in 0..3 {
        let of_turn = |question: &str| {
            let messages = json!([{ "role": "user", "content": question }]);
            let session = format!("session-{number}");
            let body = json!({ "model": "auto", "messages": messages, "max_tokens": 1, "session": session });
            let (status, answer) = server.post("/v1/chat/completions", "", &body);
            assert_eq!(status, 200, "{answer}");
            answer["model"].clone()
        };
        let begun = of_turn("even 2");
        (0..3).for_each(|turn| assert_eq!(of_turn(&format!("odd {turn}")), begun));
    }
    // The last entries are written within a second.
    std::thread::sleep(Duration::from_millis(1500));
    let evaluated: Value =
        serde_json::from_str(&printed(&home, &["learn", "evaluate", "--second-price", "0", "--json"])).expect("JSON");
    let policies = evaluated["evaluation"]["policies"].as_array().expect("a list");
    let named: Vec<&str> = policies.iter().filter_map(|one| one["policy"].as_str()).collect();
    assert_eq!(named, ["served", names[0], names[1], "bandit"]);
    let value = |policy: &str| {
        let found = policies.iter().find(|one| one["policy"] == policy).expect("a policy");
        found["doubly_robust"]["value"].as_f64().expect("a number")
    };
    assert!(value("bandit") > value(names[0]).max(value(names[1])) + 0.3, "{evaluated}");

    let trained: Value =
        serde_json::from_str(&printed(&home, &["learn", "router", "--second-price", "0", "--json"])).expect("JSON");
    let verdict = trained["report"]["verdict"].as_str().expect("a word");
    println!("{verdict}: {}", trained["report"]["evaluation"]["network_against_bandit"]);
    assert_eq!((&trained["version"], ["promoted", "refused"].contains(&verdict)), (&json!(1), true), "{trained}");
    if verdict == "refused" {
        assert!(refused(&home, &["learn", "promote", "auto", "1"]).contains("--force"));
        printed(&home, &["learn", "promote", "auto", "1", "--force"]);
    }
    assert!(printed(&home, &["learn", "history", "auto"]).contains("served"));
    let by = |name: &'static str| move |answer: &Answer| answer.how.as_deref().is_some_and(|how| how.starts_with(name));
    ask_until(&server, "", "even 7", by("fastgrnn/1; probability=0."));
    printed(&home, &["learn", "rollback", "auto"]);
    ask_until(&server, "", "even 7", by("bandit/"));
}
