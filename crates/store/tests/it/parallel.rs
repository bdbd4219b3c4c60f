//! Large transfers over several connections.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::*;
use ruvllm_store::{Event, Progress, Store, StoreError};

const SIZE: usize = 1_000_003;
const PIECE: usize = 64 * 1024;

fn store_at(server: &Server, home: &tempfile::TempDir) -> Store {
    let mut config = config(home.path(), &server.url, toy(&content(SIZE), vec![hub_source()]));
    config.hub.connections_max = 4;
    Store::with_config(config)
}

fn with_ranges(request: &Request) -> Reply {
    Reply::file(request, &content(SIZE), "\"a\"").with("Accept-Ranges", "bytes")
}

#[test]
fn pieces_are_fetched_at_once_and_joined_in_order() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = most.clone();
    let server = Server::start(move |request, _| {
        if request.range().is_some() {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            // None is answered before there are three of them, however slow the machine is.
            let until = Instant::now() + PATIENCE;
            while most.load(Ordering::SeqCst) < 3 && Instant::now() < until {
                thread::sleep(Duration::from_millis(1));
            }
            // Pieces arrive out of order: the even ones take longer.
            let piece = request.range_start().unwrap() / PIECE;
            thread::sleep(Duration::from_millis(if piece.is_multiple_of(2) { 60 } else { 20 }));
            now.fetch_sub(1, Ordering::SeqCst);
        }
        with_ranges(request)
    });
    let home = tempfile::tempdir().unwrap();
    let mut counts = Vec::new();
    let model = store_at(&server, &home)
        .pull("toy", &mut |event| {
            if let Event::Bytes { done_bytes, .. } = event {
                counts.push(done_bytes);
            }
        })
        .unwrap();
    assert_eq!(fs::read(&model.path).unwrap(), content(SIZE));
    assert_eq!(model.manifest.unwrap().main.sha256, sha256(&content(SIZE)));
    assert!(seen.load(Ordering::SeqCst) >= 3, "{seen:?} connections at once");
    assert!(counts.is_sorted(), "{counts:?}");
    assert_eq!(counts.last(), Some(&(SIZE as u64)));
}

#[test]
fn a_broken_piece_costs_only_what_comes_after_it() {
    let broken = AtomicBool::new(false);
    let server = Server::start(move |request, _| {
        let reply = with_ranges(request);
        let breaks = request.range_start() == Some(5 * PIECE) && !broken.swap(true, Ordering::SeqCst);
        if breaks { reply.cut_after(100) } else { reply }
    });
    let home = tempfile::tempdir().unwrap();
    let mut retries = 0;
    let model = store_at(&server, &home)
        .pull("toy", &mut |event| retries += usize::from(matches!(event, Event::Retrying { .. })))
        .unwrap();
    assert_eq!(fs::read(&model.path).unwrap(), content(SIZE));
    assert_eq!(retries, 1);
    let again = |request: &&Request| request.range() == Some((5 * PIECE, None));
    assert_eq!(server.requests().iter().filter(again).count(), 1, "goes on at the broken piece");
}

#[test]
fn a_server_that_only_claims_to_serve_ranges_gets_one_connection() {
    let server = Server::start(|request, _| {
        let mut whole = request.clone();
        whole.headers.remove("range");
        with_ranges(&whole)
    });
    let home = tempfile::tempdir().unwrap();
    let model = store_at(&server, &home).pull("toy", &mut quiet).unwrap();
    assert_eq!(fs::read(&model.path).unwrap(), content(SIZE));
}

#[test]
fn pieces_of_another_version_are_not_mixed_in() {
    // Weak tags, which the server does not compare for us.
    let server = Server::start(|request, before| {
        let reply = match before {
            0..=3 => Reply::file(request, &vec![7; SIZE], "W/\"old\""),
            _ => Reply::file(request, &content(SIZE), "W/\"new\""),
        };
        reply.with("Accept-Ranges", "bytes")
    });
    let home = tempfile::tempdir().unwrap();
    let model = store_at(&server, &home).pull("toy", &mut quiet).unwrap();
    assert_eq!(fs::read(&model.path).unwrap(), content(SIZE));
}

#[test]
fn a_cancelled_transfer_ends_soon_and_is_resumed() {
    struct CancelAfter(u64, bool);
    impl Progress for CancelAfter {
        fn report(&mut self, event: Event) {
            self.1 |= matches!(event, Event::Bytes { done_bytes, .. } if done_bytes > self.0);
        }
        fn cancelled(&self) -> bool {
            self.1
        }
    }
    let server = Server::start(|request, _| {
        thread::sleep(Duration::from_millis(30));
        with_ranges(request)
    });
    let home = tempfile::tempdir().unwrap();
    let store = store_at(&server, &home);
    let error = store.pull("toy", &mut CancelAfter(6 * PIECE as u64, false)).unwrap_err();
    assert!(matches!(error, StoreError::Cancelled), "{error}");
    let before = server.requests().len();
    let model = store.pull("toy", &mut quiet).unwrap();
    assert_eq!(fs::read(&model.path).unwrap(), content(SIZE));
    assert!(server.requests()[before].range_start().is_some_and(|start| start > 0));
}
