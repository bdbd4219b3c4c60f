//! gRPC with the default model: who may call what, and how calls end. What they say is compared with HTTP in `tests/clients`.

mod connections;
mod limits;

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode, Version, request};
use axum::response::Response;
use http_body_util::BodyExt;
use prost::Message;

use crate::served::Served;

const SCHEDULER: &str = "/sglang.grpc.scheduler.SglangScheduler";

#[derive(Clone, PartialEq, Message)]
struct Tokens {
    #[prost(uint32, repeated, tag = "2")]
    ids: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
struct Sampling {
    #[prost(int32, optional, tag = "8")]
    max_new_tokens: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Generate {
    #[prost(string, tag = "1")]
    request_id: String,
    #[prost(message, optional, tag = "2")]
    tokenized: Option<Tokens>,
    #[prost(message, optional, tag = "4")]
    sampling_params: Option<Sampling>,
    #[prost(bool, tag = "17")]
    stream: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Aborted {
    #[prost(bool, tag = "1")]
    success: bool,
}

fn to(path: &str) -> request::Builder {
    Request::builder().version(Version::HTTP_2).uri(path).header("content-type", "application/grpc")
}

fn generate(tokens: i32) -> Vec<u8> {
    let sampling_params = Some(Sampling { max_new_tokens: Some(tokens) });
    let tokenized = Some(Tokens { ids: vec![504, 3575, 282, 4649, 314] });
    Generate { request_id: "mine".to_owned(), tokenized, sampling_params, stream: true }.encode_to_vec()
}

fn status(headers: &HeaderMap) -> Option<&str> {
    headers.get("grpc-status")?.to_str().ok()
}

/// The status of a call, wherever it is told, and its messages.
async fn ended(response: Response) -> (String, Vec<u8>) {
    assert_eq!(response.status(), StatusCode::OK);
    let told = status(response.headers()).map(str::to_owned);
    let whole = response.into_body().collect().await.expect("a whole body");
    let trailers = whole.trailers().and_then(status).map(str::to_owned);
    (told.or(trailers).expect("a status"), whole.to_bytes().to_vec())
}

/// Reads until the answer has begun.
async fn begun(response: Response) -> Body {
    let mut body = response.into_body();
    assert!(body.frame().await.expect("a frame").expect("sound").is_data());
    body
}

#[tokio::test]
async fn keys_are_needed_as_over_http() {
    let served = Served::new(&["acme", "other"]);
    let path = format!("{SCHEDULER}/Generate");
    let (status, messages) = ended(served.call("", to(&path), &generate(3)).await).await;
    assert_eq!((status.as_str(), messages.len()), ("16", 0));
    let (status, messages) = ended(served.call("acme", to(&path), &generate(3)).await).await;
    assert!(status == "0" && messages.len() > 20);
    let (status, _) = ended(served.call("acme", to("/ruvllm.v1.RuvLlm/SearchMemory"), b"").await).await;
    assert_eq!(status, "5", "this server has no memory");
    for public in [format!("{SCHEDULER}/HealthCheck"), "/grpc.health.v1.Health/Check".to_owned()] {
        assert_eq!(ended(served.call("", to(&public), b"").await).await.0, "0", "{public}");
    }
}

#[tokio::test]
async fn only_the_tenant_ends_its_answers() {
    let served = Served::new(&["acme", "other"]);
    let response = served.call("acme", to(&format!("{SCHEDULER}/Generate")), &generate(900)).await;
    let body = begun(response).await;
    let abort = Generate { request_id: "mine".to_owned(), ..Generate::default() }.encode_to_vec();
    for (tenant, ends) in [("other", false), ("acme", true), ("acme", false)] {
        let (status, message) = ended(served.call(tenant, to(&format!("{SCHEDULER}/Abort")), &abort).await).await;
        let aborted = Aborted::decode(&message[5..]).expect("a message");
        assert_eq!((status.as_str(), aborted.success), ("0", ends), "{tenant}");
    }
    let whole = body.collect().await.expect("it ends");
    assert_eq!(whole.trailers().and_then(status), Some("1"));
}

#[tokio::test]
async fn what_is_no_call_is_refused() {
    let served = Served::new(&[]);
    let path = format!("{SCHEDULER}/GetModelInfo");
    let (status, _) = ended(served.call("", to(&path).version(Version::HTTP_11), b"").await).await;
    assert_eq!(status, "3", "its trailers would be lost");
    let json = Request::builder().version(Version::HTTP_2).uri(&path).header("content-type", "application/json");
    assert_eq!(served.call("", json, b"{}").await.status(), StatusCode::BAD_REQUEST);
    assert_eq!(ended(served.call("", to("/v1/models"), b"").await).await.0, "12", "HTTP has a port of its own");
    let (status, message) = ended(served.call("", to(&path), b"").await).await;
    assert!(status == "0" && String::from_utf8_lossy(&message).contains("smollm2"));
}
