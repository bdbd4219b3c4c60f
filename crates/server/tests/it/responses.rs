//! `/v1/responses` with the default model: what OpenAI's own client cannot see. The rest is in `tests/clients`.

use crate::served::Served;
use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

fn hello(extra: Value) -> Value {
    let mut body = json!({"model": "smollm2", "input": "Say hello.", "temperature": 0, "max_output_tokens": 5});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn stored_responses_are_seen_by_their_tenant_only() {
    let served = Served::new(&["acme", "other"]);
    let (status, response) = served.json("acme", Method::POST, "/v1/responses", Some(hello(json!({})))).await;
    assert_eq!(status, StatusCode::OK, "{response}");
    let (id, item) = (response["id"].as_str().unwrap(), response["output"][0]["id"].as_str().unwrap());
    let path = format!("/v1/responses/{id}");

    for method in [Method::GET, Method::DELETE] {
        let (status, error) = served.json("other", method, &path, None).await;
        assert_eq!((status, &error["error"]["code"]), (StatusCode::NOT_FOUND, &json!("response_not_found")));
    }
    let continued = hello(json!({"previous_response_id": id}));
    let (status, error) = served.json("other", Method::POST, "/v1/responses", Some(continued.clone())).await;
    assert_eq!((status, &error["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("previous_response_id")));
    let referring = hello(json!({"input": [{"type": "item_reference", "id": item}]}));
    let (status, error) = served.json("other", Method::POST, "/v1/responses", Some(referring.clone())).await;
    assert_eq!((status, &error["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("input[0].id")));

    for body in [continued, referring] {
        let (status, answer) = served.json("acme", Method::POST, "/v1/responses", Some(body)).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
    }
    assert_eq!(served.json("acme", Method::GET, &path, None).await, (StatusCode::OK, response.clone()));
    let deleted = json!({"id": id, "object": "response", "deleted": true});
    assert_eq!(served.json("acme", Method::DELETE, &path, None).await, (StatusCode::OK, deleted));
    assert_eq!(served.json("acme", Method::GET, &path, None).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_stream_that_fails_midway_ends_with_a_failed_response_that_is_not_stored() {
    let served = Served::new(&[]);
    let long = hello(json!({"input": "Count to a thousand.", "stream": true, "max_output_tokens": 900}));
    let events = served.broken_off("/v1/responses", long).await;
    let (name, last) = events.last().unwrap();
    assert_eq!((name.as_str(), &last["type"]), ("response.failed", &json!("response.failed")));
    assert_eq!(last["sequence_number"], events.len() - 1);
    let response = &last["response"];
    assert_eq!((&response["status"], &response["error"]["code"]), (&json!("failed"), &json!("server_error")));
    assert!(response["error"]["message"].as_str().unwrap().contains("shutting down"));
    let path = format!("/v1/responses/{}", response["id"].as_str().unwrap());
    assert_eq!(served.json("", Method::GET, &path, None).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn references_cannot_make_a_conversation_of_any_size() {
    let served = Served::new(&[]);
    let (_, response) = served.post("/v1/responses", hello(json!({"max_output_tokens": 100}))).await;
    let reference = json!({"type": "item_reference", "id": response["output"][0]["id"]});
    // Each of them is one more message.
    let (status, error) = served.post("/v1/responses", hello(json!({"input": vec![reference; 100_000]}))).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{error}");
    assert_eq!(error["error"]["code"], "context_length_exceeded");
    assert_eq!(error["error"]["param"], "input");
}

#[tokio::test]
async fn a_query_that_asks_for_something_else_is_refused() {
    let served = Served::new(&[]);
    let (status, error) = served.json("", Method::GET, "/v1/responses/resp_1?stream=true", None).await;
    assert_eq!((status, &error["error"]["param"]), (StatusCode::BAD_REQUEST, &json!("stream")));
}
