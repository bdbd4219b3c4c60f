//! Encrypted connections.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Options, Server, start_with};
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper_util::rt::{TokioExecutor, TokioIo};
use ruvllm_server::listen::{ConnectionLimits, Tls};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// What a server encrypts with that has a certificate of its own for `localhost`, and that certificate.
pub fn certified() -> (Tls, CertificateDer<'static>) {
    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    fs::write(&certificate, issued.cert.pem()).unwrap();
    fs::write(&key, issued.signing_key.serialize_pem()).unwrap();
    (Tls::from_files(&certificate, &key).unwrap(), issued.cert.der().clone())
}

fn start_encrypted(limits: ConnectionLimits) -> (Server, CertificateDer<'static>) {
    let (tls, certificate) = certified();
    (start_with(Options { tls: Some(tls), limits, ..Options::default() }), certificate)
}

pub async fn connect(
    address: SocketAddr,
    trusted: Option<&CertificateDer<'static>>,
    protocol: &[u8],
) -> Option<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    if let Some(trusted) = trusted {
        roots.add(trusted.clone()).unwrap();
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    let stream = TcpStream::connect(address).await.unwrap();
    TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), stream).await.ok()
}

fn health(uri: &str) -> Request<Empty<bytes::Bytes>> {
    Request::get(uri).header("host", "localhost").body(Empty::new()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn http_1_and_2_are_spoken_to_those_who_trust_the_certificate() {
    let (server, certificate) =
        tokio::task::spawn_blocking(|| start_encrypted(ConnectionLimits::default())).await.unwrap();
    assert!(connect(server.address, None, b"h2").await.is_none(), "nobody else vouches for it");

    let stream = connect(server.address, Some(&certificate), b"http/1.1").await.expect("a handshake");
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    let driver = tokio::spawn(connection);
    for _ in 0..2 {
        // The connection may still be busy with the end of the answer before.
        sender.ready().await.unwrap();
        let response = sender.send_request(health("/health")).await.unwrap();
        assert_eq!((response.status().as_u16(), response.version()), (200, hyper::Version::HTTP_11));
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), r#"{"status":"ok"}"#);
    }
    drop(sender);
    driver.await.unwrap().unwrap();

    let stream = connect(server.address, Some(&certificate), b"h2").await.expect("a handshake");
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (sender, connection) = handshake.await.unwrap();
    let driver = tokio::spawn(connection);
    let requests = (0..20).map(|_| {
        let mut sender = sender.clone();
        async move { sender.send_request(health("https://localhost/health")).await.unwrap().status().as_u16() }
    });
    let statuses = futures_util::future::join_all(requests).await;
    assert_eq!(statuses, [200; 20], "all on one connection");
    let mut again = sender.clone();
    let giant = Request::get("https://localhost/health").header("x-giant", "y".repeat(100_000));
    let giant = again.send_request(giant.body(Empty::new()).unwrap()).await;
    assert!(giant.is_err() || giant.unwrap().status() == 431);
    drop((sender, again));
    driver.abort();
    tokio::task::spawn_blocking(|| drop(server)).await.unwrap();
}

#[test]
fn those_who_do_not_encrypt_or_do_not_go_on_are_not_waited_for() {
    let limits = ConnectionLimits { head_timeout: Duration::from_millis(300), ..ConnectionLimits::default() };
    let (server, _) = start_encrypted(limits);
    let mut plain = server.client();
    plain.stream.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let said = plain.read_to_end();
    assert!(!said.contains("HTTP/1.1"), "{said:?}");
    let mut silent = server.client();
    assert_eq!(silent.read_to_end(), "", "the handshake has a time limit");
}
