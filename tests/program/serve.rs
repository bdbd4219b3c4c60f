//! `ruvllm serve` and `ruvllm keys` as their users start them.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::server::{ruvllm, start, start_command};
use crate::support::safetensors_folder;
use serde_json::{Value, json};

fn output(mut command: Command) -> Output {
    command.output().expect("the program starts")
}

#[test]
fn it_serves_until_it_is_asked_to_stop() {
    let home = tempfile::tempdir().unwrap();
    for signal in ["TERM", "INT"] {
        let server = start(&home, &[]);
        for path in ["/health", "/ready", "/metrics", "/openapi.json"] {
            assert!(server.get(path, "").starts_with("HTTP/1.1 200"), "{path}");
        }
        server.signal(signal);
        let (code, said) = server.end();
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("try: curl http://127.0.0.1:"), "{said}");
    }
}

#[test]
fn a_second_signal_does_not_wait_for_anybody() {
    let home = tempfile::tempdir().unwrap();
    let mut server = start(&home, &["--header-timeout", "1h", "--drain-timeout", "1h"]);
    let mut slow = server.connect();
    slow.write_all(b"POST /openapi.json HTTP/1.1\r\ncontent-le").unwrap();
    server.signal("TERM");
    // Two signals at once would be one.
    let mut line = String::new();
    while !line.contains("a second signal ends them") {
        line.clear();
        assert!(server.errors.read_line(&mut line).expect("text") > 0, "it has ended already");
    }
    server.signal("TERM");
    assert_eq!(server.end().0, Some(0));
}

#[test]
fn a_folder_of_safetensors_is_served_with_its_own_sampling_defaults() {
    let (home, generation) = (tempfile::tempdir().unwrap(), json!({ "temperature": 0.25, "top_k": 3 }));
    let folder = safetensors_folder(&generation);
    let path = folder.path().to_str().unwrap();
    let server = start(&home, &[path, "--context", "128", "--quantize", "q8_0"]);
    let model = server.get_json("/v1/models")["data"][0]["id"].clone();
    let messages = json!([{ "role": "user", "content": "Why is the sky blue?" }]);
    let body = json!({ "model": model, "messages": messages, "max_tokens": 8, "seed": 1 });
    let (status, answer) = server.post("/v1/chat/completions", "", &body);
    assert_eq!((status, &answer["usage"]["prompt_tokens"]), (200, &json!(21)), "{answer}");
    assert!(answer["usage"]["completion_tokens"].as_u64().is_some_and(|tokens| tokens > 0), "{answer}");
    let body = json!({ "model": model, "input": "Why?", "max_output_tokens": 1 });
    for (given, temperature) in [(Value::Null, 0.25), (json!(0.5), 0.5)] {
        let mut body = body.clone();
        body["temperature"] = given;
        let (status, answer) = server.post("/v1/responses", "", &body);
        assert_eq!((status, &answer["temperature"]), (200, &json!(temperature)), "{answer}");
    }
    let mut command = ruvllm(&home);
    command.env("RUVLLM_LOG", "info").args(["run", path, "Why?", "--max-tokens", "2", "--context", "64"]);
    let said = String::from_utf8(output(command).stderr).unwrap();
    assert!(said.contains("temperature 0.25, top_k 3"), "{said}");
    let mut command = ruvllm(&home);
    command.args(["show", path, "--json"]);
    let shown: Value = serde_json::from_slice(&output(command).stdout).unwrap();
    assert_eq!(shown["sampling"], json!({ "temperature": 0.25, "top_k": 3 }));
}

#[test]
fn a_port_that_is_taken_is_told() {
    let home = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let mut command = ruvllm(&home);
    command.args(["serve", "--port", &port]);
    let said = output(command);
    assert_eq!(said.status.code(), Some(1));
    let said = String::from_utf8(said.stderr).unwrap();
    assert!(said.contains(&format!("port {port} of 127.0.0.1 is in use")) && said.contains("--port"), "{said}");
}

#[test]
fn logs_as_json_have_one_line_for_each_request_and_no_secrets() {
    let home = tempfile::tempdir().unwrap();
    let server = start(&home, &["--log-format", "json"]);
    server.get("/health?prompt=secret", "x-request-id: find-me\r\nauthorization: Bearer ruv_secret\r\n");
    server.signal("TERM");
    let (_, said) = server.end();
    assert!(!said.contains("secret"), "{said}");
    let lines: Vec<Value> = said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let requests: Vec<&Value> = lines.iter().filter(|line| line["message"] == "request").collect();
    assert_eq!(requests.len(), 1, "{said}");
    assert_eq!(requests[0]["id"], "find-me");
    assert_eq!(requests[0]["path"], "/health");
    assert_eq!(requests[0]["status"], 200);
    assert_eq!(requests[0]["level"], "INFO");
}

#[test]
fn the_log_says_as_much_as_it_is_asked_for() {
    let home = tempfile::tempdir().unwrap();
    for (variable, flag, is_logged) in
        [("info", &[][..], true), ("warn", &[], false), ("info", &["--log-level", "warn"], false)]
    {
        let mut command = ruvllm(&home);
        command.args(["serve", "--port", "0"]).args(flag).env("RUVLLM_LOG", variable);
        let server = start_command(command);
        server.get("/health", "");
        server.signal("TERM");
        assert_eq!(server.end().1.contains("/health"), is_logged, "{variable} {flag:?}");
    }
}

