//! Feedback and what is kept to learn from, with the real program and the real model.

use std::path::Path;
use std::process::{Command, Output};

use crate::server::{Server, ruvllm, start};
use crate::support::{home, safetensors_folder};
use rusqlite::Connection;
use rusqlite::types::ValueRef;
use serde_json::{Value, json};
use tempfile::TempDir;

const SERVE: [&str; 5] = ["smollm2", "--context", "512", "--log-level", "warn"];

fn run(home: &TempDir, arguments: &[&str]) -> Output {
    ruvllm(home).args(arguments).output().expect("the program runs")
}

/// What a command prints; it must succeed.
fn printed(home: &TempDir, arguments: &[&str]) -> String {
    let output = run(home, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn printed_json(home: &TempDir, arguments: &[&str]) -> Value {
    serde_json::from_str(&printed(home, arguments)).expect("JSON")
}

fn refused(home: &TempDir, arguments: &[&str]) -> String {
    let output = run(home, arguments);
    assert!(!output.status.success(), "{arguments:?}");
    String::from_utf8(output.stderr).expect("text")
}

fn stop(server: Server) {
    server.signal("TERM");
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
}

fn key(home: &TempDir, name: &str, more: &[&str]) -> String {
    let key = printed(home, &[&["keys", "add", name], more].concat());
    format!("authorization: Bearer {}\r\n", key.trim())
}

/// The JSON of an answer that must succeed, and its request id.
fn ask(server: &Server, headers: &str, question: &str) -> Value {
    let body = json!({
        "model": "smollm2", "messages": [{ "role": "user", "content": question }], "max_tokens": 8, "seed": 1,
        "user": "ada",
    });
    let (status, answer) = server.post("/v1/chat/completions", headers, &body);
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Every value in every table of a memory, as text.
fn everything_in(memory: &Path) -> String {
    let key = std::fs::read_to_string(memory.join("memory.key")).expect("a key");
    let store = Connection::open(memory.join("memory.db")).expect("a store");
    store.execute_batch(&format!("PRAGMA key = \"x'{}'\"", key.trim())).expect("the key");
    let mut tables = store.prepare("SELECT name FROM sqlite_master WHERE type = 'table'").expect("tables");
    let names = tables.query_map([], |row| row.get::<_, String>(0)).expect("names");
    let mut text = String::new();
    for name in names {
        let mut table = store.prepare(&format!("SELECT * FROM {}", name.expect("a name"))).expect("a table");
        let columns = table.column_count();
        let mut rows = table.query([]).expect("rows");
        while let Some(row) = rows.next().expect("a row") {
            for column in 0..columns {
                match row.get_ref(column).expect("a value") {
                    ValueRef::Text(bytes) | ValueRef::Blob(bytes) => text.push_str(&String::from_utf8_lossy(bytes)),
                    other => text.push_str(&format!("{other:?}")),
                }
                text.push('\n');
            }
        }
    }
    text
}

fn delete(server: &Server, path: &str, headers: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = server.connect();
    write!(stream, "DELETE {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn feedback_is_kept_with_what_it_is_about_and_both_are_forgotten() {
    let home = home();
    let (acme, globex) = (key(&home, "acme", &[]), key(&home, "globex", &["--no-learn"]));
    let server = start(&home, &[&SERVE[..], &["--learn"]].concat());
    let answer = ask(&server, &acme, "What is the capital of Norway?");
    let id = answer["id"].as_str().expect("an id").to_owned();
    let give = |headers: &str, body: Value| server.post("/v1/feedback", headers, &body);
    // At once: its entry is not written yet.
    let (status, said) =
        give(&acme, json!({ "request_id": id, "correction": "Oslo, of course.", "score": "down", "user": "eve" }));
    assert_eq!((status, &said["stored"], &said["withheld"]), (202, &json!("queued"), &json!([])), "{said}");
    let request = said["request_id"].as_str().expect("the id in the log").to_owned();
    assert!(request.starts_with("req-"), "{request}");
    // By the other id too; the last one counts.
    let (status, _) = give(&acme, json!({ "request_id": request, "correction": "Oslo.", "reason": "shorter" }));
    assert_eq!(status, 202);
    for (body, param) in [
        (json!({ "score": 1 }), "request_id"),
        (json!({ "request_id": id }), "score"),
        (json!({ "request_id": id, "score": 7 }), "score"),
        (json!({ "request_id": id, "score": "good" }), "score"),
        (json!({ "request_id": id, "correction": "a\u{0}b" }), "correction"),
        (json!({ "request_id": id, "correction": "x".repeat(1_000_000) }), "correction"),
        (json!({ "request_id": "", "score": 1 }), "request_id"),
        (json!({ "request_id": "x".repeat(2000), "score": 1 }), "request_id"),
        (json!({ "request_id": id, "score": 1, "user": "a\nb" }), "user"),
    ] {
        let (status, error) = give(&acme, body);
        assert_eq!((status, &error["error"]["param"]), (400, &json!(param)), "{error}");
    }
    assert_eq!(give(&acme, json!({ "request_id": id, "correction": "x".repeat(10_000_000) })).0, 413);
    for (headers, id) in [(&globex, id.as_str()), (&globex, &request), (&acme, "req-unknown"), (&acme, "chatcmpl-0")] {
        let (status, error) = give(headers, json!({ "request_id": id, "score": true }));
        assert_eq!((status, &error["error"]["code"]), (404, &json!("request_not_found")), "{id}: {error}");
    }
    // One that wants no learning: the score is kept, the text is not.
    let other = ask(&server, &globex, "What is the capital of Sweden?");
    let (status, said) = give(&globex, json!({ "request_id": other["id"], "score": -0.5, "reason": "a secret" }));
    assert_eq!((status, &said["withheld"]), (202, &json!(["reason"])));
    stop(server);

    let shown = printed(&home, &["witness", "show", &request]);
    assert!(shown.contains("ada") && shown.contains("should be: Oslo, of course.; by eve"), "{shown}");
    assert!(printed(&home, &["witness", "search", "--user", "ada", "--tenant", "acme"]).contains(&request));
    assert!(printed(&home, &["witness", "verify"]).starts_with("verified: 5 entries"));
    let status = printed_json(&home, &["learn", "status", "--json"]);
    assert_eq!((&status["tenants"][0]["tenant"], &status["tenants"][0]["trajectories"]), (&json!("acme"), &json!(1)));
    assert_eq!(status["tenants"][1]["trajectories"], 0, "{status}");
    assert_eq!(status["retention"]["age_ms"], json!(90u64 * 86_400_000));
    let exported = printed(&home, &["learn", "export", "-"]);
    let line: Value = serde_json::from_str(exported.trim()).expect("one line");
    let content = answer["choices"][0]["message"]["content"].as_str().expect("a text");
    assert_eq!(line["messages"][1], json!({ "role": "assistant", "content": "Oslo." }));
    assert_eq!(line["rejected"].as_str(), Some(content));
    let kept = everything_in(&home.path().join("memory"));
    assert!(kept.contains("capital of Norway") && kept.contains("\"prompt_tokens\":[") && !kept.contains("Sweden"));

    let forgotten = printed(&home, &["learn", "forget", "--request", &id]);
    assert!(forgotten.starts_with("forgotten: 1 requests, 2 entries of feedback, 1 trajectories"), "{forgotten}");
    let left = everything_in(&home.path().join("memory"));
    assert!(!left.contains("Norway") && !left.contains("Oslo") && !left.contains(content), "{left}");
    assert!(printed(&home, &["witness", "verify"]).starts_with("verified: 6 entries"));
    assert!(refused(&home, &["learn", "forget", "--request", &id]).contains("there is no request"));
    assert!(printed(&home, &["learn", "forget", "--user", "ada"]).contains("1 requests"));
}

#[test]
fn learning_off_keeps_nothing() {
    let home = home();
    let server = start(&home, &SERVE);
    let answer = ask(&server, "", "Tell me about the aardvark.");
    let body = json!({ "request_id": answer["id"], "correction": "A nocturnal mammal.", "reason": "It was wrong." });
    let (status, said) = server.post("/v1/feedback", "", &body);
    assert_eq!((status, &said["withheld"]), (202, &json!(["correction", "reason"])), "{said}");
    // Whoever comes from elsewhere says nothing about what others asked.
    let (status, error) = server.post("/v1/feedback", "origin: https://evil.example\r\n", &body);
    assert_eq!(status, 403, "{error}");
    stop(server);
    let kept = everything_in(&home.path().join("memory"));
    let answered = answer["choices"][0]["message"]["content"].as_str().expect("a text").trim();
    for text in ["aardvark", "nocturnal", "It was wrong", answered] {
        assert!(!kept.contains(text), "{text:?} is kept");
    }
    assert!(kept.contains("\"kind\":\"feedback\"") && kept.contains("\"withheld\":[\"correction\",\"reason\"]"));
    let status = printed_json(&home, &["learn", "status", "--json"]);
    assert_eq!(
        (&status["tenants"][0]["trajectories"], &status["tenants"][0]["feedback"]["corrected"]),
        (&json!(0), &json!(1))
    );
    assert_eq!(printed(&home, &["learn", "export", "-"]), "");
}

#[test]
fn a_prompt_that_is_asked_again_is_noted_as_a_signal_and_tenants_forget_over_http() {
    let home = home();
    let (acme, admin) = (key(&home, "acme", &["--learn"]), key(&home, "root", &["--scope", "admin"]));
    let server = start(&home, &SERVE);
    let told = |answer: &Value| answer["id"].as_str().expect("an id").to_owned();
    let first = told(&ask(&server, &acme, "Name a colour."));
    let again = told(&ask(&server, &acme, "Name a colour."));
    let other = told(&ask(&server, &acme, "Name a fruit."));
    for (id, expected) in [(&first, false), (&again, true), (&other, false)] {
        let entry = loop {
            let answer = server.get(&format!("/v1/witness/{id}"), &acme);
            if answer.starts_with("HTTP/1.1 200") {
                break serde_json::from_str::<Value>(answer.split_once("\r\n\r\n").expect("a body").1).expect("JSON");
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        };
        assert_eq!(entry["entry"]["regenerates"].is_string(), expected, "{entry}");
        assert_eq!((&entry["entry"]["user"], &entry["feedback"]), (&json!("ada"), &json!([])));
    }
    assert!(server.get("/v1/witness?user=ada", &acme).contains(&first));
    assert!(!server.get("/v1/witness?user=bob", &acme).contains(&first));
    assert!(delete(&server, &format!("/v1/feedback/{first}"), &admin).starts_with("HTTP/1.1 404"), "not its own");
    let answer = delete(&server, &format!("/v1/feedback/{first}"), &acme);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("\"trajectories\":1"), "{answer}");
    assert!(delete(&server, &format!("/v1/feedback/{first}"), &acme).starts_with("HTTP/1.1 404"));
    let forget = |headers: &str, body: Value| server.post("/admin/learn/forget", headers, &body);
    assert_eq!(forget(&acme, json!({ "user": "ada" })).0, 403);
    for (body, param) in
        [(json!({}), "tenant"), (json!({ "request_id": "x", "user": "y" }), "user"), (json!({ "user": "" }), "user")]
    {
        let (status, error) = forget(&admin, body);
        assert_eq!((status, &error["error"]["param"]), (400, &json!(param)), "{error}");
    }
    let (status, said) = forget(&admin, json!({ "user": "ada", "tenant": "acme" }));
    assert_eq!((status, &said["requests"], &said["trajectories"]), (200, &json!(2), &json!(2)), "{said}");
    assert_eq!(forget(&admin, json!({ "tenant": "acme" })).0, 404);
    stop(server);
    assert!(printed(&home, &["witness", "verify"]).starts_with("verified: 5 entries"));
}

#[test]
fn the_command_line_gives_feedback_and_opts_in_by_key() {
    let home = home();
    let asked = ["run", "smollm2", "--learn", "-n", "4", "--context", "256", "Say hello."];
    let output = run(&home, &asked);
    let remarks = String::from_utf8_lossy(&output.stderr);
    let id = remarks.split('"').find(|part| part.starts_with("run@")).unwrap_or_else(|| panic!("{remarks}")).to_owned();
    for (flags, said) in [
        (&[][..], "give a score"),
        (&["--score", "7"], "must be up, down"),
        (&["--score", "up", "--user", "a\nb"], "control characters"),
    ] {
        let refusal = refused(&home, &[&["feedback", &id], flags].concat());
        assert!(refusal.contains(said), "{refusal}");
    }
    assert!(refused(&home, &["feedback", "nobody", "--score", "up"]).contains("there is no request"));
    assert!(printed(&home, &["feedback", &id, "--score", "-1", "--correction", "Good day."]).contains("noted"));
    let file = home.path().join("data.jsonl");
    let path = file.to_str().expect("a path");
    printed(&home, &["learn", "export", path, "--preferred"]);
    let line: Value = serde_json::from_str(&std::fs::read_to_string(&file).expect("a file")).expect("one line");
    assert_eq!((&line["messages"][1]["content"], line["rejected"].is_string()), (&json!("Good day."), true));
    assert!(refused(&home, &["learn", "export", path]).contains("already exists"));
    let (tiny, adapter) = (safetensors_folder(&json!({})), home.path().join("adapter"));
    let [tiny, adapter] = [tiny.path(), &adapter].map(|path| path.to_str().expect("a path"));
    let trained = printed_json(&home, &["adapters", "train", tiny, "--data", path, "--output", adapter, "--json"]);
    assert_eq!(trained["pairs"], json!({ "training": 1, "validation": 0 }), "it is what trainers read");
    assert!(printed(&home, &["learn", "status"]).contains("(local)"));
    assert!(printed_json(&home, &["learn", "forget", "--tenant", "", "--json"])["trajectories"] == 1);

    key(&home, "one", &["--learn"]);
    key(&home, "two", &[]);
    let learns = || {
        let list = printed_json(&home, &["keys", "list", "--json"]);
        [0, 1].map(|at| list["keys"][at]["learn"].clone())
    };
    assert_eq!(learns(), [json!(true), Value::Null]);
    printed(&home, &["keys", "set", "one", "--learn-default"]);
    printed(&home, &["keys", "set", "two", "--no-learn"]);
    assert_eq!(learns(), [Value::Null, json!(false)]);
    assert!(refused(&home, &["keys", "set", "tow", "--learn"]).contains("there is no key named 'tow'"));
    assert!(refused(&home, &["keys", "set", "two"]).contains("--learn"));
}

#[test]
fn answers_of_a_chat_are_rated_where_they_are_given() {
    let home = home();
    let (script, folder) = (concat!(env!("CARGO_MANIFEST_DIR"), "/tests/chat_feedback.py"), home.path().join("memory"));
    let mut python = Command::new("python3");
    python.env("RUVLLM_HOME", home.path()).args([script, env!("CARGO_BIN_EXE_ruvllm")]).arg(&folder);
    let output = python.output().expect("python3 runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let exported = printed(&home, &["learn", "export", "-"]);
    let lines: Vec<Value> = exported.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 3, "{exported}");
    let last = |line: &Value| line["messages"].as_array().and_then(|all| all.last()).cloned().expect("a message");
    assert!(last(&lines[0])["role"] == "assistant" && lines[0]["rejected"].is_null());
    assert!(last(&lines[1])["content"] == "Four." && lines[1]["rejected"].is_string());
    let asked = json!({ "role": "user", "content": "Name a colour." });
    assert!(last(&lines[2]) == asked && lines[2]["rejected"].is_string(), "{exported}");
    assert_eq!(lines[2]["messages"][3]["content"], "Four.", "the conversation went on with the correction");
}
