//! Clients that want too much, or too slowly.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::{Client, Options, PATIENCE, start, start_with};
use ruvllm_server::access::Scope;
use ruvllm_server::listen::ConnectionLimits;
use ruvllm_server::{BodyBudget, BodyLimits};

/// A limit that a test waits for.
const SOON: Duration = Duration::from_millis(300);
/// A limit that a test waits for after it has done something within it, on a machine that is busy with other things.
const SOON_ENOUGH: Duration = Duration::from_secs(3);

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
    let limits = ConnectionLimits { head_timeout: SOON_ENOUGH, ..ConnectionLimits::default() };
    let server = start_with(Options { limits, ..Options::default() });
    let mut client = server.client();
    assert_eq!(client.get("/health").status, 200);
    client.send("GET /he").unwrap();
    assert_eq!(client.read_to_end(), "");
}

#[test]
fn a_connection_may_rest_longer_than_a_head_may_take() {
    let limits = ConnectionLimits { head_timeout: SOON_ENOUGH, ..ConnectionLimits::default() };
    let server = start_with(Options { limits, ..Options::default() });
    let mut client = server.client();
    assert_eq!(client.get("/health").status, 200);
    std::thread::sleep(SOON_ENOUGH + SOON);
    assert_eq!(client.get("/health").status, 200);
}

#[test]
fn a_connection_may_not_rest_for_ever() {
    let limits = ConnectionLimits { idle_timeout: SOON, ..ConnectionLimits::default() };
    let server = start_with(Options { limits, ..Options::default() });
    let mut client = server.client();
    assert_eq!(client.get("/health").status, 200);
    assert_eq!(client.read_to_end(), "", "it is closed in the end");
}

#[test]
fn a_body_that_drips_is_not_waited_for() {
    let body_limits = BodyLimits { timeout: SOON, ..BodyLimits::default() };
    let server = start_with(Options { body_limits, ..Options::default() });
    let mut client = server.client();
    client
        .send("POST /v1/echo HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 1000000\r\n\r\n{")
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
    waiting.stream.set_read_timeout(Some(PATIENCE)).unwrap();
    first.pop();
    assert_eq!(waiting.answer().status, 200);
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn slow_large_bodies_of_one_tenant_keep_nobody_else_out() {
    let budget = Arc::new(BodyBudget::new(64 << 20));
    let server = start_with(Options { body_budget: Arc::clone(&budget), ..Options::default() });
    let [greedy, other] = ["greedy", "other"].map(|name| {
        let key = server.add_key(name, Scope::Inference);
        format!("content-type: application/json\r\nauthorization: Bearer {key}\r\n")
    });
    let large = format!(r#"{{"text":"{}"}}"#, "x".repeat(4 << 20));
    let (head, last) = large.split_at(large.len() - 1);
    let length = large.len();
    let mut slow: Vec<Client> = (0..20).map(|_| server.client()).collect();
    for client in &mut slow {
        client.send(format!("POST /v1/echo HTTP/1.1\r\nhost: x\r\n{greedy}content-length: {length}\r\n\r\n")).unwrap();
    }
    until("one is received", || budget.used_bytes() >= length);
    let allowed = budget.bytes_max() / 16 * 3 / 2;
    assert!(budget.used_bytes() <= allowed, "{} of {allowed}: not all 20 at once", budget.used_bytes());
    assert_eq!(server.client().post_with("/v1/echo", &other, &large).status, 200, "others have room");
    assert_eq!(server.client().post_with("/v1/echo", &greedy, r#"{"text":"a"}"#).status, 200, "small ones get through");
    // They take turns, and all of them are answered.
    let threads = slow.into_iter().map(|mut client| {
        let (head, last) = (head.to_owned(), last.to_owned());
        std::thread::spawn(move || {
            client.send(head).unwrap();
            client.send(last).unwrap();
            client.answer().status
        })
    });
    for thread in threads.collect::<Vec<_>>() {
        assert_eq!(thread.join().unwrap(), 200);
    }
    until("everything is given back", || budget.used_bytes() == 0);
}

#[test]
fn a_body_that_does_not_say_how_large_it_is_gets_a_larger_place_when_it_needs_one() {
    let budget = Arc::new(BodyBudget::default());
    let server = start_with(Options { body_budget: Arc::clone(&budget), ..Options::default() });
    let mut client = server.client();
    let kind = "content-type: application/json\r\ntransfer-encoding: chunked\r\n";
    client.send(format!("POST /v1/echo HTTP/1.1\r\nhost: x\r\n{kind}\r\n")).unwrap();
    let text = format!(r#"{{"text":"{}"}}"#, "x".repeat(300_000));
    for piece in text.as_bytes().chunks(50_000) {
        client.send([format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat()).unwrap();
    }
    client.send("0\r\n\r\n").unwrap();
    let answer = client.answer();
    assert_eq!((answer.status, answer.json()["text"].as_str().unwrap().len()), (200, 300_000));
    until("everything is given back", || budget.used_bytes() == 0);
}

#[test]
fn an_address_with_too_many_connections_is_told_and_gets_a_place_when_one_is_free() {
    let limits = ConnectionLimits { address_connections_max: Some(2), ..ConnectionLimits::default() };
    let server = start_with(Options { limits, ..Options::default() });
    let mut open: Vec<Client> = (0..2).map(|_| server.client()).collect();
    for client in &mut open {
        assert_eq!(client.get("/health").status, 200);
    }
    let refused = server.client().answer();
    assert_eq!((refused.status, refused.code().as_str()), (503, "too_many_connections"), "{refused:?}");
    open.pop();
    until("there is a place again", || {
        let mut client = server.client();
        // It may be refused and closed before this is sent, or while.
        let _ = client.send("GET /health HTTP/1.1\r\nhost: x\r\n\r\n");
        client.status().is_some_and(|status| status == 200)
    });
}
