//! One connection, from the handshake to its end.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::http::{Request, Response, Version};
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until, timeout};
use tower::Service;

use super::activity::{Activity, RunningRequest};
use super::io::Watched;
use super::tls::Tls;
use super::{ConnectionLimits, Peer};
use crate::lifecycle::{Lifecycle, Phase};

/// Maximum streams of one HTTP/2 connection; each is a request.
const STREAMS_MAX: u32 = 128;
/// Interval between checks of a connection with running requests.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Time for streams to send their last events when the server ends.
const FINAL_EVENTS_TIME: Duration = Duration::from_millis(500);

/// What all connections of a listener share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) router: Router,
    pub(super) tls: Option<Tls>,
    pub(super) limits: ConnectionLimits,
    pub(super) lifecycle: Lifecycle,
    /// When connections stop accepting requests.
    pub(super) until: Phase,
    builder: Builder<TokioExecutor>,
}

impl Shared {
    pub(super) fn new(
        router: Router,
        tls: Option<Tls>,
        limits: ConnectionLimits,
        lifecycle: Lifecycle,
        until: Phase,
    ) -> Self {
        let mut builder = Builder::new(TokioExecutor::new());
        // `Activity` handles header timeouts instead. hyper's smallest buffer is 8 KiB.
        let head_bytes_max = limits.head_bytes_max.max(8 << 10);
        builder.http1().timer(TokioTimer::new()).header_read_timeout(None).max_buf_size(head_bytes_max);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS_MAX)
            .max_header_list_size(u32::try_from(head_bytes_max).unwrap_or(u32::MAX))
            .keep_alive_interval(limits.idle_timeout)
            .keep_alive_timeout(limits.head_timeout);
        Self { router, tls, limits, lifecycle, until, builder }
    }
}

pub(super) async fn run(stream: TcpStream, peer: Peer, shared: Arc<Shared>) {
    // Sends tokens one by one. Fails only for a closed connection.
    let _ = stream.set_nodelay(true);
    let activity = Activity::new();
    let stream = Watched::new(stream, activity.clone(), shared.limits.write_timeout);
    match &shared.tls {
        None => drive(stream, peer, activity, Arc::clone(&shared)).await,
        Some(tls) => match timeout(shared.limits.head_timeout, tls.acceptor.accept(stream)).await {
            Ok(Ok(stream)) => drive(stream, peer, activity, Arc::clone(&shared)).await,
            Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        },
    }
}

async fn drive<I>(stream: I, peer: Peer, activity: Activity, shared: Arc<Shared>)
where
    I: AsyncRead + AsyncWrite + Unpin + 'static,
{
    let (watched, router) = (activity.clone(), shared.router.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let running = watched.begin_request(request.version() == Version::HTTP_2);
        answer(request, peer, running, router.clone())
    });
    let mut connection = pin!(shared.builder.serve_connection(TokioIo::new(stream), service));
    let mut draining = pin!(shared.lifecycle.reached(shared.until));
    let mut is_draining = false;
    let mut ended = pin!(shared.lifecycle.reached(Phase::Ended));
    loop {
        let deadline = activity.deadline(&shared.limits);
        tokio::select! {
            result = &mut connection => {
                if let Err(error) = result {
                    tracing::debug!(%error, "a connection was interrupted");
                }
                return;
            }
            () = &mut draining, if !is_draining => {
                is_draining = true;
                connection.as_mut().graceful_shutdown();
            }
            () = &mut ended => {
                let _ = timeout(FINAL_EVENTS_TIME, connection).await;
                return;
            }
            () = sleep_until(deadline.unwrap_or_else(|| Instant::now() + LOOK_AGAIN)) => {
                // The deadline may have moved meanwhile.
                if activity.deadline(&shared.limits).is_some_and(|deadline| deadline <= Instant::now()) {
                    tracing::debug!("a connection was closed: it was idle for too long");
                    return;
                }
            }
        }
    }
}

async fn answer(
    mut request: Request<Incoming>,
    peer: Peer,
    running: RunningRequest,
    mut router: Router,
) -> Result<Response<Tracked>, Infallible> {
    request.extensions_mut().insert(peer);
    let response = router.call(request.map(Body::new)).await?;
    Ok(response.map(|inner| Tracked { inner, _running: running }))
}

/// A response whose request counts as running until it is dropped.
struct Tracked {
    inner: Body,
    _running: RunningRequest,
}

impl HttpBody for Tracked {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
