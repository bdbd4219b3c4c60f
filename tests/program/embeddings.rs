//! `POST /v1/embeddings` of the real program with the real model.

use crate::support;
use std::thread;
use std::time::{Duration, Instant};

use crate::server::{Server, start};
use crate::support::minilm;
use serde_json::{Value, json};
use tempfile::TempDir;

fn home() -> TempDir {
    minilm();
    support::home()
}

fn embed(server: &Server, body: Value) -> Value {
    let (status, answer) = server.post("/v1/embeddings", "", &body);
    assert_eq!(status, 200, "{answer}");
    answer
}

fn vector(item: &Value) -> Vec<f32> {
    serde_json::from_value(item["embedding"].clone()).expect("numbers")
}

#[test]
fn every_form_of_input_is_answered_in_openais_shape() {
    let home = home();
    let server = start(&home, &["minilm"]);
    let one = embed(&server, json!({ "model": "minilm", "input": "hello world", "user": "ann" }));
    assert_eq!((&one["object"], &one["model"]), (&json!("list"), &json!("minilm")));
    assert_eq!(one["usage"], json!({ "prompt_tokens": 4, "total_tokens": 4 }));
    let item = &one["data"][0];
    assert_eq!((&item["object"], &item["index"]), (&json!("embedding"), &json!(0)));
    assert_eq!(vector(item).len(), 384);
    for input in [json!(["hello world"]), json!([101, 7592, 2088, 102]), json!([[101, 7592, 2088, 102]])] {
        assert_eq!(embed(&server, json!({ "model": "minilm", "input": input }))["data"], one["data"], "{input}");
    }
    // Computed together and in the order of their length, answered in their own.
    let inputs = ["a somewhat longer text than the others are", "hello world", "b"];
    let several = embed(&server, json!({ "model": "minilm", "input": inputs, "dimensions": 384 }));
    assert_eq!(several["data"].as_array().expect("vectors").len(), 3);
    let product: f32 = vector(&several["data"][1]).iter().zip(vector(item)).map(|(a, b)| a * b).sum();
    assert!(product > 0.99999, "{product}");
}

#[test]
fn base64_holds_the_same_numbers() {
    let home = home();
    let server = start(&home, &["minilm"]);
    let ask = |format: &str| embed(&server, json!({ "model": "minilm", "input": "hello", "encoding_format": format }));
    let floats = vector(&ask("float")["data"][0]);
    let base64 = ask("base64");
    let text = base64["data"][0]["embedding"].as_str().expect("text");
    let digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits: Vec<u32> = text.chars().filter_map(|c| digits.find(c)).map(|digit| digit as u32).collect();
    let group = |four: &[u32]| four.iter().fold(0, |all, digit| all << 6 | digit).to_be_bytes()[1..].to_vec();
    let bytes: Vec<u8> = bits.chunks_exact(4).flat_map(group).collect();
    let decoded: Vec<f32> = bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect();
    assert_eq!(decoded, floats);
}

#[test]
fn what_is_wrong_is_told_with_its_field() {
    let home = home();
    let server = start(&home, &["minilm"]);
    let long = "word ".repeat(300);
    for (body, status, param, code) in [
        (json!({ "model": "minilm" }), 400, "input", "missing_required_parameter"),
        (json!({ "model": "minilm", "input": "a", "dimension": 3 }), 400, "dimension", "unknown_parameter"),
        (json!({ "model": "minilm", "input": "a", "dimensions": 256 }), 400, "dimensions", ""),
        (json!({ "model": "minilm", "input": "a", "encoding_format": "hex" }), 400, "encoding_format", ""),
        (json!({ "model": "minilm", "input": {} }), 400, "input", ""),
        (json!({ "model": "minilm", "input": [] }), 400, "input", ""),
        (json!({ "model": "minilm", "input": vec!["a"; 2049] }), 400, "input", ""),
        (json!({ "model": "minilm", "input": "" }), 400, "input", ""),
        (json!({ "model": "minilm", "input": ["a", ""] }), 400, "input[1]", ""),
        (json!({ "model": "minilm", "input": [[1], []] }), 400, "input[1]", ""),
        (json!({ "model": "minilm", "input": [[1], [99_999]] }), 400, "input[1]", ""),
        (json!({ "model": "minilm", "input": ["a", long] }), 400, "input[1]", "context_length_exceeded"),
        (json!({ "model": "minilm", "input": long }), 400, "input", "context_length_exceeded"),
        (json!({ "model": "none", "input": "a" }), 404, "model", "model_not_found"),
        (json!({ "model": "smollm2", "input": "a" }), 400, "model", "unsupported_model"),
    ] {
        let shown = body.to_string().chars().take(100).collect::<String>();
        let (got, answer) = server.post("/v1/embeddings", "", &body);
        assert_eq!((got, answer["error"]["param"].as_str()), (status, Some(param)), "{shown}: {answer}");
        assert!(code.is_empty() || answer["error"]["code"] == code, "{shown}: {answer}");
    }
    let answer = embed(&server, json!({ "model": "minilm", "input": long, "truncate": true }));
    assert_eq!(answer["usage"], json!({ "prompt_tokens": 256, "total_tokens": 256, "truncated_tokens": 46 }));
}

