//! gRPC on a port: encrypted, and while the server ends.

use axum::body::{Body, Bytes};
use axum::http::Request;
use axum::response::Response;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use ruvllm_server::Phase;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::{SCHEDULER, begun, ended, generate, status, to};
use crate::served::{Served, framed};
use crate::tls;

/// What a health check says.
#[derive(Clone, PartialEq, Message)]
struct Health {
    #[prost(int32, tag = "1")]
    status: i32,
}

const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;

/// A client on one connection.
struct Client(SendRequest<Full<Bytes>>);

impl Client {
    async fn new(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
        let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
        tokio::spawn(connection);
        Self(sender)
    }

    /// Calls a method on behalf of a tenant.
    async fn call(&self, served: &Served, tenant: &str, path: &str, message: &[u8]) -> hyper::Result<Response> {
        let request = served.signed(tenant, to(&format!("https://localhost{path}")));
        let request: Request<_> = request.body(Full::from(framed(message))).expect("a request");
        Ok(self.0.clone().send_request(request).await?.map(Body::new))
    }

    async fn health(&self, served: &Served) -> i32 {
        let answer = self.call(served, "", "/grpc.health.v1.Health/Check", b"").await.expect("an answer");
        let (status, message) = ended(answer).await;
        assert_eq!(status, "0");
        Health::decode(&message[5..]).expect("a message").status
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_are_encrypted_for_those_who_trust_the_certificate() {
    let served = Served::new(&["acme"]);
    let (tls, certificate) = tls::certified();
    let (address, serving) = served.listen(Some(tls)).await;
    assert!(tls::connect(address, None, b"h2").await.is_none(), "nobody else vouches for it");
    let client = Client::new(tls::connect(address, Some(&certificate), b"h2").await.expect("a handshake")).await;
    let path = format!("{SCHEDULER}/Generate");
    let answer = client.call(&served, "acme", &path, &generate(3)).await.expect("an answer");
    let (status, messages) = ended(answer).await;
    assert!(status == "0" && messages.len() > 20);
    let refused = client.call(&served, "", &path, &generate(3)).await.expect("an answer");
    assert_eq!(super::status(refused.headers()), Some("16"), "encryption is no key");
    let plain = Client::new(TcpStream::connect(address).await.expect("a connection")).await;
    assert!(plain.call(&served, "acme", &path, &generate(3)).await.is_err());
    served.lifecycle.advance(Phase::Draining);
    drop((client, plain));
    serving.await.expect("it ends in order");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_may_finish_and_nobody_new_comes_in() {
    let served = Served::new(&["acme"]);
    let (address, serving) = served.listen(None).await;
    let connect = async || TcpStream::connect(address).await;
    let client = Client::new(connect().await.expect("a connection")).await;
    let watched = client.call(&served, "", "/grpc.health.v1.Health/Watch", b"").await.expect("an answer");
    assert_eq!(client.health(&served).await, SERVING);
    let path = format!("{SCHEDULER}/Generate");
    let running = client.call(&served, "acme", &path, &generate(100)).await.expect("an answer");
    let running = begun(running).await;

    served.lifecycle.advance(Phase::Leaving);
    assert_eq!(client.health(&served).await, NOT_SERVING);
    let other = Client::new(connect().await.expect("a connection")).await;
    let answer =
        other.call(&served, "acme", &path, &generate(1)).await.expect("whoever comes all the same is answered");
    assert_eq!(ended(answer).await.0, "0");

    served.lifecycle.advance(Phase::Draining);
    let (watched_status, said) = ended(watched).await;
    assert_eq!(watched_status, "0", "it does not keep the server");
    assert_eq!(said, [framed(&[8, 1]), framed(&[8, 2])].concat(), "both changes are told");
    let whole = running.collect().await.expect("it ends");
    assert_eq!(whole.trailers().and_then(status), Some("0"), "the running answer is complete");
    while connect().await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(client.call(&served, "acme", &path, &generate(1)).await.is_err(), "nor on a connection that there was");
    serving.await.expect("it ends in order");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_has_no_time_left_says_why() {
    let served = Served::new(&["acme"]);
    let (address, serving) = served.listen(None).await;
    let client = Client::new(TcpStream::connect(address).await.expect("a connection")).await;
    let path = format!("{SCHEDULER}/Generate");
    let running = begun(client.call(&served, "acme", &path, &generate(900)).await.expect("an answer")).await;
    served.lifecycle.advance(Phase::Ended);
    let whole = running.collect().await.expect("it ends");
    assert_eq!(whole.trailers().and_then(status), Some("14"), "a router asks another worker");
    serving.await.expect("it ends in order");
}
