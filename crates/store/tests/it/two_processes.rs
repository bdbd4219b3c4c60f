//! Two processes on one store: this test binary starts itself as the other one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::*;
use ruvllm_store::{Event, Store};

const SIZE: usize = 2_000_000;
const HOME: &str = "STORE_TEST_HOME";
const ENDPOINT: &str = "STORE_TEST_ENDPOINT";

fn store(home: &Path, endpoint: &str) -> Store {
    let mut config = config(home, endpoint, toy(&content(SIZE), vec![hub_source()]));
    config.hub.read_timeout = PATIENCE;
    Store::with_config(config)
}

/// Not a test of its own: what the other process does.
#[test]
#[ignore = "run by the tests below in a process of its own"]
fn other_process_pulls() {
    let (Ok(home), Ok(endpoint)) = (std::env::var(HOME), std::env::var(ENDPOINT)) else {
        return;
    };
    let model = store(Path::new(&home), &endpoint).pull("toy", &mut quiet).unwrap();
    assert_eq!(fs::read(model.path).unwrap(), content(SIZE));
}

fn start_other(home: &Path, endpoint: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "two_processes::other_process_pulls", "--ignored"])
        .env(HOME, home)
        .env(ENDPOINT, endpoint)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "{what} did not happen");
        thread::sleep(Duration::from_millis(10));
    }
}

fn part_file(home: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(home.join("models/.partial/toy")).ok()?;
    entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|extension| extension == "part"))
}

#[test]
fn the_second_process_waits_and_finds_what_the_first_fetched() {
    let waited = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&waited);
    let server = Server::start(move |request, _| {
        wait_for("the second process", || seen.load(Ordering::SeqCst));
        Reply::file(request, &content(SIZE), "\"a\"")
    });
    let home = tempfile::tempdir().unwrap();
    let mut other = start_other(home.path(), &server.url);
    wait_for("the other's request", || !server.requests().is_empty());
    let model = store(home.path(), &server.url)
        .pull("toy", &mut |event| {
            if matches!(event, Event::WaitingForOtherProcess { .. }) {
                waited.store(true, Ordering::SeqCst);
            }
        })
        .unwrap();
    assert!(waited.load(Ordering::SeqCst));
    assert_eq!(fs::read(model.path).unwrap(), content(SIZE));
    assert!(other.wait().unwrap().success());
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn many_processes_at_once_fetch_once() {
    let server = Server::start(|request, _| Reply::file(request, &content(SIZE), "\"a\""));
    let home = tempfile::tempdir().unwrap();
    let mut others: Vec<Child> = (0..4).map(|_| start_other(home.path(), &server.url)).collect();
    assert!(others.iter_mut().all(|other| other.wait().unwrap().success()));
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn what_a_killed_process_left_is_resumed_to_the_same_bytes() {
    let server = Server::start(|request, before| {
        let reply = Reply::file(request, &content(SIZE), "\"a\"");
        match before {
            0 => Reply { stall: 2 * PATIENCE, ..reply.cut_after(1_200_000) },
            _ => reply,
        }
    });
    let home = tempfile::tempdir().unwrap();
    let mut other = start_other(home.path(), &server.url);
    wait_for("the transfer's first half", || {
        part_file(home.path()).is_some_and(|path| fs::metadata(path).is_ok_and(|now| now.len() >= 1_200_000))
    });
    other.kill().unwrap();
    other.wait().unwrap();
    let model = store(home.path(), &server.url).pull("toy", &mut quiet).unwrap();
    assert_eq!(fs::read(&model.path).unwrap(), content(SIZE));
    assert_eq!(model.manifest.unwrap().main.sha256, sha256(&content(SIZE)));
    assert_eq!(server.requests()[1].range_start(), Some(1_200_000));
}
