//! How the server ends.

use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Options, PATIENCE, start, start_with};
use ruvllm_server::Phase;

#[test]
fn a_running_stream_may_finish_and_nobody_new_comes_in() {
    let mut server = start();
    let mut idle = server.client();
    assert_eq!(idle.get("/health").status, 200);
    let mut client = server.client();
    client.send("GET /v1/stream HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    server.words.add_permits(1);
    client.read_head();
    assert_eq!(client.read_chunk(), b"word 0;");
    server.lifecycle.advance(Phase::Draining);
    assert_eq!(idle.read_to_end(), "", "a connection without requests is closed");
    let mut watcher = server.admin_client();
    let ready = watcher.get("/ready");
    assert_eq!((ready.status, ready.json()["status"].as_str()), (503, Some("draining")));
    assert_eq!(watcher.get("/health").status, 200);
    // Connections and the port are closed by different tasks, in no particular order.
    let until = Instant::now() + PATIENCE;
    while TcpStream::connect(server.address).is_ok() {
        assert!(Instant::now() < until, "the port is closed");
        thread::sleep(Duration::from_millis(5));
    }
    server.words.add_permits(2);
    assert_eq!(client.read_chunk(), b"word 1;");
    assert_eq!(client.read_chunk(), b"word 2;");
    assert_eq!(client.read_chunk(), b"", "the stream is complete");
    server.join();
}

#[test]
fn a_stream_that_does_not_end_is_ended_when_the_time_is_up() {
    let mut server = start_with(Options { drain_max: Duration::from_millis(300), ..Options::default() });
    let mut client = server.client();
    client.send("GET /v1/stream HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    server.words.add_permits(1);
    client.read_head();
    server.lifecycle.advance(Phase::Draining);
    server.join();
    assert!(!client.read_to_end().ends_with("0\r\n\r\n"), "the client can tell that it is not complete");
}

#[test]
fn a_server_that_leaves_says_so_and_answers_whoever_comes() {
    let mut server = start();
    server.lifecycle.advance(Phase::Leaving);
    let mut client = server.client();
    let ready = client.get("/ready");
    assert_eq!((ready.status, ready.json()["status"].as_str()), (503, Some("draining")));
    assert_eq!(server.client().get("/health").status, 200);
    server.lifecycle.advance(Phase::Draining);
    server.join();
}

#[test]
fn the_second_call_ends_at_once() {
    let mut server = start();
    let mut client = server.client();
    client.send("GET /v1/stream HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    server.words.add_permits(1);
    client.read_head();
    server.lifecycle.advance(Phase::Draining);
    server.lifecycle.advance(Phase::Ended);
    server.join();
    client.read_to_end();
}

#[test]
fn without_connections_it_ends_right_away() {
    let mut server = start();
    server.lifecycle.advance(Phase::Draining);
    server.join();
}
