//! A large file over several connections at once.
//!
//! Each connection fetches every n-th piece into memory; the pieces are appended in their order. So the file on disk is
//! always a whole beginning of the remote one, as with a single connection: hashed while written, and resumed from its
//! length.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use ureq::http::Uri;

use super::http::{self, Client, NoAnswer, Span};
use super::transfer::Stopped;
use crate::digest::CHUNK_BYTES;
use crate::error::StoreError;
use crate::partial::Partial;
use crate::progress::{Progress, Throttle};

const POLL: Duration = Duration::from_millis(50);

/// The file as the first answer described it, where the redirects ended.
#[derive(Debug)]
pub(super) struct Remote<'a> {
    pub(super) client: &'a Client,
    pub(super) at: Uri,
    pub(super) etag: Option<String>,
    pub(super) total: u64,
}

type Piece = Result<Vec<u8>, String>;

/// What the connections share.
#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    received_bytes: AtomicU64,
}

/// Tells the connections to end on every way out, since the scope waits for them.
struct StopOnDrop<'a>(&'a Shared);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Relaxed);
    }
}

pub(super) fn receive(
    from: &Remote,
    connections: usize,
    piece_bytes: u64,
    partial: &mut Partial,
    progress: &mut dyn Progress,
) -> Result<(), Stopped> {
    let start = partial.length();
    let shared = Shared::default();
    thread::scope(|scope| {
        let _stop = StopOnDrop(&shared);
        let arrivals: Vec<Receiver<Piece>> = (0..connections as u64)
            .map(|number| {
                // One piece may wait while the next is fetched; more would only fill the memory.
                let (sender, receiver) = sync_channel(1);
                let step = piece_bytes * connections as u64;
                let first = start + number * piece_bytes;
                let shared = &shared;
                scope.spawn(move || fetch_every(from, first, step, piece_bytes, shared, &sender));
                receiver
            })
            .collect();
        let mut throttle = Throttle::default();
        for arrival in arrivals.iter().cycle() {
            if partial.length() == from.total {
                break;
            }
            let piece = next_piece(
                arrival,
                |progress| {
                    let received = start + shared.received_bytes.load(Ordering::Relaxed);
                    throttle.bytes(progress, received.min(from.total), from.total);
                },
                progress,
            )?;
            partial.append(&piece, from.total)?;
        }
        throttle.bytes(progress, from.total, from.total);
        Ok(())
    })
}

fn next_piece(
    arrival: &Receiver<Piece>,
    mut tick: impl FnMut(&mut dyn Progress),
    progress: &mut dyn Progress,
) -> Result<Vec<u8>, Stopped> {
    let broken = |why: String| Stopped::Broken { why, server_is_up: true };
    loop {
        if progress.cancelled() {
            return Err(StoreError::Cancelled.into());
        }
        tick(progress);
        match arrival.recv_timeout(POLL) {
            Ok(piece) => return piece.map_err(broken),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(broken("a connection ended before its piece".to_owned()));
            }
        }
    }
}

/// One connection's work: the pieces that begin at `first`, `first + step`, … until the end, a fault, or a stop.
fn fetch_every(
    from: &Remote,
    mut first: u64,
    step: u64,
    piece_bytes: u64,
    shared: &Shared,
    sender: &SyncSender<Piece>,
) {
    while first < from.total && !shared.stop.load(Ordering::Relaxed) {
        let last = (first + piece_bytes).min(from.total) - 1;
        let piece = fetch_piece(from, first, last, shared);
        let failed = piece.is_err();
        // Nobody listens any more after a stop.
        if sender.send(piece).is_err() || failed {
            return;
        }
        first += step;
    }
}

fn fetch_piece(from: &Remote, first: u64, last: u64, shared: &Shared) -> Piece {
    let span = Span { first, last: Some(last), etag: from.etag.as_deref() };
    let response = from.client.request(&from.at, Some(&span)).map_err(|error| match error {
        NoAnswer::Final(error) => error.to_string(),
        NoAnswer::Lost { why } => why,
    })?;
    let headers = response.headers();
    let tag = http::text(headers, "etag");
    let same_file = tag.is_none() || from.etag.is_none() || tag == from.etag.as_deref();
    if response.status().as_u16() != 206 || http::content_range(headers) != Some((first, from.total)) || !same_file {
        return Err(format!("a piece was answered with status {}", response.status().as_u16()));
    }
    let wanted = (last - first + 1) as usize;
    let mut body = response.into_body().into_reader();
    let mut piece = Vec::with_capacity(wanted);
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        if shared.stop.load(Ordering::Relaxed) {
            return Err("stopped".to_owned());
        }
        match body.read(&mut chunk) {
            Ok(0) if piece.len() == wanted => return Ok(piece),
            Ok(0) => return Err("the connection was closed early".to_owned()),
            Ok(count) if piece.len() + count > wanted => {
                return Err("a piece is longer than was asked for".to_owned());
            }
            Ok(count) => {
                piece.extend_from_slice(&chunk[..count]);
                shared.received_bytes.fetch_add(count as u64, Ordering::Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.to_string()),
        }
    }
}
