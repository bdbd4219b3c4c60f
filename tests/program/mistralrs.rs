//! Models on mistral.rs, with its real program, where `RUVLLM_MISTRALRS` names it.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::backends::witnessed;
use crate::server::{Server, ruvllm, start};
use crate::support::{home, mistralrs};

/// A server with a model on mistral.rs, and the same natively.
fn start_both(home: &tempfile::TempDir, program: &Path) -> Server {
    let models = ["smollm2", "--alias", "small=smollm2", "--backend-of", "smollm2=mistralrs"];
    let flags = ["--context", "512", "--sequences", "3", "--mistralrs", program.to_str().expect("UTF-8")];
    start(home, &[&models[..], &flags].concat())
}

fn chat(more: Value) -> Value {
    let mut body = json!({
        "model": "smollm2", "temperature": 0, "max_tokens": 12,
        "messages": [{ "role": "user", "content": "What is the capital of France? Answer in one word." }],
    });
    more.as_object().expect("fields").iter().for_each(|(name, value)| body[name] = value.clone());
    body
}

/// The processes of mistral.rs below a process.
fn children(of: u32) -> Vec<u32> {
    let output = Command::new("ps").args(["-e", "-o", "pid=,ppid=,args="]).output().expect("ps");
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let rows: Vec<(u32, u32, String)> = lines
        .lines()
        .filter_map(|line| {
            let mut parts = line.split_whitespace();
            Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.collect::<Vec<_>>().join(" ")))
        })
        .collect();
    let below = |of: u32| rows.iter().filter(move |(_, parent, _)| *parent == of);
    let guards = below(of).filter(|(_, _, arguments)| arguments.starts_with("sh "));
    guards.flat_map(|(guard, _, _)| below(*guard)).map(|(pid, _, _)| *pid).collect()
}

fn is_alive(pid: u32) -> bool {
    let status = Command::new("kill").args(["-0", &pid.to_string()]).stderr(Stdio::null()).status();
    status.expect("kill").success()
}

fn kill(pid: u32) {
    assert!(Command::new("kill").args(["-KILL", &pid.to_string()]).status().expect("kill").success());
}

#[test]
fn requests_go_through_our_endpoints_to_mistralrs() {
    let Some(program) = mistralrs() else { return };
    let home = home();
    let server = start_both(&home, &program);
    let (status, answer) = server.post("/v1/chat/completions", "x-request-id: first\r\n", &chat(json!({ "seed": 7 })));
    assert_eq!(status, 200, "{answer}");
    let text = answer["choices"][0]["message"]["content"].as_str().expect("a text");
    assert!(text.contains("Paris"), "{answer}");
    assert_eq!(witnessed(&server, "first")["backend"], "mistralrs");
    let raw = server.post_and_read("/v1/chat/completions", "", &chat(json!({ "seed": 7 })));
    assert!(raw.to_lowercase().contains("x-ruvllm-ignored: seed"), "{raw}");

    let events = server.post_and_read("/v1/chat/completions", "", &chat(json!({ "stream": true })));
    let deltas = events.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data: ")?).ok());
    let streamed: String =
        deltas.filter_map(|event| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned)).collect();
    assert_eq!(streamed, text);
    for (field, value) in [("response_format", json!({ "type": "json_object" })), ("logprobs", json!(true))] {
        let (status, refused) = server.post("/v1/chat/completions", "", &chat(json!({ field: value })));
        assert_eq!((status, &refused["error"]["param"]), (400, &json!(field)), "{refused}");
    }
    let tools = json!([{ "type": "function", "function": { "name": "look", "parameters": { "type": "object" } } }]);
    let (status, offered) = server.post("/v1/chat/completions", "", &chat(json!({ "tools": tools })));
    assert_eq!(status, 200, "{offered}");
    let listed = server.get_json("/admin/models");
    assert_eq!(listed["models"][0]["backend"], "mistralrs", "{listed}");
    let shown = ruvllm(&home).args(["ps", "--url", &format!("http://{}", server.address)]).output().expect("ps");
    assert!(String::from_utf8_lossy(&shown.stdout).contains("mistralrs"));

    // Together, and one that is given up.
    let given_up = server.send("/v1/chat/completions", "", &chat(json!({ "stream": true, "max_tokens": 400 })));
    drop(given_up);
    std::thread::scope(|scope| {
        let ask = || server.post("/v1/chat/completions", "", &chat(json!({})));
        let answers: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        for answer in answers {
            let (status, answer) = answer.join().expect("an answer");
            assert_eq!((status, answer["choices"][0]["message"]["content"].as_str()), (200, Some(text)), "{answer}");
        }
    });
    server.signal("TERM");
    let pids = children(server.child.id());
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(!pids.into_iter().any(is_alive));
}

#[test]
fn mistralrs_is_started_again_and_ends_with_us() {
    let Some(program) = mistralrs() else { return };
    let home = home();
    let mut server = start_both(&home, &program);
    let first = children(server.child.id());
    assert_eq!(first.len(), 1, "{first:?}");
    let body = chat(json!({ "stream": true, "max_tokens": 400 }));
    let mut answer = BufReader::new(server.send("/v1/chat/completions", "", &body));
    let mut line = String::new();
    while !line.contains("\"content\":\"") || line.contains("\"content\":\"\"") {
        line.clear();
        assert!(answer.read_line(&mut line).expect("text") > 0, "the answer has ended");
    }
    kill(first[0]);
    let mut rest = String::new();
    answer.read_to_string(&mut rest).expect("the rest");
    assert!(rest.contains("killed by signal 9") && rest.contains("started again"), "{rest}");
    let (status, answer) = server.post("/v1/chat/completions", "", &chat(json!({})));
    assert_eq!(status, 200, "{answer}");
    let second = children(server.child.id());
    assert!(second.len() == 1 && second != first, "{second:?}");
    // However we end.
    server.child.kill().expect("it runs");
    server.child.wait().expect("it has ended");
    let deadline = Instant::now() + Duration::from_secs(20);
    while is_alive(second[0]) {
        assert!(Instant::now() < deadline, "mistral.rs has outlived us");
        sleep(Duration::from_millis(20));
    }
}

#[test]
fn run_and_show_name_mistralrs() {
    let Some(program) = mistralrs() else { return };
    let home = home();
    let how = ["--backend", "mistralrs", "--mistralrs", program.to_str().expect("UTF-8")];
    let run = |arguments: &[&str]| ruvllm(&home).args(arguments).args(how).output().expect("the program runs");
    let shown = run(&["show", "smollm2", "--json"]);
    let shown: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    assert_eq!(shown["backend"]["name"], "mistralrs");
    let asked = ["run", "smollm2", "The capital of France is", "--raw", "--temperature", "0", "--max-tokens", "4"];
    let answer = run(&[&asked[..], &["--seed", "3", "--threads", "1", "--json"]].concat());
    let said = String::from_utf8_lossy(&answer.stderr).into_owned();
    let answer: Value = serde_json::from_slice(&answer.stdout).unwrap_or_else(|_| panic!("{said}"));
    assert!(answer["text"].as_str().expect("a text").contains("Paris"), "{answer}");
    assert_eq!(answer["usage"]["completion_tokens"], 4);
    for named in ["--seed has no effect", "--threads has no effect"] {
        assert!(said.contains(named), "{said}");
    }
}
