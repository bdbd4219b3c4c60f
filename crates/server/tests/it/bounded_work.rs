//! What one request may cost is known before it is done.

use crate::served::Served;
use axum::http::StatusCode;
use serde_json::{Value, json};

fn refused_for(answer: &(StatusCode, Value)) -> &str {
    assert_eq!(answer.0, StatusCode::BAD_REQUEST, "{}", answer.1);
    answer.1["error"]["param"].as_str().expect("the field is named")
}

/// It was copied for each of 16,384 answers before anybody looked at it, which took all memory.
#[tokio::test(flavor = "multi_thread")]
async fn one_request_cannot_ask_for_more_answers_than_fit() {
    let server = Served::new(&[]);
    let many = |prompts: usize, n: usize, stop: &str| json!({ "model": "smollm2", "prompt": vec!["a"; prompts], "n": n, "stop": [stop] });
    let stop = "x".repeat(4_000_000);
    assert_eq!(refused_for(&server.post("/v1/completions", many(128, 128, &stop)).await), "n");
    assert_eq!(refused_for(&server.post("/v1/completions", many(129, 1, "x")).await), "prompt");
    assert_eq!(refused_for(&server.post("/v1/completions", many(2, 2, &stop)).await), "stop");
    let (status, answer) = server.post("/v1/completions", many(3, 2, "x")).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let indices: Vec<u64> =
        answer["choices"].as_array().expect("choices").iter().filter_map(|c| c["index"].as_u64()).collect();
    assert_eq!(indices, [0, 1, 2, 3, 4, 5]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_begins_with_its_own_prompt_where_that_is_wanted() {
    let server = Served::new(&[]);
    let asked = json!({ "model": "smollm2", "prompt": ["One", "Two"], "n": 2, "echo": true, "max_tokens": 1 });
    let (status, answer) = server.post("/v1/completions", asked).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let begins = |index: usize, prompt: &str| {
        answer["choices"][index]["text"].as_str().is_some_and(|text| text.starts_with(prompt))
    };
    assert!(begins(0, "One") && begins(1, "One") && begins(2, "Two") && begins(3, "Two"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_short() {
    let server = Served::new(&[]);
    let named = |length: usize| {
        let message = json!({ "role": "user", "content": "hi", "name": "A".repeat(length) });
        json!({ "model": "smollm2", "messages": [message], "max_tokens": 1 })
    };
    assert_eq!(refused_for(&server.post("/v1/chat/completions", named(5_000_000)).await), "messages[0].name");
    assert_eq!(server.post("/v1/chat/completions", named(256)).await.0, StatusCode::OK);
}
