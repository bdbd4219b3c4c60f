//! What a server remembers, with the real program and the real model.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::server::{Server, ruvllm, start, start_command};
use crate::support::home;
use serde_json::{Value, json};
use tempfile::TempDir;

fn ask(question: &str) -> Value {
    json!({ "model": "smollm2", "messages": [{ "role": "user", "content": question }], "max_tokens": 8, "seed": 1 })
}

fn chat(server: &Server, headers: &str, body: &Value) -> Value {
    let (status, answer) = server.post("/v1/chat/completions", headers, body);
    assert_eq!(status, 200, "{answer}");
    answer
}

/// Entries are written a second after the first of a batch at the latest.
fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "it never happened");
        thread::sleep(Duration::from_millis(50));
    }
}

fn witnessed(server: &Server, query: &str, count: usize) -> Vec<Value> {
    until(|| {
        let list = server.get_json(&format!("/v1/witness?{query}"));
        let data = list["data"].as_array().unwrap_or_else(|| panic!("{list}")).clone();
        (data.len() >= count).then_some(data)
    })
}

fn run(home: &TempDir, arguments: &[&str]) -> Output {
    ruvllm(home).args(arguments).output().expect("the program runs")
}

/// What a command prints; it must succeed.
fn printed(home: &TempDir, arguments: &[&str]) -> String {
    let output = run(home, arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {said}");
    String::from_utf8(output.stdout).expect("text")
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

#[test]
fn requests_are_found_by_what_they_were_about_and_the_log_verifies() {
    let home = home();
    let server = start(&home, &["smollm2", "--context", "512", "--log-level", "warn", "--memory-text"]);
    let questions = [
        "How do I bake bread with rye flour and yeast?",
        "Which oven temperature is right for a loaf of bread?",
        "Explain the offside rule in football.",
        "Who won the football match yesterday evening?",
        "Write a function in Python that sorts a list of numbers.",
        "Why does my Python program raise an index error?",
    ];
    for (at, question) in questions.iter().enumerate() {
        chat(&server, &format!("x-request-id: question-{at}\r\n"), &ask(question));
    }
    // One that cannot be answered is remembered too.
    let (status, _) = server.post(
        "/v1/chat/completions",
        "x-request-id: too-long\r\n",
        &json!({
        "model": "smollm2", "messages": [{ "role": "user", "content": "word ".repeat(2000) }] }),
    );
    assert_eq!(status, 400);
    witnessed(&server, "limit=100", 7);

    let failed = witnessed(&server, "error=any", 1);
    assert_eq!(
        (failed.len(), &failed[0]["request"], &failed[0]["error"]["kind"]),
        (1, &json!("too-long"), &json!("context_length"))
    );
    let entry = server.get_json("/v1/witness/question-0");
    let body = &entry["entry"];
    assert_eq!((&body["model"], &body["tokens"]["answer"]), (&json!("smollm2"), &json!(8)));
    assert_eq!(body["texts"]["prompt"].as_str(), Some(format!("user: {}", questions[0]).as_str()));
    let latency = |part: &str| body["latency"][part].as_f64().unwrap_or_else(|| panic!("{part}: {body}"));
    assert!(latency("total_ms") > 0.0 && latency("prefill_ms") > 0.0 && latency("decode_ms") > 0.0);
    assert!(body["quality"]["score"].as_f64().is_some() && body["routing"]["policy"] == "router/default");

    let near = witnessed(&server, "like=baking%20a%20loaf%20of%20rye%20bread&limit=2", 2);
    let names: Vec<&str> = near.iter().filter_map(|entry| entry["request"].as_str()).collect();
    assert!(names.contains(&"question-0") && names.contains(&"question-1"), "{names:?}");
    let stats = server.get_json("/v1/witness/stats?since=1h");
    assert_eq!((&stats["all"]["requests"], &stats["all"]["errors"]), (&json!(7), &json!(1)));
    assert_eq!(server.get_json("/v1/witness/verify")["sound"], true);
    // What is written can be read before it is counted.
    let metrics = until(|| {
        let metrics = server.get("/metrics", "");
        metrics.contains("ruvllm_witness_written_total 7").then_some(metrics)
    });
    assert!(metrics.contains("ruvllm_witness_overflowed_total 0"), "{metrics}");
    stop(server);

    // The same on the command line.
    let found =
        printed(&home, &["witness", "search", "sorting numbers in Python", "-n", "2", "--json", "--quality", ">0.1"]);
    let first: Value = serde_json::from_str(found.lines().next().expect("a line")).expect("JSON");
    assert!(["question-4", "question-5"].contains(&first["request"].as_str().expect("a name")), "{found}");
    assert!(printed(&home, &["witness", "search", "--error", "any"]).contains("too-long"));
    assert!(printed(&home, &["witness", "show", "question-2"]).contains("offside"));
    assert!(printed(&home, &["witness", "stats"]).contains("smollm2"));
    assert!(printed(&home, &["witness", "verify"]).starts_with("verified: 7 entries"));
    let exported = printed(&home, &["witness", "export", "-"]);
    assert_eq!(exported.lines().count(), 7);
    for line in exported.lines() {
        let entry: Value = serde_json::from_str(line).expect("JSON");
        assert!(entry["id"].is_number() && entry["request"].is_string());
    }
    let page = home.path().join("stats.html");
    printed(&home, &["witness", "stats", "--report", page.to_str().expect("a path")]);
    assert!(std::fs::read_to_string(page).expect("a page").contains("<svg"));
    assert!(printed(&home, &["memory", "status"]).contains("hidden:smollm2"));
    // Short ones too: by their topic.
    for (text, expected) in [("football rules", [2, 3]), ("bread recipe", [0, 1]), ("index error", [4, 5])] {
        let found = printed(&home, &["memory", "search", text, "--kind", "request", "-n", "1"]);
        assert!(expected.iter().any(|at| found.contains(&format!("question-{at}"))), "{text}: {found}");
    }
    for (policy, about) in
        [("router/baking", "recipes for bread and cake"), ("router/sport", "results of football matches")]
    {
        printed(&home, &["policies", "set", policy, r#"{"temperature": 0.2}"#, "--about", about]);
    }
    let unread = refused(&home, &["policies", "set", "kernel/default", r#"{"set": "avx2"}"#]);
    assert!(unread.contains("nothing reads policies of type \"kernel\""), "{unread}");
    let found = printed(&home, &["memory", "search", "how to bake a loaf", "--kind", "policy", "-n", "1"]);
    assert!(found.contains("router/baking"), "{found}");
}

/// Strangers are web pages and other machines. Other users of this machine may name a session besides.
#[test]
fn only_the_operator_sees_what_is_remembered() {
    let home = home();
    let server = start(&home, &["smollm2", "--context", "512", "--log-level", "warn"]);
    let stranger = "origin: https://evil.example\r\n";
    chat(&server, stranger, &ask("Hello"));
    let mut body = ask("Hello");
    body["session"] = json!("talk");
    chat(&server, "", &body);
    let (status, answer) = server.post("/v1/chat/completions", stranger, &body);
    assert_eq!(status, 403, "{answer}");
    for path in [
        "/v1/witness",
        "/v1/witness/stats",
        "/v1/witness/x",
        "/v1/witness/verify",
        "/v1/sessions",
        "/v1/sessions/talk",
        "/v1/policies",
        "/v1/policies/router/default",
        "/v1/memory",
        "/v1/memory/search?like=hello",
        // Before anything else is looked at, and before anything is computed.
        "/v1/witness?like=hello&limit=0",
        "/v1/memory/search?like=hello&limit=0",
    ] {
        for whoever in [stranger, ""] {
            let answer = server.get(path, whoever);
            assert!(answer.starts_with("HTTP/1.1 403"), "{path}: {answer}");
            assert!(answer.contains("ruvllm keys token"), "{path}: {answer}");
        }
        assert!(!server.get(path, &server.operator()).starts_with("HTTP/1.1 403"), "{path}");
    }
    stop(server);
}

#[test]
fn a_session_goes_on_after_a_restart_with_what_was_said() {
    let home = home();
    let arguments = ["smollm2", "--context", "1024", "--log-level", "warn"];
    let server = start(&home, &arguments);
    let say = |server: &Server, text: &str| {
        let mut body = ask(text);
        body["session"] = json!("garden");
        chat(server, "", &body)
    };
    let first = say(&server, "My favourite flower is the tulip. Remember that.");
    // At once, before anything was written.
    let second = say(&server, "And I like roses.");
    let tokens = |answer: &Value| answer["usage"]["prompt_tokens"].as_u64().expect("a count");
    assert!(tokens(&second) > tokens(&first) + 10, "the conversation so far is part of the prompt");
    let session = server.get_json("/v1/sessions/garden");
    assert_eq!((&session["turns"], session["messages"].as_array().map(Vec::len)), (&json!(2), Some(4)));
    stop(server);

    let server = start(&home, &arguments);
    let third = say(&server, "Which flowers do I like?");
    assert!(tokens(&third) > tokens(&second) + 10);
    let session = server.get_json("/v1/sessions/garden");
    assert_eq!(session["messages"][0]["content"], "My favourite flower is the tulip. Remember that.");
    assert_eq!(session["messages"].as_array().map(Vec::len), Some(6));
    // The same answer as one that is sent the whole conversation.
    let mut whole = ask("");
    whole["messages"] = json!(session["messages"].as_array().map(|messages| &messages[..5]));
    whole["seed"] = json!(1);
    assert_eq!(chat(&server, "", &whole)["choices"][0]["message"], third["choices"][0]["message"]);

    for (body, field) in [
        (json!({ "session": "" }), "session"),
        (json!({ "session": "a\nb" }), "session"),
        (json!({ "session": "x".repeat(300) }), "session"),
        (json!({ "session": "garden", "n": 2 }), "session"),
        (json!({ "session": 7 }), "session"),
    ] {
        let mut request = ask("Hello");
        request.as_object_mut().expect("an object").extend(body.as_object().expect("an object").clone());
        let (status, answer) = server.post("/v1/chat/completions", "", &request);
        assert_eq!((status, &answer["error"]["param"]), (400, &json!(field)), "{answer}");
    }
    stop(server);

    assert!(printed(&home, &["sessions", "list"]).contains("garden"));
    assert!(printed(&home, &["sessions", "show", "garden"]).contains("tulip"));
    let resumed = printed(&home, &["sessions", "resume", "garden", "Thank you."]);
    assert!(!resumed.trim().is_empty());
    let session: Value =
        serde_json::from_str(&printed(&home, &["sessions", "show", "garden", "--json"])).expect("JSON");
    assert_eq!(session["turns"], 4);
    printed(&home, &["sessions", "rm", "garden"]);
    assert!(refused(&home, &["sessions", "show", "garden"]).contains("no session"));
}

#[test]
fn policies_fill_in_what_requests_leave_open() {
    let home = home();
    printed(&home, &["policies", "set", "router/smollm2", r#"{"temperature": 0, "max_tokens": 3}"#]);
    let server = start(&home, &["smollm2", "--context", "512", "--log-level", "warn"]);
    let mut body = ask("Tell me a story.");
    body.as_object_mut().expect("an object").remove("max_tokens");
    assert_eq!(chat(&server, "x-request-id: open\r\n", &body)["usage"]["completion_tokens"], 3);
    body["max_tokens"] = json!(5);
    body["temperature"] = json!(0.5);
    assert_eq!(chat(&server, "x-request-id: said\r\n", &body)["usage"]["completion_tokens"], 5);
    witnessed(&server, "", 2);
    let routing = |request: &str| server.get_json(&format!("/v1/witness/{request}"))["entry"]["routing"].clone();
    assert_eq!((&routing("open")["temperature"], &routing("open")["policy"]), (&json!(0.0), &json!("router/smollm2")));
    assert_eq!(routing("said")["temperature"], 0.5);
    let response = json!({ "model": "smollm2", "input": "Tell me a story." });
    assert_eq!(server.post("/v1/responses", "", &response).1["temperature"], 0.0, "answers tell what was decided");
    assert!(server.get_json("/v1/policies?type=router")["data"].as_array().is_some_and(|list| list.len() == 2));
    assert_eq!(server.get_json("/v1/policies/router/smollm2")["parameters"]["max_tokens"], 3);
    stop(server);
    assert!(printed(&home, &["policies", "list"]).contains("router/smollm2"));
    printed(&home, &["policies", "rm", "router/smollm2"]);
    for (arguments, told) in [
        (["policies", "set", "router/x", "{"], "not JSON"),
        (["policies", "set", "router/x", r#"{"temperature": -3}"#], "temperature"),
        (["policies", "set", "router", "{}"], "router/default"),
        (["policies", "set", "router/x", "[]"], "parameters"),
    ] {
        assert!(refused(&home, &arguments).contains(told), "{arguments:?}");
    }
    assert!(refused(&home, &["policies", "rm", "router/smollm2"]).contains("never set"));
}

#[test]
fn a_tenant_sees_only_its_own() {
    let home = home();
    let key = |name: &str, more: &[&str]| {
        let arguments: Vec<&str> = ["keys", "add", name].into_iter().chain(more.iter().copied()).collect();
        format!("authorization: Bearer {}\r\n", printed(&home, &arguments).trim())
    };
    let (acme, globex) = (key("a", &["--tenant", "acme"]), key("g", &["--tenant", "globex"]));
    let admin = key("root", &["--scope", "admin"]);
    let server = start(&home, &["smollm2", "--context", "512", "--log-level", "warn"]);
    let mut body = ask("What is our revenue?");
    body["session"] = json!("talk");
    chat(&server, &format!("{acme}x-request-id: of-acme\r\n"), &body);
    chat(&server, &format!("{globex}x-request-id: of-globex\r\n"), &body);
    let get = |path: &str, key: &str| {
        let answer = server.get(path, key);
        let status = answer.split_whitespace().nth(1).expect("a status").to_owned();
        let body = answer.split_once("\r\n\r\n").expect("a body").1;
        (status, serde_json::from_str::<Value>(body).expect("JSON"))
    };
    until(|| (get("/v1/witness", &admin).1["data"].as_array()?.len() == 2).then_some(()));
    let names = |list: &Value, field: &str| -> Vec<String> {
        let data = list["data"].as_array().expect("a list").iter();
        data.filter_map(|entry| entry[field].as_str()).map(str::to_owned).collect()
    };
    assert_eq!(names(&get("/v1/witness", &acme).1, "request"), ["of-acme"]);
    assert_eq!(names(&get("/v1/witness?like=revenue", &acme).1, "request"), ["of-acme"]);
    assert_eq!(get("/v1/witness/of-globex", &acme).0, "404");
    assert_eq!(get("/v1/witness?tenant=globex", &acme).0, "403");
    assert_eq!(names(&get("/v1/witness?tenant=globex", &admin).1, "request"), ["of-globex"]);
    assert_eq!(names(&get("/v1/sessions", &acme).1, "tenant"), ["acme"]);
    assert_eq!(get("/v1/sessions/talk", &acme).1["tenant"], "acme");
    assert_eq!(get("/v1/sessions/talk?tenant=globex", &acme).0, "403");
    assert_eq!(get("/v1/witness/stats", &acme).1["all"]["requests"], 1);
    assert_eq!(get("/v1/witness/verify", &acme).0, "403");
    assert_eq!(get("/v1/memory", &acme).0, "403");
    assert_eq!(get("/v1/memory", &admin).1["entries"], 2);
    assert!(names(&get("/v1/memory/search?like=revenue", &acme).1, "kind").len() >= 2);
    for found in get("/v1/memory/search?like=revenue", &acme).1["data"].as_array().expect("a list") {
        assert_eq!(found["item"]["tenant"], "acme");
    }
    assert_eq!(get("/v1/witness", "").0, "401");
    stop(server);
}

#[test]
fn what_is_wrong_in_an_address_is_told_by_name() {
    let home = home();
    let server = start(&home, &["smollm2", "--context", "512", "--log-level", "warn"]);
    for (path, field) in [
        ("/v1/witness?quality=good", "quality"),
        ("/v1/witness?latency=%3C", "latency"),
        ("/v1/witness?since=yesterday", "since"),
        ("/v1/witness?limit=0", "limit"),
        ("/v1/witness?limit=abc", "limit"),
        ("/v1/witness?limit=99999999999999999999", "limit"),
        ("/v1/witness?qualty=1", "qualty"),
        ("/v1/witness?like=", "like"),
        ("/v1/witness/stats?buckets=0", "buckets"),
        ("/v1/sessions?limit=5000", "limit"),
        ("/v1/memory/search", "like"),
        ("/v1/memory/search?like=x&kind=y", "kind"),
    ] {
        let answer = server.get(path, &server.operator());
        assert!(answer.starts_with("HTTP/1.1 400"), "{path}: {answer}");
        let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n").expect("a body").1).expect("JSON");
        assert_eq!(body["error"]["param"], field, "{path}: {body}");
    }
    for path in ["/v1/witness/nothing", "/v1/sessions/nothing", "/v1/policies/router/nothing"] {
        assert!(server.get(path, &server.operator()).starts_with("HTTP/1.1 404"), "{path}");
    }
    stop(server);
    for (arguments, told) in [
        (vec!["witness", "search", "--quality", "good"], "--quality"),
        (vec!["witness", "search", "--since", "yesterday"], "--since"),
        (vec!["witness", "search", ""], "search text is empty"),
        (vec!["witness", "show", "nothing"], "no request"),
        (vec!["serve", "smollm2", "--port", "0", "--memory-age", "x"], "--memory-age"),
        (vec!["serve", "smollm2", "--port", "0", "--memory-size", "x"], "--memory-size"),
    ] {
        assert!(refused(&home, &arguments).contains(told), "{arguments:?}");
    }
}

#[test]
fn without_a_memory_requests_are_answered_all_the_same() {
    let home = home();
    let with = start(&home, &["smollm2", "--context", "512", "--log-level", "warn"]);
    let expected = chat(&with, "", &ask("Why is the sky blue?"));
    stop(with);
    assert!(home.path().join("memory/memory.db").exists());
    std::fs::remove_dir_all(home.path().join("memory")).expect("removed");
    let server = start(&home, &["smollm2", "--context", "512", "--log-level", "warn", "--no-memory"]);
    let answer = chat(&server, "", &ask("Why is the sky blue?"));
    assert_eq!(answer["choices"], expected["choices"]);
    assert!(server.get("/v1/witness", &server.operator()).starts_with("HTTP/1.1 404"));
    let mut body = ask("Hello");
    body["session"] = json!("talk");
    let (status, answer) = server.post("/v1/chat/completions", "", &body);
    assert_eq!((status, &answer["error"]["param"]), (400, &json!("session")), "{answer}");
    stop(server);
    assert!(!home.path().join("memory").exists());
    assert!(refused(&home, &["witness", "search"]).contains("no memory"));
}

#[test]
fn the_memory_is_encrypted_backed_up_restored_and_rekeyed() {
    let home = home();
    let folder = home.path().join("memory");
    let serve = || start(&home, &["smollm2", "--context", "512", "--log-level", "warn", "--memory-text"]);
    let server = serve();
    chat(&server, "", &ask("The secret word is rhododendron."));
    witnessed(&server, "", 1);
    let copy = home.path().join("copy");
    let copy_path = copy.to_str().expect("a path").to_owned();
    printed(&home, &["memory", "backup", &copy_path]);
    chat(&server, "", &ask("Another question."));
    witnessed(&server, "", 2);
    for file in [folder.join("memory.db"), folder.join("memory.db-wal"), copy.clone()] {
        let bytes = std::fs::read(&file).expect("a file");
        let secret = b"rhododendron";
        assert!(!bytes.windows(secret.len()).any(|window| window == secret), "{}", file.display());
    }
    stop(server);

    printed(&home, &["memory", "rekey"]);
    assert!(printed(&home, &["witness", "verify"]).starts_with("verified: 2 entries"));
    let said = refused(&home, &["memory", "restore", &copy_path]);
    assert!(said.contains("key"), "the backup has the old key: {said}");
    let again = home.path().join("again");
    let again = again.to_str().expect("a path");
    printed(&home, &["memory", "backup", again]);
    let server = serve();
    chat(&server, "", &ask("A third question."));
    witnessed(&server, "", 3);
    stop(server);
    printed(&home, &["memory", "restore", again]);
    assert!(printed(&home, &["witness", "verify"]).starts_with("verified: 2 entries"));

    // A wrong key is an error, for a server too, and never a new memory.
    std::fs::write(folder.join("memory.key"), "ab".repeat(32)).expect("written");
    assert!(refused(&home, &["witness", "verify"]).contains("does not open"));
    assert!(refused(&home, &["serve", "smollm2", "--port", "0"]).contains("does not open"));
}

/// A program that writes to a memory and does not end: it holds the byte of SQLite's index that writers lock.
struct Locked(std::process::Child);

impl Locked {
    fn new(home: &TempDir) -> Self {
        let script = "import fcntl, sys, time\n\
                      file = open(sys.argv[1], 'r+b')\n\
                      fcntl.lockf(file, fcntl.LOCK_EX, 1, 120)\n\
                      print('locked', flush=True)\n\
                      time.sleep(600)";
        let index = home.path().join("memory/memory.db-shm");
        let mut command = Command::new("python3");
        let mut child = command.args(["-c", script]).arg(index).stdout(Stdio::piped()).spawn().expect("python");
        let mut said = String::new();
        BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut said).expect("text");
        assert_eq!(said.trim(), "locked");
        Self(child)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_memory_that_cannot_be_written_costs_no_answers_and_never_the_shutdown() {
    let home = home();
    let arguments = ["smollm2", "--context", "512", "--log-level", "error"];
    let server = start(&home, &arguments);
    let mut in_session = ask("Hello");
    in_session["session"] = json!("talk");
    chat(&server, "", &in_session);
    witnessed(&server, "", 1);
    let locked = Locked::new(&home);
    for _ in 0..5 {
        chat(&server, "", &ask("Hello"));
    }
    // What was said can be read, so the session goes on.
    chat(&server, "", &in_session);
    let memory = until(|| Some(server.get_json("/v1/memory")).filter(|memory| memory["waiting"] == 6));
    assert_eq!(memory["lost"], 0, "{memory}");
    assert!(memory["encryption"].as_str().is_some_and(|told| told.contains("SQLCipher")), "{memory}");
    // It is picked up again.
    drop(locked);
    assert_eq!(witnessed(&server, "", 7).len(), 7);

    let _locked = Locked::new(&home);
    chat(&server, "", &ask("Hello"));
    server.signal("TERM");
    let (code, said) = server.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("lost"), "it is told: {said}");
}

#[test]
fn a_third_signal_ends_the_server_whatever_it_waits_for() {
    let home = home();
    let mut server = start(&home, &["smollm2", "--context", "512", "--log-level", "error"]);
    chat(&server, "", &ask("Hello"));
    witnessed(&server, "", 1);
    let _locked = Locked::new(&home);
    chat(&server, "", &ask("Hello"));
    let code = until(|| {
        // Signals of the same kind that come too fast are one.
        if let Some(status) = server.child.try_wait().expect("a status") {
            return Some(status.code());
        }
        server.signal("TERM");
        thread::sleep(Duration::from_millis(300));
        None
    });
    assert_eq!(code, Some(130));
}

/// Killed without warning, the server has lost at most what was waiting.
#[test]
fn a_killed_server_keeps_what_was_written() {
    let home = home();
    let mut written = 0;
    for round in 0..5 {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ruvllm"));
        command.env("RUVLLM_HOME", home.path());
        command.args(["serve", "--port", "0", "smollm2", "--context", "512", "--log-level", "warn"]);
        let server = start_command(command);
        for at in 0..4 {
            chat(&server, &format!("x-request-id: r{round}-{at}\r\n"), &ask("Hello"));
        }
        written = until(|| {
            let entries = server.get_json("/v1/memory")["entries"].as_u64()?;
            (entries > written).then_some(entries)
        });
        chat(&server, "", &ask("Hello"));
        server.signal("KILL");
        drop(server);
    }
    let verified: Value = serde_json::from_str(&printed(&home, &["witness", "verify", "--json"])).expect("JSON");
    assert_eq!(verified["sound"], true);
    assert!(verified["entries"].as_u64().expect("a count") >= written);
}
