//! The real program, serving.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

pub struct Server {
    pub child: Child,
    pub errors: BufReader<ChildStderr>,
    pub address: String,
    /// Where it has its token.
    home: PathBuf,
}

/// A command that sees a home folder of its own and nothing else.
pub fn ruvllm(home: &TempDir) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ruvllm"));
    command.env("RUVLLM_HOME", home.path()).env_remove("RUVLLM_LOG").env_remove("RUVLLM_CONFIG");
    // Answers are compared, whatever was cached for them; with prompts in bf16 they may differ by rounding (tests/engine/prefill.rs).
    command.env("RUVLLM_PREFILL", "exact");
    // Nor does it see an Ollama installation of whoever runs this.
    command.env("OLLAMA_MODELS", home.path().join("ollama"));
    for name in ["OLLAMA_HOST", "OLLAMA_KEEP_ALIVE", "OLLAMA_CONTEXT_LENGTH", "OLLAMA_ORIGINS"] {
        command.env_remove(name);
    }
    command
}

pub fn start(home: &TempDir, arguments: &[&str]) -> Server {
    let mut command = ruvllm(home);
    command.args(["serve", "--port", "0"]).args(arguments);
    start_command(command)
}

/// Waits until it says where it listens.
pub fn start_command(mut command: Command) -> Server {
    let home = command.get_envs().find(|(name, _)| *name == "RUVLLM_HOME").and_then(|(_, value)| value);
    let home = PathBuf::from(home.expect("a home folder of its own"));
    let mut child = command.stderr(Stdio::piped()).spawn().expect("the program starts");
    let errors = BufReader::new(child.stderr.take().expect("standard error"));
    // From here on it is ended whatever happens.
    let mut server = Server { child, errors, address: String::new(), home };
    let mut said = String::new();
    while server.address.is_empty() {
        let mut line = String::new();
        assert!(server.errors.read_line(&mut line).expect("text") > 0, "it ended: {said}");
        server.address = line.trim().strip_prefix("listening on http://").unwrap_or_default().to_owned();
        said.push_str(&line);
    }
    server
}

impl Server {
    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).expect("it accepts");
        stream.set_read_timeout(Some(Duration::from_secs(600))).expect("a timeout");
        stream
    }

    /// The header of whoever operates it.
    pub fn operator(&self) -> String {
        let token = std::fs::read_to_string(self.home.join("local_token")).expect("the server made one");
        format!("authorization: Bearer {}\r\n", token.trim())
    }

    pub fn get(&self, path: &str, headers: &str) -> String {
        self.try_get(path, headers).expect("an answer")
    }

    /// Fails if the server closes the connection without an answer.
    pub fn try_get(&self, path: &str, headers: &str) -> std::io::Result<String> {
        let mut stream = self.connect();
        write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Sends JSON; the status and the JSON of the answer.
    pub fn post(&self, path: &str, headers: &str, body: &Value) -> (u16, Value) {
        let answer = self.post_and_read(path, headers, body);
        let status = answer.split_whitespace().nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        (status, serde_json::from_str(body).unwrap_or(Value::Null))
    }

    /// The whole answer as text.
    pub fn post_and_read(&self, path: &str, headers: &str, body: &Value) -> String {
        let mut stream = self.send(path, headers, body);
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }

    /// Sends JSON and leaves the answer to be read.
    pub fn send(&self, path: &str, headers: &str, body: &Value) -> TcpStream {
        let (mut stream, body) = (self.connect(), body.to_string());
        let length = body.len();
        write!(
            stream,
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n{headers}\r\n{body}"
        )
        .expect("sent");
        stream
    }

    /// The JSON at a path, for the operator.
    pub fn get_json(&self, path: &str) -> Value {
        let answer = self.get(path, &self.operator());
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        serde_json::from_str(body).expect("JSON")
    }

    pub fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.child.id().to_string()]).status();
        assert!(status.expect("kill").success());
    }

    /// Its exit code, and what it said after it was listening.
    pub fn end(mut self) -> (Option<i32>, String) {
        let mut said = String::new();
        self.errors.read_to_string(&mut said).expect("text");
        (self.child.wait().expect("it ends").code(), said)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended already unless a test failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
