//! What clients are told when something is wrong.

use crate::support::start;
use serde_json::Value;

#[test]
fn unknown_paths_and_methods_are_told_with_where_to_look() {
    let server = start();
    let answer = server.get("/v1/chat/completion");
    assert_eq!((answer.status, answer.code().as_str()), (404, "unknown_url"));
    let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("'/v1/chat/completion'") && message.contains("/openapi.json"), "{message}");
    let answer = server.get("/v1/echo");
    assert_eq!((answer.status, answer.code().as_str()), (405, "method_not_supported"));
    assert_eq!(answer.header("allow"), Some("POST"));
    let answer = server.client().post("/health", "");
    assert_eq!(answer.status, 405, "{answer:?}");
}

#[test]
fn bodies_that_are_wrong_are_told_with_the_field() {
    let server = start();
    for (body, status, code, param) in [
        (&br#"{"text":"a","txet":1}"#[..], 400, "unknown_parameter", Some("txet")),
        (br#"{"text":"a","items":[{"count":1},{"count":-1}]}"#, 400, "invalid_type", Some("items[1].count")),
        (br#"{"text":"a","items":[{"cuont":1}]}"#, 400, "unknown_parameter", Some("items[0].cuont")),
        (br#"{"items":[]}"#, 400, "missing_required_parameter", Some("text")),
        (br#"{"text":7}"#, 400, "invalid_type", Some("text")),
        (br#"{"text":"a","text":"b"}"#, 400, "duplicate_parameter", Some("text")),
        (b"{\"text\":\"\xff\xfe\"}", 400, "invalid_utf8", None),
        (b"{", 400, "invalid_json", None),
        (b"", 400, "invalid_json", None),
        (&b"[".repeat(100_000), 400, "invalid_type", None),
    ] {
        let answer = server.client().post("/v1/echo", body);
        let shown = String::from_utf8_lossy(&body[..body.len().min(80)]);
        assert_eq!((answer.status, answer.code().as_str()), (status, code), "{shown}: {answer:?}");
        assert_eq!(answer.json()["error"]["param"].as_str(), param, "{shown}");
        assert_eq!(answer.json()["error"]["type"], "invalid_request_error");
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
}

#[test]
fn only_json_is_taken() {
    let server = start();
    let body = r#"{"text":"a"}"#;
    for (kind, status) in [
        ("content-type: application/json\r\n", 200),
        ("content-type: Application/JSON; charset=utf-8\r\n", 200),
        ("", 415),
        ("content-type: text/plain\r\n", 415),
        ("content-type: application/x-www-form-urlencoded\r\n", 415),
        ("content-type: \u{ff}\r\n", 415),
    ] {
        assert_eq!(server.client().post_with("/v1/echo", kind, body).status, status, "{kind}");
    }
}

#[test]
fn a_handler_that_panics_fails_alone() {
    let server = start();
    let mut client = server.client();
    let answer = client.get("/v1/panic");
    assert_eq!((answer.status, answer.code().as_str()), (500, "internal_error"));
    assert!(!answer.body.contains("on purpose"), "{answer:?}");
    assert_eq!(client.get("/health").status, 200, "the same connection goes on");
}

#[test]
fn errors_of_anthropics_path_have_its_shape() {
    let server = start();
    let answer = server.client().post_with(
        "/v1/messages",
        "content-type: application/json\r\nx-request-id: mine-7\r\n",
        r#"{"text":""}"#,
    );
    assert_eq!(answer.status, 400);
    let body = answer.json();
    assert_eq!(body["type"], "error");
    assert_eq!(body["error"]["type"], "invalid_request_error");
    assert_eq!(body["error"]["message"], "max_tokens: it must be positive");
    assert_eq!(body["request_id"], "mine-7");
    let wrong = server.client().post("/v1/messages", "{");
    assert_eq!(wrong.json()["error"]["type"], "invalid_request_error", "{wrong:?}");
    let none = server.get("/v1/messages/none");
    assert_eq!((none.status, none.json()["error"]["type"].as_str()), (404, Some("not_found_error")));
}

#[test]
fn every_answer_has_a_request_id() {
    let server = start();
    let mine = server.client().get_with("/health", "x-request-id: abc-1\r\n");
    assert_eq!(mine.header("x-request-id"), Some("abc-1"));
    for wrong in [format!("x-request-id: {}\r\n", "x".repeat(200)), "x-request-id: two words\r\n".to_owned()] {
        let answer = server.client().get_with("/none", &wrong);
        assert!(answer.header("x-request-id").unwrap().starts_with("req-"), "{answer:?}");
    }
}

#[test]
fn what_is_not_http_is_refused() {
    let server = start();
    for bytes in [&b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..], b"\0\0\0\0\r\n\r\n", b"GET\r\n\r\n"] {
        let mut client = server.client();
        client.send(bytes).unwrap();
        drop(client.stream.shutdown(std::net::Shutdown::Write));
        let said = client.read_to_end();
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 400"), "{said}");
    }
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn the_api_describes_itself() {
    let server = start();
    let document: Value = server.get("/openapi.json").json();
    for path in ["/health", "/ready", "/metrics", "/v1/echo"] {
        assert!(document["paths"][path].is_object(), "{path} in {document}");
    }
    assert!(document["paths"]["/v1/echo"]["post"]["requestBody"].is_object());
    assert!(document["components"]["schemas"]["Echo"].is_object());
    assert!(document["components"]["schemas"]["ErrorBody"].is_object());
    assert!(document["components"]["securitySchemes"]["bearer"].is_object());
}
