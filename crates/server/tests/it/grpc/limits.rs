//! Callers that want too much: the limits are those of HTTP.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Method;
use futures_util::{StreamExt, stream};
use ruvllm_server::BodyLimits;
use ruvllm_server::access::Limits;
use serde_json::json;

use super::{SCHEDULER, ended, generate, status, to};
use crate::served::{Served, framed};

fn limited(limits: Limits) -> Served {
    Served::limited(&["acme", "other"], limits, BodyLimits::default())
}

/// The message that a call was refused with.
fn told(headers: &axum::http::HeaderMap) -> &str {
    headers["grpc-message"].to_str().expect("ASCII")
}

#[tokio::test]
async fn calls_beyond_the_limit_are_told_when_to_come_back() {
    let served = limited(Limits { requests_per_minute: Some(2), ..Limits::default() });
    let info = format!("{SCHEDULER}/GetModelInfo");
    for _ in 0..2 {
        assert_eq!(ended(served.call("acme", to(&info), b"").await).await.0, "0");
    }
    for path in [&info, "/ruvllm.v1.RuvLlm/Generate"] {
        let refused = served.call("acme", to(path), b"").await;
        let headers = refused.headers();
        assert_eq!(status(headers), Some("8"), "{path}");
        assert!(headers["retry-after"].to_str().is_ok_and(|wait| wait != "0"), "{headers:?}");
        assert_eq!(headers["x-ratelimit-remaining-requests"], "0");
    }
    assert_eq!(ended(served.call("other", to(&info), b"").await).await.0, "0", "others are not concerned");
    for _ in 0..4 {
        let health = served.call("", to("/grpc.health.v1.Health/Check"), b"").await;
        assert_eq!(ended(health).await.0, "0", "whoever watches is not counted");
    }
}

#[tokio::test]
async fn tokens_are_charged_to_the_budget_that_http_has() {
    let served = limited(Limits { tokens_per_minute: Some(6), ..Limits::default() });
    let path = format!("{SCHEDULER}/Generate");
    // Five tokens of a prompt and three of the answer: within the budget until it is known how many they are.
    assert_eq!(ended(served.call("acme", to(&path), &generate(3)).await).await.0, "0");
    let refused = served.call("acme", to(&path), &generate(3)).await;
    assert_eq!(status(refused.headers()), Some("8"));
    assert!(told(refused.headers()).contains("tokens"), "{}", told(refused.headers()));
    let body = json!({ "model": "smollm2", "prompt": "a", "max_tokens": 1 });
    let over_http = served.json("acme", Method::POST, "/v1/completions", Some(body)).await;
    assert_eq!(over_http.0, 429, "{}", over_http.1);
    assert_eq!(ended(served.call("other", to(&path), &generate(3)).await).await.0, "0");
}

#[tokio::test]
async fn what_is_too_large_is_refused_before_it_is_there() {
    let served = Served::new(&["acme"]);
    let path = format!("{SCHEDULER}/Generate");
    let large = served.call("acme", to(&path), &vec![0; 9 << 20]).await;
    assert_eq!(status(large.headers()), Some("8"));
    assert!(told(large.headers()).contains("8388608"), "{}", told(large.headers()));
    // Without end, and without a word of how much it will be.
    let piece = || Ok::<_, Infallible>(Bytes::from(vec![0; 64 << 10]));
    let endless = Body::from_stream(stream::repeat_with(piece));
    let refused = served.call_with("acme", to(&path), endless).await;
    assert_eq!(status(refused.headers()), Some("8"));
    // A message of a stream that needs no key, of which only the beginning ever comes.
    let head = stream::iter([Ok(Bytes::from_static(&[0, 255, 255, 255, 255]))]);
    let endless = Body::from_stream(head.chain(stream::repeat_with(piece)));
    let reflection = to("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo");
    assert_eq!(ended(served.call_with("", reflection, endless).await).await.0, "8");
    let promised = Body::from(vec![0, 255, 255, 255, 255, 1]);
    let refused = served.call_with("acme", to(&path), promised).await;
    assert_eq!(status(refused.headers()), Some("3"), "it allocates what comes, not what is promised");
    assert_eq!(ended(served.call("acme", to(&path), &generate(1)).await).await.0, "0");
}

#[tokio::test]
async fn a_message_that_does_not_come_is_not_waited_for() {
    let body_limits = BodyLimits { timeout: Duration::from_millis(100), ..BodyLimits::default() };
    let served = Served::limited(&["acme"], Limits::default(), body_limits);
    let begun = |bytes: Vec<u8>| {
        let first = stream::iter([Ok::<_, Infallible>(Bytes::from(bytes))]);
        Body::from_stream(first.chain(stream::pending()))
    };
    let part = framed(&generate(1))[..9].to_vec();
    let refused = served.call_with("acme", to(&format!("{SCHEDULER}/Generate")), begun(part)).await;
    assert_eq!(status(refused.headers()), Some("4"));
    // A question is answered, and the next one is not waited for.
    let asked = begun(framed(&[0x3a, 0]));
    let reflection = to("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo");
    let (status, messages) = ended(served.call_with("", reflection, asked).await).await;
    assert_eq!(status, "4");
    assert!(String::from_utf8_lossy(&messages).contains("ruvllm.v1.RuvLlm"));
}
