//! `/v1/messages` with the default model: what Anthropic's own client cannot see. The rest is in `tests/clients`.

use crate::served::Served;
use axum::http::{Method, StatusCode};
use serde_json::{Value, json};

fn hello(extra: Value) -> Value {
    let messages = json!([{"role": "user", "content": "Say hello."}]);
    let mut body = json!({"model": "smollm2", "messages": messages, "temperature": 0, "max_tokens": 5});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

#[tokio::test]
async fn an_answer_has_all_fields_and_needs_no_version_header() {
    let served = Served::new(&[]);
    let (status, message) = served.post("/v1/messages", hello(json!({}))).await;
    assert_eq!(status, StatusCode::OK, "{message}");
    let fields: Vec<&String> = message.as_object().unwrap().keys().collect();
    assert_eq!(fields, ["id", "type", "role", "model", "content", "stop_reason", "stop_sequence", "usage"]);
    let usage = message["usage"].as_object().unwrap();
    assert_eq!(usage["cache_creation_input_tokens"], 0);
    assert_eq!(usage["output_tokens"], 5);
}

#[tokio::test]
async fn a_stream_that_fails_midway_ends_with_an_error_in_anthropics_shape() {
    let served = Served::new(&[]);
    let count = json!([{"role": "user", "content": "Count to a thousand."}]);
    let long = hello(json!({"messages": count, "max_tokens": 900, "stream": true}));
    let events = served.broken_off("/v1/messages", long).await;
    assert_eq!(events[0].0, "message_start");
    let (name, error) = events.last().unwrap();
    assert_eq!((name.as_str(), &error["type"]), ("error", &json!("error")));
    assert_eq!(error["error"]["type"], "overloaded_error");
    assert!(error["request_id"].as_str().is_some_and(|id| !id.is_empty()));
}

#[tokio::test]
async fn the_document_describes_all_of_these_endpoints() {
    let served = Served::new(&[]);
    let (_, document) = served.json("", Method::GET, "/openapi.json", None).await;
    for (path, method) in [
        ("/v1/messages", "post"),
        ("/v1/messages/count_tokens", "post"),
        ("/v1/responses", "post"),
        ("/v1/responses/{id}", "get"),
        ("/v1/responses/{id}", "delete"),
    ] {
        assert!(document["paths"][path][method].is_object(), "{method} {path}");
    }
    let schemas = &document["components"]["schemas"];
    for (schema, field) in [("MessagesRequest", "max_tokens"), ("ResponsesRequest", "previous_response_id")] {
        assert!(schemas[schema]["properties"][field].is_object(), "{schema}.{field}");
        assert_ne!(schemas[schema]["additionalProperties"], false, "{schema}: unknown parameters are accepted");
    }
}
