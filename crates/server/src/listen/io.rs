//! A TCP stream that reports incoming bytes, times out on clients that read nothing, and closes so that they can read
//! the last response.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

use super::activity::Activity;

/// How long a client may keep sending after our last response, and how long it may be silent meanwhile.
const LINGER: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct Watched {
    stream: TcpStream,
    activity: Activity,
    write_timeout: Duration,
    /// Runs while a write waits for the client.
    stalled: Option<Pin<Box<Sleep>>>,
    /// Starts with our last byte.
    lingering: Option<LingeringClose>,
}

#[derive(Debug)]
struct LingeringClose {
    end: Instant,
    /// Ends then, or when the client has been silent for long enough.
    patience: Pin<Box<Sleep>>,
}

impl Watched {
    pub(super) fn new(stream: TcpStream, activity: Activity, write_timeout: Duration) -> Self {
        Self { stream, activity, write_timeout, stalled: None, lingering: None }
    }

    /// Fails a write that has waited too long.
    fn check_stall<T>(&mut self, polled: Poll<io::Result<T>>, cx: &mut Context<'_>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.stalled = None;
            return polled;
        }
        let timeout = self.write_timeout;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(timeout)));
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads nothing")))
    }
}

impl AsyncRead for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.activity.bytes_came();
        }
        polled
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.check_stall(polled, cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(cx, slices);
        self.check_stall(polled, cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    /// Closing a socket with unread bytes makes the system discard what the client has not read yet, such as the error
    /// that its body is too large. So after our last byte, incoming bytes are read and dropped for a while.
    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
            self.lingering = Some(LingeringClose { end: Instant::now() + LINGER, patience: Box::pin(sleep(SILENCE)) });
        }
        let Self { stream, lingering: Some(lingering), .. } = &mut *self else { return Poll::Ready(Ok(())) };
        // A client that sends endlessly must not keep this thread busy.
        for _ in 0..16 {
            if lingering.patience.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Ok(()));
            }
            let mut space = [0; 16 << 10];
            let mut buffer = ReadBuf::new(&mut space);
            match ready!(Pin::new(&mut *stream).poll_read(cx, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {
                    let until = (Instant::now() + SILENCE).min(lingering.end);
                    lingering.patience.as_mut().reset(until);
                }
                _ => return Poll::Ready(Ok(())),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
