//! `ruvllm launch` with the real server, and a script in the place of an agent: agents themselves are tested by
//! `tests/clients/test_agents.py`.

use crate::support;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::server::ruvllm;
use tempfile::TempDir;

/// Launches Claude Code, which is this script.
fn launch(home: &TempDir, port: u16, script: &str) -> Command {
    let program = home.path().join("claude");
    std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("a script");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).expect("its mode");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = ruvllm(home);
    command.env("PATH", format!("{}:{path}", home.path().display()));
    command.args(["launch", "claude", "--model", "smollm2", "--port", &port.to_string(), "--", "-p", "Hi"]);
    command
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

fn is_served(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

#[test]
fn a_program_gets_a_server_for_as_long_as_it_runs() {
    let (home, port) = (support::home(), free_port());
    let output =
        launch(&home, port, r#"echo "$ANTHROPIC_BASE_URL $ANTHROPIC_MODEL $*"; exit 3"#).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.trim(), format!("http://127.0.0.1:{port} smollm2 -p Hi"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && error.contains("claude ended with the exit code 3"), "{error}");
    assert!(!is_served(port));
}

#[test]
fn a_server_ends_with_the_launcher_even_if_that_is_killed() {
    let (home, port) = (support::home(), free_port());
    let mut launcher = launch(&home, port, "echo $$; exec sleep 600").stdout(Stdio::piped()).spawn().expect("it runs");
    let mut program = String::new();
    let mut said = BufReader::new(launcher.stdout.take().expect("standard output"));
    said.read_line(&mut program).expect("the id of the program");
    assert!(is_served(port));
    launcher.kill().and_then(|()| launcher.wait()).expect("it is killed");
    let waiting = Instant::now();
    while is_served(port) {
        assert!(waiting.elapsed() < Duration::from_secs(60), "the server is still there");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(Command::new("kill").arg(program.trim()).status().expect("kill runs").success());
}
