//! One answer on its way from mistral.rs, read by a thread of its own.

use std::io::{BufRead, BufReader};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use ureq::{Agent, Body};

use super::wire::{Chunk, message, read_line};

/// Chunks that wait to be read; mistral.rs then waits, too.
const WAITING_MAX: usize = 256;
/// A line is not longer: a chunk has one token.
const LINE_BYTES_MAX: u64 = 1 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Dropping it ends the answer: the connection is closed when its next chunk comes.
#[derive(Debug)]
pub(super) struct AnswerStream {
    chunks: Receiver<Result<Chunk, String>>,
}

impl AnswerStream {
    /// Asks for a completion. Whatever comes, and what goes wrong, is read from [`Self::chunks`].
    pub(super) fn open(url: &str, body: Value) -> Result<Self, String> {
        let (sender, chunks) = sync_channel(WAITING_MAX);
        let url = format!("{url}/v1/completions");
        let read = move || {
            if let Err(reason) = read(&url, &body, &sender) {
                // Nobody may wait for it any more.
                let _ = sender.send(Err(reason));
            }
        };
        let name = "ruvllm-mistralrs-answer".to_owned();
        thread::Builder::new().name(name).spawn(read).map_err(|error| format!("no thread for an answer: {error}"))?;
        Ok(Self { chunks })
    }

    pub(super) fn chunks(&self) -> &Receiver<Result<Chunk, String>> {
        &self.chunks
    }
}

/// Makes a client for a server on this machine: no proxy, and no limit for the whole answer.
pub(super) fn agent() -> Agent {
    let config = Agent::config_builder().proxy(None).http_status_as_error(false);
    Agent::new_with_config(config.timeout_connect(Some(CONNECT_TIMEOUT)).build())
}

fn read(url: &str, body: &Value, sender: &SyncSender<Result<Chunk, String>>) -> Result<(), String> {
    let request = agent().post(url).header("content-type", "application/json");
    let response = request.send(body.to_string()).map_err(|error| format!("it cannot be asked: {error}"))?;
    if !response.status().is_success() {
        let status = response.status();
        let text = response.into_body().read_to_string().unwrap_or_default();
        return Err(format!("it answered {status}: {}", message(&text)));
    }
    read_events(response.into_body(), sender)
}

fn read_events(body: Body, sender: &SyncSender<Result<Chunk, String>>) -> Result<(), String> {
    use std::io::Read;
    let mut reader = BufReader::new(body.into_reader());
    let (mut line, mut is_first) = (Vec::new(), true);
    loop {
        line.clear();
        let read = reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        match read.map_err(|error| format!("its answer broke off: {error}"))? {
            0 => return Err("its answer ended without a reason".to_owned()),
            _ if line.len() as u64 >= LINE_BYTES_MAX => return Err("a line of its answer is too long".to_owned()),
            _ => {}
        }
        let text = String::from_utf8_lossy(&line);
        let Some(chunk) = read_line(text.trim_end(), is_first)? else { continue };
        is_first = false;
        let is_last = chunk.end.is_some();
        if sender.send(Ok(chunk)).is_err() || is_last {
            return Ok(());
        }
    }
}
