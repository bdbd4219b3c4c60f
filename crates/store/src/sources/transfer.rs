//! One file from a hub onto our disk, however often the connection breaks.

use std::io::{self, Read};
use std::thread;
use std::time::{Duration, Instant};

use super::http::{self, Answer, Client, NoAnswer, Span};
use super::hub::HubFile;
use super::{FetchError, Fetched, Order, parallel};
use crate::config::HubConfig;
use crate::digest::CHUNK_BYTES;
use crate::disk;
use crate::error::{SourceError, StoreError};
use crate::partial::{Partial, Sidecar};
use crate::progress::{Event, Progress, Throttle};

/// Ends a transfer from a server that hands out a few bytes per connection.
const ATTEMPTS_MAX: u32 = 200;

/// How one attempt ended without the whole file.
#[derive(Debug)]
pub(super) enum Stopped {
    Final(FetchError),
    /// Worth another attempt if bytes have been moved, or if the server only said "later".
    Broken {
        why: String,
        server_is_up: bool,
    },
}

impl<E: Into<FetchError>> From<E> for Stopped {
    fn from(error: E) -> Stopped {
        Stopped::Final(error.into())
    }
}

pub(super) fn fetch(
    hub: &HubConfig,
    file: &HubFile,
    order: &Order,
    progress: &mut dyn Progress,
) -> Result<Fetched, FetchError> {
    let url = file.url(&hub.endpoint);
    let client = Client::new(hub)?;
    let mut partial = Partial::open(&order.folder, &url)?;
    take_up(&mut partial, order, progress)?;
    let mut furthest = partial.length();
    let mut moved_bytes = false;
    let mut failures = 0;
    // A server that claims to serve ranges and does not gets a single connection from its first failure on.
    let mut connections = hub.connections_max;
    let mut attempts = 0;
    loop {
        attempts += 1;
        let (why, server_is_up) = match transfer(&client, &url, hub, connections, order, &mut partial, progress) {
            Ok(()) => return partial.finish(order),
            Err(Stopped::Final(error)) => return Err(error),
            Err(Stopped::Broken { why, server_is_up }) => (why, server_is_up),
        };
        // A server that ignores ranges and always cuts at the same place gets no further, however much it sends.
        if partial.length() > furthest {
            furthest = partial.length();
            moved_bytes = true;
            failures = 0;
        } else {
            connections = 1;
        }
        failures += 1;
        if !moved_bytes && !server_is_up {
            let host = hub.endpoint.clone();
            return Err(SourceError::Unreachable { host, why }.into());
        }
        if failures > hub.retries_max || attempts == ATTEMPTS_MAX {
            return Err(SourceError::Broken { done_bytes: partial.length(), attempts, why }.into());
        }
        let wait = hub.retry_wait * 2_u32.pow((failures - 1).min(4));
        progress.report(Event::Retrying { why, wait });
        pause(wait, progress)?;
    }
}

/// Takes up what an earlier process left, if its end result can be checked: after a power cut the tail of a file may
/// be there in length only.
fn take_up(partial: &mut Partial, order: &Order, progress: &mut dyn Progress) -> Result<(), StoreError> {
    let on_disk = partial.bytes_on_disk()?;
    let size = order.bytes.or(partial.sidecar.size_bytes);
    let checkable = order.sha256.is_some() || partial.sidecar.sha256.is_some();
    match size {
        Some(size) if checkable && on_disk <= size => partial.resume(on_disk, progress),
        _ => partial.restart(),
    }
}

fn transfer(
    client: &Client,
    url: &str,
    hub: &HubConfig,
    connections: usize,
    order: &Order,
    partial: &mut Partial,
    progress: &mut dyn Progress,
) -> Result<(), Stopped> {
    let known_size = order.bytes.or(partial.sidecar.size_bytes);
    if partial.length() > 0 && known_size == Some(partial.length()) {
        return Ok(());
    }
    // Without a tag or a hash nobody would notice that the rest belongs to another version of the file.
    let has_hash = order.sha256.is_some() || partial.sidecar.sha256.is_some();
    if partial.sidecar.etag.is_none() && !has_hash {
        partial.restart()?;
    }
    let etag = partial.sidecar.etag.clone();
    let rest = Span { first: partial.length(), last: None, etag: etag.as_deref() };
    let answer = client.get(url, (rest.first > 0).then_some(&rest)).map_err(|no_answer| match no_answer {
        NoAnswer::Final(error) => Stopped::from(error),
        NoAnswer::Lost { why } => Stopped::Broken { why, server_is_up: false },
    })?;
    let total = begin(url, order, partial, &answer)?;
    let missing = total - partial.length();
    disk::require_space(&order.folder, missing)?;
    if connections > 1 && missing > 2 * hub.piece_bytes && answer.serves_ranges() {
        // This answer's body is left unread: its first bytes cost less than a second request to ask beforehand.
        let from = parallel::Remote { client, at: answer.at, etag: partial.sidecar.etag.clone(), total };
        parallel::receive(&from, connections, hub.piece_bytes, partial, progress)
    } else {
        receive(answer, total, partial, progress)
    }
}