#[test]
fn keys_come_and_go_while_it_runs() {
    let home = tempfile::tempdir().unwrap();
    let server = start(&home, &[]);
    assert!(server.get("/metrics", "").starts_with("HTTP/1.1 200"));
    let mut add = ruvllm(&home);
    add.args(["keys", "add", "ops", "--scope", "metrics", "--expires", "30d"]);
    let key = String::from_utf8(output(add).stdout).unwrap().trim().to_owned();
    assert!(key.starts_with("ruv_"), "{key}");
    assert!(server.get("/metrics", "").starts_with("HTTP/1.1 401"));
    let header = format!("authorization: Bearer {key}\r\n");
    assert!(server.get("/metrics", &header).starts_with("HTTP/1.1 200"));
    let stored = fs::read_to_string(home.path().join("keys.toml")).unwrap();
    assert!(!stored.contains(&key[4..]), "only a hash is kept");
    let mut list = ruvllm(&home);
    list.args(["keys", "list", "--json"]);
    let listed: Value = serde_json::from_slice(&output(list).stdout).unwrap();
    assert_eq!(listed["keys"][0]["name"], "ops");
    assert_eq!(listed["keys"][0]["expired"], false);
    let mut remove = ruvllm(&home);
    remove.args(["keys", "rm", "ops"]);
    let removed = output(remove);
    assert!(removed.status.success());
    let said = String::from_utf8(removed.stderr).unwrap();
    assert!(said.contains("lets nobody in") && said.contains("keys.toml"), "{said}");
    assert!(server.get("/metrics", &header).starts_with("HTTP/1.1 401"));
    let mut token = ruvllm(&home);
    token.args(["keys", "token"]);
    let token = String::from_utf8(output(token).stdout).unwrap();
    let header = format!("authorization: Bearer {}\r\n", token.trim());
    assert!(server.get("/metrics", &header).starts_with("HTTP/1.1 200"), "the operator needs no key");
    server.signal("TERM");
    assert_eq!(server.end().0, Some(0));
}

#[test]
fn a_separate_port_for_administration_has_the_metrics_to_itself() {
    let home = tempfile::tempdir().unwrap();
    let server = start(&home, &["--admin-port", "0"]);
    assert!(server.get("/metrics", "").starts_with("HTTP/1.1 404"));
    assert!(server.get("/health", "").starts_with("HTTP/1.1 200"));
    server.signal("TERM");
    let (code, said) = server.end();
    assert_eq!(code, Some(0));
    assert!(said.contains("administration on http://127.0.0.1:"), "{said}");
}

#[test]
fn listening_to_others_without_keys_is_warned_of() {
    let home = tempfile::tempdir().unwrap();
    let mut command = ruvllm(&home);
    let child = command.args(["serve", "--host", "0.0.0.0", "--port", "0"]).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("the program starts");
    let mut lines = BufReader::new(child.stderr.take().expect("standard error")).lines();
    let warning = lines.find_map(|line| line.ok().filter(|line| line.contains("has no keys")));
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    assert!(warning.is_some_and(|line| line.contains("ruvllm keys add")));
}

#[test]
fn the_command_line_administers_and_others_on_the_machine_do_not() {
    let home = tempfile::tempdir().unwrap();
    let server = start(&home, &[]);
    assert!(server.get("/admin/models", "").starts_with("HTTP/1.1 403"));
    let ps = |home: &tempfile::TempDir| {
        let mut command = ruvllm(home);
        command.args(["ps", "--json", "--url", &format!("http://{}", server.address)]);
        output(command)
    };
    let listed = ps(&home);
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let elsewhere = ps(&tempfile::tempdir().unwrap());
    assert!(!elsewhere.status.success());
    let said = String::from_utf8(elsewhere.stderr).unwrap();
    assert!(said.contains("403") && said.contains("ruvllm keys token"), "{said}");
    let second = start(&home, &[]);
    assert_eq!(second.operator(), server.operator(), "all servers of a home folder have the same");
}

#[cfg(unix)]
#[test]
fn running_out_of_file_descriptors_is_survived() {
    let home = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    let program = env!("CARGO_BIN_EXE_ruvllm");
    command.args(["-c", &format!("ulimit -n 40; exec {program} serve --port 0")]).env("RUVLLM_HOME", home.path());
    let server = start_command(command);
    let crowd: Vec<TcpStream> = (0..100).map(|_| server.connect()).collect();
    drop(crowd);
    // Until the server has noticed that the crowd is gone, their address has all the connections that it may have.
    let is_well = || server.try_get("/health", "").is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"));
    let asked = Instant::now();
    while !is_well() {
        assert!(asked.elapsed() < Duration::from_secs(60), "it does not recover");
        std::thread::sleep(Duration::from_millis(20));
    }
    server.signal("TERM");
    assert_eq!(server.end().0, Some(0));
}
