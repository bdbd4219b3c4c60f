//! `ruvllm serve` with the real model: what happens to models and memory while clients come, go and misbehave.

use crate::support;
use std::io::{Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use crate::server::{Server, ruvllm, start};
use crate::support::{home, smollm2};
use serde_json::{Value, json};

fn question(max_tokens: usize) -> Value {
    json!({ "model": "smollm2", "messages": [{ "role": "user", "content": "Tell me a long story." }],
            "max_tokens": max_tokens, "temperature": 1.0, "seed": 3 })
}

/// Waits until nothing runs, and checks that all memory is free or holds what is cached.
fn check_all_is_given_back(server: &Server) {
    let until = Instant::now() + Duration::from_secs(300);
    loop {
        let model = &server.get_json("/admin/models")["models"][0];
        if model["running"] == 0 && model["waiting"] == 0 {
            break;
        }
        assert!(Instant::now() < until, "it still runs: {model}");
        thread::sleep(Duration::from_millis(20));
    }
    let cache = &server.get_json("/v1/cache")["models"][0];
    assert_eq!(cache["pages"], cache["cached_pages"], "{cache}");
}

#[test]
fn whoever_hangs_up_ends_the_request_and_frees_its_memory() {
    let home = home();
    let server = start(&home, &["smollm2", "--context", "4096"]);
    let mut streamed = question(3900);
    streamed["stream"] = json!(true);
    for body in [streamed, question(3900)] {
        let mut stream = server.send("/v1/chat/completions", "", &body);
        if body["stream"] == true {
            let mut beginning = [0; 400];
            stream.read_exact(&mut beginning).expect("it has begun");
        } else {
            while server.get_json("/admin/models")["models"][0]["running"] == 0 {
                thread::sleep(Duration::from_millis(5));
            }
        }
        drop(stream);
        check_all_is_given_back(&server);
    }
    // Counted by the request's own task, after the engine has let go of it.
    let until = Instant::now() + Duration::from_secs(300);
    while !server.get("/metrics", "").contains("finished_reason=\"abort\"} 2") {
        assert!(Instant::now() < until, "{}", server.get("/metrics", ""));
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_thousand_clients_at_once_are_all_answered() {
    let home = home();
    // A line of log for each would fill the pipe that nobody reads here.
    let server = start(&home, &["smollm2", "--context", "512", "--log-level", "warn"]);
    let mut streams: Vec<_> = (0..1000).map(|_| server.send("/v1/chat/completions", "", &question(1))).collect();
    for (index, stream) in streams.iter_mut().enumerate() {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        // On a busy machine prompts may not be prepared in time; a client then does as it is told.
        while answer.contains("preparation_timeout") {
            answer = server.post_and_read("/v1/chat/completions", "", &question(1));
        }
        assert!(answer.starts_with("HTTP/1.1 200"), "client {index}: {answer}");
    }
    check_all_is_given_back(&server);
}

#[test]
fn a_request_may_ask_for_less_context_than_the_model_has() {
    let home = home();
    let server = start(&home, &["smollm2", "--context", "512"]);
    let ask = |body: &Value| {
        let answer = server.post_and_read("/v1/chat/completions", "", body);
        let (head, body) = answer.split_once("\r\n\r\n").expect("a body");
        (head.to_owned(), serde_json::from_str::<Value>(body).expect("JSON"))
    };
    let mut body = question(400);
    body["num_ctx"] = json!(64);
    let (head, answer) = ask(&body);
    assert!(!head.contains("x-ruvllm-ignored"), "{head}");
    assert_eq!(
        (&answer["usage"]["total_tokens"], &answer["choices"][0]["finish_reason"]),
        (&json!(64), &json!("length"))
    );
    body["num_ctx"] = json!(8);
    let (head, answer) = ask(&body);
    assert!(head.starts_with("HTTP/1.1 400") && answer["error"]["code"] == "context_length_exceeded", "{answer}");
    (body["num_ctx"], body["max_tokens"]) = (json!(100_000), json!(2));
    let (head, _) = ask(&body);
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("x-ruvllm-ignored: num_ctx"), "{head}");
    for wrong in [json!(0), json!(-1), json!("many"), json!(1u64 << 40)] {
        body["num_ctx"] = wrong;
        let (head, answer) = ask(&body);
        assert!(head.starts_with("HTTP/1.1 400") && answer["error"]["param"] == "num_ctx", "{answer}");
    }
}

#[test]
fn models_come_when_they_are_asked_for_and_go_when_they_are_told() {
    support::minilm();
    let home = home();
    let server = start(&home, &["--context", "512", "--alias", "gpt-4o-mini=smollm2"]);
    assert_eq!(server.get_json("/admin/models")["models"], json!([]));
    let names = server.get_json("/v1/models");
    let card = |id: &str| names["data"].as_array().expect("a list").iter().find(|card| card["id"] == id).cloned();
    assert_eq!(card("gpt-4o-mini").expect("it is listed")["parent"], "smollm2");
    let smollm2 = card("smollm2").expect("it is listed");
    assert_eq!((&smollm2["loaded"], &smollm2["max_model_len"]), (&json!(false), &json!(8192)), "{smollm2}");
    assert_eq!(smollm2["capabilities"], json!(["completion", "tools"]));
    assert_eq!(server.get_json("/v1/models/minilm")["capabilities"], json!(["embedding"]));
    let mut aliased = question(2);
    aliased["model"] = json!("gpt-4o-mini");
    assert_eq!(server.post("/v1/chat/completions", "", &aliased).0, 200);
    assert_eq!(server.get_json("/admin/models")["models"][0]["name"], "smollm2");
    let loaded = server.get_json("/v1/models/smollm2");
    assert_eq!((&loaded["loaded"], &loaded["max_model_len"]), (&json!(true), &json!(512)));
    let name = json!({ "model": "smollm2" });
    assert_eq!(server.post("/admin/models/reload", &server.operator(), &name).0, 200);
    assert_eq!(server.post("/v1/chat/completions", "", &question(2)).0, 200);
    assert_eq!(server.post("/admin/models/unload", &server.operator(), &name).0, 200);
    assert_eq!(server.post("/admin/models/unload", &server.operator(), &name).0, 404);
    for unknown in ["/etc/passwd", "../smollm2", "hf:a/b/c.gguf", "nothing", ""] {
        let mut body = question(1);
        body["model"] = json!(unknown);
        let (status, answer) = server.post("/v1/chat/completions", "", &body);
        assert_eq!((status, answer["error"]["code"].as_str()), (404, Some("model_not_found")), "{answer}");
    }
}

#[test]
fn a_model_that_is_served_by_its_path_can_be_loaded_again() {
    let home = home();
    let file = smollm2();
    let server = start(&home, &["--context", "512", "--log-level", "warn", file.to_str().expect("a plain path")]);
    let name = server.get_json("/admin/models")["models"][0]["name"].clone();
    let mut body = question(2);
    body["model"] = name.clone();
    assert_eq!(server.post("/admin/models/reload", &server.operator(), &json!({ "model": name })).0, 200);
    assert_eq!(server.post("/v1/chat/completions", "", &body).0, 200);
}

#[test]
fn an_answer_that_runs_is_finished_when_the_server_is_asked_to_stop() {
    let home = home();
    let server = start(&home, &["smollm2", "--context", "1024"]);
    let mut body = question(100);
    body["stream"] = json!(true);
    let mut stream = server.send("/v1/chat/completions", "", &body);
    let mut answer = vec![0; 300];
    stream.read_exact(&mut answer).expect("it has begun");
    server.signal("TERM");
    stream.read_to_end(&mut answer).expect("it ends properly");
    assert!(String::from_utf8_lossy(&answer).contains("data: [DONE]"), "the answer is whole");
    assert_eq!(server.end().0, Some(0));
}

#[test]
fn a_server_that_is_drained_answers_until_others_have_noticed_and_ends() {
    let home = home();
    let server = start(&home, &["smollm2", "--context", "1024", "--drain-delay", "2s"]);
    let mut body = question(400);
    (body["stream"], body["ignore_eos"]) = (json!(true), json!(true));
    let mut stream = server.send("/v1/chat/completions", "", &body);
    let mut answer = vec![0; 300];
    stream.read_exact(&mut answer).expect("it has begun");
    assert_eq!(server.post("/admin/drain", "", &json!({})).0, 403, "not everybody may");
    let (status, said) = server.post("/admin/drain", &server.operator(), &json!({}));
    assert_eq!((status, &said["requests"]), (202, &json!(1)), "{said}");
    assert!(server.get("/ready", "").starts_with("HTTP/1.1 503"));
    assert_eq!(server.post("/v1/chat/completions", "", &question(1)).0, 200, "somebody who has not noticed");
    stream.read_to_end(&mut answer).expect("it ends properly");
    assert!(String::from_utf8_lossy(&answer).contains("data: [DONE]"), "the answer is whole");
    assert_eq!(server.end().0, Some(0));
}

#[test]
fn tenants_do_not_share_prefixes_and_keys_have_limits() {
    let home = home();
    let key = |name: &str, more: &[&str]| {
        let output = ruvllm(&home).args(["keys", "add", name, "--json"]).args(more).output().expect("it starts");
        let added: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        format!("authorization: Bearer {}\r\n", added["key"].as_str().expect("a key"))
    };
    let first = key("first", &["--tenant", "acme"]);
    let second = key("second", &["--tenant", "other", "--tokens-per-minute", "60"]);
    let server = start(&home, &["smollm2", "--context", "512"]);
    let cached = |headers: &str| {
        let (status, answer) = server.post("/v1/chat/completions", headers, &question(1));
        assert_eq!(status, 200, "{answer}");
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number")
    };
    assert_eq!(cached(&first), 0);
    assert!(cached(&first) > 16, "it knows the prompt");
    assert_eq!(cached(&second), 0, "and nobody else does");
    let (status, answer) = (1..10)
        .map(|_| server.post("/v1/chat/completions", &second, &question(1)))
        .find(|(status, _)| *status != 200)
        .expect("the tokens of a minute are used up");
    assert_eq!((status, answer["error"]["type"].as_str()), (429, Some("tokens")), "{answer}");
    assert_eq!(server.post("/v1/chat/completions", "", &question(1)).0, 401);
    let mut urgent = question(1);
    urgent["priority"] = json!(1);
    assert_eq!(server.post("/v1/chat/completions", &first, &urgent).0, 403);
}

#[test]
fn a_body_that_is_not_what_it_should_be_is_refused_and_the_next_is_answered() {
    let home = home();
    let server = start(&home, &["smollm2", "--context", "512"]);
    let mut stream = server.connect();
    let body = b"{\"model\": \"smollm2\", \"messages\": [{\"role\": \"user\", \"content\": \"\xff\xfe\"}]}";
    write!(
        stream,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    )
    .expect("sent");
    stream.write_all(body).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 400") && answer.contains("invalid_utf8"), "{answer}");
    for (change, param) in [
        (json!({ "temperature": null, "top_p": "much" }), "top_p"),
        (json!({ "n": 1.5 }), "n"),
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (json!({ "messages": [{ "role": "user", "content": "x".repeat(20_000) }] }), "messages"),
        (json!({ "messages": "hello" }), "messages"),
        (json!({ "stream_options": 7 }), "stream_options"),
    ] {
        let mut body = question(1);
        for (key, value) in change.as_object().expect("an object") {
            body[key] = value.clone();
        }
        let (status, answer) = server.post("/v1/chat/completions", "", &body);
        assert_eq!((status, answer["error"]["param"].as_str()), (400, Some(param)), "{answer}");
    }
    assert_eq!(server.post("/v1/chat/completions", "", &question(1)).0, 200);
}

#[test]
fn no_request_uses_more_than_its_key_has_left() {
    let home = home();
    let key = |name: &str, more: &[&str]| {
        let output = ruvllm(&home).args(["keys", "add", name, "--json"]).args(more).output().expect("it starts");
        let added: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        format!("authorization: Bearer {}\r\n", added["key"].as_str().expect("a key"))
    };
    let few = key("few", &["--requests-per-minute", "5"]);
    let daily = key("daily", &["--tokens-per-day", "200"]);
    let counting = key("counting", &["--tokens-per-day", "100"]);
    let server = start(&home, &["smollm2", "--context", "512", "--log-level", "warn"]);
    let ask = |key: &str, n: usize, max_tokens: usize| {
        let mut body = question(max_tokens);
        body["n"] = json!(n);
        server.post("/v1/chat/completions", key, &body)
    };

    let (status, answer) = ask(&few, 6, 1);
    assert_eq!((status, answer["error"]["type"].as_str()), (429, Some("requests")), "{answer}");
    assert!(answer["error"]["message"].as_str().expect("text").contains("6 answers"), "{answer}");
    assert_eq!(ask(&few, 3, 1).0, 200);
    let (status, answer) = ask(&few, 3, 1);
    assert_eq!((status, answer["error"]["type"].as_str()), (429, Some("requests")), "each answer counts: {answer}");

    let (status, answer) = ask(&daily, 2, 400);
    assert_eq!(status, 200, "{answer}");
    assert!(answer["usage"]["total_tokens"].as_u64().expect("a count") <= 200, "{answer}");
    let (status, answer) = ask(&daily, 1, 400);
    let total = answer["usage"]["total_tokens"].as_u64();
    assert!(status == 429 || total.is_some_and(|total| total <= 200), "{answer}");

    let text = json!({ "model": "smollm2", "prompt": "word ".repeat(400) });
    let refused = (0..10).map(|_| server.post("/v1/tokenize", &counting, &text)).find(|(status, _)| *status != 200);
    let (status, answer) = refused.expect("counting tokens is charged");
    assert_eq!((status, answer["error"]["code"].as_str()), (429, Some("insufficient_quota")), "{answer}");
}

/// A service manager that has died, or a parent that does not care, reads no log.
#[test]
fn a_log_that_nobody_reads_keeps_no_request_waiting() {
    let home = home();
    let server = start(&home, &["smollm2", "--context", "512"]);
    // A pipe holds 64 KiB, and a line of the log has some hundred bytes.
    let path = format!("/v1/models/{}", "x".repeat(1000));
    for _ in 0..1500 {
        assert!(server.get(&path, "").starts_with("HTTP/1.1 404"));
    }
    let metrics = server.get("/metrics", "");
    let lost = metrics.lines().find_map(|line| line.strip_prefix("ruvllm_log_lines_lost_total "));
    assert!(lost.is_some_and(|lost| lost.parse::<u64>().expect("a count") > 0), "{lost:?}");
}