/// Judges the answer's head and brings `partial` to where its body begins; gives the size of the whole file.
fn begin(url: &str, order: &Order, partial: &mut Partial, answer: &Answer) -> Result<u64, Stopped> {
    let headers = answer.response.headers();
    let etag = http::text(headers, "etag").map(str::to_owned);
    let again = |why: &str| Stopped::Broken { why: why.to_owned(), server_is_up: true };
    let total = match answer.response.status().as_u16() {
        200 => {
            partial.restart()?;
            http::number(headers, "content-length").or(answer.linked_bytes)
        }
        206 => {
            let known = &partial.sidecar;
            let changed = differ(&etag, &known.etag) || differ(&answer.linked_sha256, &known.sha256);
            match http::content_range(headers) {
                Some((first, total)) if first == partial.length() && !changed => Some(total),
                _ => {
                    partial.restart()?;
                    return Err(again("the file has changed on the server"));
                }
            }
        }
        416 => {
            partial.restart()?;
            return Err(again("the server has no such range"));
        }
        status => return Err(refusal(url, status)),
    };
    let got_bytes = total.or(order.bytes).ok_or_else(|| SourceError::SizeNotStated { url: url.to_owned() })?;
    if let Some(expected_bytes) = order.bytes.filter(|bytes| *bytes != got_bytes) {
        return Err(SourceError::WrongSize { expected_bytes, got_bytes }.into());
    }
    // Told before the first byte moves, rather than after the last.
    if let (Some(expected), Some(got)) = (&order.sha256, &answer.linked_sha256)
        && expected != got
    {
        let (expected, got) = (expected.clone(), got.clone());
        return Err(SourceError::WrongHash { expected, got }.into());
    }
    partial.record(Sidecar {
        etag,
        size_bytes: Some(got_bytes),
        sha256: answer.linked_sha256.clone().or(partial.sidecar.sha256.clone()),
        ..partial.sidecar.clone()
    })?;
    Ok(got_bytes)
}

fn differ(a: &Option<String>, b: &Option<String>) -> bool {
    matches!((a, b), (Some(a), Some(b)) if a != b)
}

fn refusal(url: &str, status: u16) -> Stopped {
    let url = url.to_owned();
    match status {
        401 | 403 => SourceError::Forbidden { url, status }.into(),
        404 | 410 => SourceError::NotFound { url, status }.into(),
        408 | 429 | 500..=599 => {
            Stopped::Broken { why: SourceError::Status { url, status }.to_string(), server_is_up: true }
        }
        _ => SourceError::Status { url, status }.into(),
    }
}

fn receive(answer: Answer, total: u64, partial: &mut Partial, progress: &mut dyn Progress) -> Result<(), Stopped> {
    let broken = |why: String| Stopped::Broken { why, server_is_up: true };
    let mut body = answer.response.into_body().into_reader();
    let mut throttle = Throttle::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        if progress.cancelled() {
            return Err(StoreError::Cancelled.into());
        }
        let count = match body.read(&mut chunk) {
            Ok(0) if partial.length() == total => return Ok(()),
            Ok(0) => return Err(broken("the connection was closed early".to_owned())),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(broken(error.to_string())),
        };
        let got_bytes = partial.length() + count as u64;
        if got_bytes > total {
            partial.restart()?;
            return Err(SourceError::WrongSize { expected_bytes: total, got_bytes }.into());
        }
        partial.append(&chunk[..count], total)?;
        throttle.bytes(progress, partial.length(), total);
    }
}

fn pause(wait: Duration, progress: &dyn Progress) -> Result<(), StoreError> {
    let until = Instant::now() + wait;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        if progress.cancelled() {
            return Err(StoreError::Cancelled);
        }
        thread::sleep(left.min(Duration::from_millis(50)));
    }
    Ok(())
}