#[test]
fn a_model_for_embeddings_does_not_chat() {
    let home = home();
    let server = start(&home, &["minilm"]);
    let message = json!([{ "role": "user", "content": "Hello" }]);
    for (path, body) in [
        ("/v1/chat/completions", json!({ "model": "minilm", "messages": message })),
        ("/v1/completions", json!({ "model": "minilm", "prompt": "Hello" })),
        ("/v1/responses", json!({ "model": "minilm", "input": "Hello" })),
        ("/v1/tokenize", json!({ "model": "minilm", "prompt": "Hello" })),
    ] {
        let (status, answer) = server.post(path, "", &body);
        assert_eq!((status, answer["error"]["param"].as_str()), (400, Some("model")), "{path}: {answer}");
        assert!(answer["error"]["message"].as_str().expect("a message").contains("/v1/embeddings"), "{answer}");
    }
    let body = json!({ "model": "minilm", "messages": message, "max_tokens": 5 });
    let (status, answer) = server.post("/v1/messages", "", &body);
    assert_eq!((status, answer["error"]["type"].as_str()), (400, Some("invalid_request_error")), "{answer}");
}

#[test]
fn it_is_loaded_on_demand_listed_measured_and_unloaded() {
    let home = home();
    let server = start(&home, &["smollm2", "--context", "512"]);
    let ids = |server: &Server| -> Vec<String> {
        let list = server.get_json("/v1/models");
        let cards = list["data"].as_array().expect("models").clone();
        cards.into_iter().filter(|card| card["loaded"] == true).map(|card| card["id"].to_string()).collect()
    };
    assert_eq!(ids(&server), ["\"smollm2\""]);
    embed(&server, json!({ "model": "minilm", "input": ["one two", "three"] }));
    assert_eq!(ids(&server), ["\"minilm\"", "\"smollm2\""]);
    assert_eq!(server.get_json("/v1/models/minilm")["max_model_len"], 256);
    let metrics = server.get("/metrics", "");
    for expected in [
        r#"vllm:prompt_tokens_total{model_name="minilm"} 7"#,
        r#"vllm:request_success_total{model_name="minilm",finished_reason="stop"} 1"#,
        r#"vllm:num_requests_running{model_name="minilm"} 0"#,
        r#"endpoint="/v1/embeddings",method="POST",status="200",model_name="minilm"} 1"#,
    ] {
        assert!(metrics.contains(expected), "{expected} in\n{metrics}");
    }
    let models = server.get_json("/admin/models");
    assert_eq!((&models["models"][0]["name"], &models["models"][0]["kernels"]), (&json!("minilm"), &json!("candle")));
    assert_eq!(server.get_json("/v1/cache")["models"].as_array().expect("caches").len(), 1);
    for action in ["reload", "unload"] {
        let (status, answer) =
            server.post(&format!("/admin/models/{action}"), &server.operator(), &json!({ "model": "minilm" }));
        assert_eq!(status, 200, "{answer}");
    }
    assert_eq!(ids(&server), ["\"smollm2\""]);
}

#[test]
fn whoever_hangs_up_is_not_computed_for() {
    let home = home();
    let server = start(&home, &["minilm"]);
    let text = "word ".repeat(200);
    let body = json!({ "model": "minilm", "input": vec![text; 2048] });
    let running = || server.get_json("/admin/models")["models"][0]["running"].clone();
    let stream = server.send("/v1/embeddings", "", &body);
    let until = Instant::now() + Duration::from_secs(300);
    while running() == 0 {
        assert!(Instant::now() < until, "it has not begun");
        thread::sleep(Duration::from_millis(5));
    }
    drop(stream);
    while running() != 0 {
        assert!(Instant::now() < until, "it still runs");
        thread::sleep(Duration::from_millis(5));
    }
    while !server.get("/metrics", "").contains(r#"{model_name="minilm",finished_reason="abort"} 1"#) {
        assert!(Instant::now() < until, "{}", server.get("/metrics", ""));
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn many_at_once_are_all_answered_and_each_gets_its_own() {
    let home = home();
    let server = start(&home, &["minilm"]);
    let ask = |text: usize| {
        let answer = embed(&server, json!({ "model": "minilm", "input": format!("text number {text}") }));
        vector(&answer["data"][0])
    };
    let alone: Vec<Vec<f32>> = (0..12).map(ask).collect();
    thread::scope(|scope| {
        let ask = &ask;
        let asked: Vec<_> = (0..12).map(|text| scope.spawn(move || ask(text))).collect();
        for (text, answer) in asked.into_iter().enumerate() {
            assert_eq!(answer.join().expect("an answer"), alone[text], "text {text}");
        }
    });
}
