//! Clients that want too much, or too slowly.

mod support;

use std::time::Duration;

use ruvllm_server::BodyLimits;
use ruvllm_server::listen::ConnectionLimits;
use support::{Client, Options, start, start_with};

const SOON: Duration = Duration::from_millis(300);

#[test]
fn a_body_of_100_mb_is_refused_and_its_sender_gets_to_know() {
    let server = start();
    let mut client = server.client();
    let length = 100 << 20;
    client
        .send(format!(
            "POST /v1/echo HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        ))
        .unwrap();
    // It is sent to its end, as most clients do before they look for an answer.
    let piece = vec![b' '; 1 << 20];
    for _ in 0..100 {
        if client.send(&piece).is_err() {
            break;
        }
    }
    let answer = client.answer();
    assert_eq!((answer.status, answer.code().as_str()), (413, "request_too_large"), "{answer:?}");
    assert!(answer.json()["error"]["message"].as_str().unwrap().contains("8388608 bytes"), "{answer:?}");
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_body_that_does_not_say_how_large_it_is_ends_where_the_limit_is() {
    let server = start_with(Options {
        body_limits: BodyLimits { bytes_max: 1000, ..BodyLimits::default() },
        ..Options::default()
    });
    let mut client = server.client();
    client
        .send(
            "POST /v1/echo HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
        )
        .unwrap();
    for _ in 0..3 {
        client.send(format!("1f4\r\n{}\r\n", " ".repeat(500))).unwrap();
    }
    let answer = client.answer();
    assert_eq!((answer.status, answer.code().as_str()), (413, "request_too_large"), "{answer:?}");
}

#[test]
fn a_body_within_the_limit_is_read_whole() {
    let server = start();
    let text = "x".repeat(8_000_000);
    let answer = server.client().post("/v1/echo", format!(r#"{{"text":"{text}"}}"#));
    assert_eq!(answer.status, 200);
    assert_eq!(answer.json()["text"].as_str().unwrap().len(), 8_000_000);
}

#[test]
fn a_giant_header_is_refused() {
    let server = start();
    let mut client = server.client();
    // The server may stop reading before all of it is sent.
    let _ = client.send(format!("GET /health HTTP/1.1\r\nhost: x\r\nx-giant: {}\r\n\r\n", "y".repeat(100_000)));
    assert_eq!(client.answer().status, 431);
    let mut client = server.client();
    let many: String = (0..2000).map(|i| format!("x-{i}: y\r\n")).collect();
    let _ = client.send(format!("GET /health HTTP/1.1\r\nhost: x\r\n{many}\r\n"));
    assert_eq!(client.answer().status, 431);
    assert_eq!(server.client().get_with("/health", &format!("x-large: {}\r\n", "y".repeat(30_000))).status, 200);
}

#[test]
fn a_head_that_drips_is_not_waited_for() {
    let limits = ConnectionLimits { head_timeout: SOON, ..ConnectionLimits::default() };
    let server = start_with(Options { limits, ..Options::default() });
    let mut client = server.client();
    client.send("GET /health HTTP/1.1\r\n").unwrap();
    let mut dripping = client.stream.try_clone().unwrap();
    let drip = std::thread::spawn(move || {
        while std::io::Write::write_all(&mut dripping, b"x-drip: 1\r\n").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    assert_eq!(client.read_to_end(), "");
    drip.join().unwrap();
    let mut silent = server.client();
    assert_eq!(silent.read_to_end(), "", "nothing was ever sent");
}

#[test]
fn the_second_head_of_a_connection_may_not_drip_either() {
    let limits = ConnectionLimits { head_timeout: SOON, ..ConnectionLimits::default() };
    let server = start_with(Options { limits, ..Options::default() });
    let mut client = server.client();
    assert_eq!(client.get("/health").status, 200);
    client.send("GET /he").unwrap();
    assert_eq!(client.read_to_end(), "");
}

#[test]
fn a_connection_may_rest_longer_than_a_head_may_take_but_not_for_ever() {
    let limits =
        ConnectionLimits { head_timeout: SOON, idle_timeout: Duration::from_secs(2), ..ConnectionLimits::default() };
    let server = start_with(Options { limits, ..Options::default() });
    let mut client = server.client();
    assert_eq!(client.get("/health").status, 200);
    std::thread::sleep(3 * SOON);
    assert_eq!(client.get("/health").status, 200);
    assert_eq!(client.read_to_end(), "", "it is closed in the end");
}

#[test]
fn a_body_that_drips_is_not_waited_for() {
    let body_limits = BodyLimits { timeout: SOON, ..BodyLimits::default() };
    let server = start_with(Options { body_limits, ..Options::default() });
    let mut client = server.client();
    client
        .send("POST /v1/echo HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{")
        .unwrap();
    let mut dripping = client.stream.try_clone().unwrap();
    let drip = std::thread::spawn(move || {
        while std::io::Write::write_all(&mut dripping, b" ").is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let answer = client.answer();
    assert_eq!((answer.status, answer.code().as_str()), (408, "request_timeout"), "{answer:?}");
    drop(client.stream.shutdown(std::net::Shutdown::Both));
    drip.join().unwrap();
}

#[test]
fn a_client_that_reads_nothing_is_given_up() {
    let limits = ConnectionLimits { connections_max: 1, write_timeout: SOON, ..ConnectionLimits::default() };
    let server = start_with(Options { limits, ..Options::default() });
    let mut deaf = server.client();
    let text = "x".repeat(7_000_000);
    let body = format!(r#"{{"text":"{text}"}}"#);
    deaf.send(format!(
        "POST /v1/echo HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    ))
    .unwrap();
    // The only place is free again although that client is still there.
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn a_thousand_connections_are_served_at_once() {
    let server = start();
    let mut clients: Vec<Client> = (0..1000).map(|_| server.client()).collect();
    for client in &mut clients {
        client.send("GET /health HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    }
    for client in &mut clients {
        assert_eq!(client.answer().status, 200);
    }
    let metrics = server.get("/metrics").body;
    let open = metrics.lines().find_map(|line| line.strip_prefix("ruvllm_connections ")).expect("a count");
    assert!(open.parse::<f64>().unwrap() >= 1000.0, "{open}");
}

#[test]
fn connections_beyond_the_limit_wait_and_are_served_later() {
    let limits = ConnectionLimits { connections_max: 2, ..ConnectionLimits::default() };
    let server = start_with(Options { limits, ..Options::default() });
    let mut first: Vec<Client> = (0..2).map(|_| server.client()).collect();
    for client in &mut first {
        assert_eq!(client.get("/health").status, 200);
    }
    let mut waiting = server.client();
    waiting.send("GET /health HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    waiting.stream.set_read_timeout(Some(SOON)).unwrap();
    assert!(std::io::Read::read(&mut waiting.stream, &mut [0; 1]).is_err(), "there is no place yet");
    waiting.stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    first.pop();
    assert_eq!(waiting.answer().status, 200);
}
