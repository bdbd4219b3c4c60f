//! Accepts connections until the server drains, and waits for them to end.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use metrics::Gauge;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};

use super::address_connections::ConnectionsByAddress;
use super::bind::Bound;
use super::connection::{self, Shared};
use super::tls::Tls;
use super::{ConnectionLimits, Peer};
use crate::error::ApiError;
use crate::lifecycle::{Lifecycle, Phase};
use crate::metrics::Metrics;

/// Delay after a failed accept: descriptors or memory may be available by then.
const RETRY_DELAY: Duration = Duration::from_millis(100);
/// Grace period at the end, before unresponsive connections are dropped.
const END_MAX: Duration = Duration::from_secs(1);

/// A port, its router and its limits.
#[derive(Debug)]
pub struct Listener {
    pub bound: Bound,
    pub router: Router,
    pub tls: Option<Tls>,
    pub limits: ConnectionLimits,
    /// When it closes: as soon as the server drains, or at the end, for operators who watch it drain.
    pub until: Phase,
}

/// Serves until the lifecycle drains and all connections have ended, or until `drain_max` after that. Remaining
/// connections are then ended.
pub async fn serve(listeners: Vec<Listener>, metrics: &Metrics, lifecycle: Lifecycle, drain_max: Duration) {
    // Every connection that is waited for holds a sender: receiving fails when all are gone.
    let (alive, mut all_gone) = mpsc::channel::<()>(1);
    for Listener { bound, router, tls, limits, until } in listeners {
        let shared = Arc::new(Shared::new(router, tls, limits, lifecycle.clone(), until));
        let alive = (until == Phase::Draining).then(|| alive.clone());
        tokio::spawn(accept(bound, shared, alive, metrics.connections()));
    }
    drop(alive);
    lifecycle.reached(Phase::Draining).await;
    tokio::select! {
        _ = all_gone.recv() => {}
        () = lifecycle.reached(Phase::Ended) => {}
        () = sleep(drain_max) => tracing::warn!("streams still run after the drain timeout; they are ended"),
    }
    lifecycle.advance(Phase::Ended);
    let _ = timeout(END_MAX, all_gone.recv()).await;
}

async fn accept(bound: Bound, shared: Arc<Shared>, alive: Option<mpsc::Sender<()>>, open: Gauge) {
    let places = Arc::new(Semaphore::new(shared.limits.connections_max.clamp(1, Semaphore::MAX_PERMITS)));
    let (lifecycle, connections) = (shared.lifecycle.clone(), ConnectionsByAddress::default());
    let accept_all = async {
        let mut is_failing = false;
        loop {
            // The semaphore is never closed.
            let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
            let (stream, address) = match bound.socket.accept().await {
                Ok(accepted) => accepted,
                Err(error) if is_of_one_connection(&error) => continue,
                Err(error) => {
                    // Logged once, not ten times a second.
                    if !is_failing {
                        tracing::warn!(%error, "cannot accept connections at the moment; retrying");
                    }
                    is_failing = true;
                    sleep(RETRY_DELAY).await;
                    continue;
                }
            };
            is_failing = false;
            let Some(member) = connections.join(address.ip(), &shared.limits) else {
                tracing::debug!(%address, "a connection was refused: its address has too many");
                refuse(stream, shared.tls.is_some());
                continue;
            };
            let (shared, alive, open) = (Arc::clone(&shared), alive.clone(), open.clone());
            tokio::spawn(async move {
                let _held = (place, member, alive);
                open.increment(1.0);
                let _closed = OnDrop(|| open.decrement(1.0));
                connection::run(stream, Peer(address), shared).await;
            });
        }
    };
    tokio::select! {
        () = accept_all => {}
        () = lifecycle.reached(shared.until) => {}
    }
}

/// Tells a client that it has too many connections, without waiting for it.
fn refuse(stream: TcpStream, is_encrypted: bool) {
    if is_encrypted {
        return;
    }
    let error = ApiError::unavailable("this address has too many connections; close some", None);
    let body = error.with_code("too_many_connections").to_openai().to_string();
    let head =
        "HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-type: application/json";
    let answer = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    // The connection is new: this fits into its buffer, or the client is gone.
    let _ = stream.into_std().and_then(|mut stream| stream.write_all(answer.as_bytes()));
}

/// The client gave up before it was accepted; the next one is fine.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// Also when a connection's task panics.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
