//! Runs long work at a lower priority than computation.

use std::thread;

use ruvllm_text::lower_priority;
use tokio::sync::oneshot;

/// Work on more bytes is long: it takes milliseconds and more.
pub(crate) const LONG_BYTES: usize = 256 << 10;

/// Runs the work on its own thread, because a thread keeps its lower priority. Returns `None` if it panicked, or if no
/// thread could be started.
pub(crate) async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, result) = oneshot::channel();
    let work = move || {
        lower_priority();
        // The receiver may be gone by now.
        drop(done.send(work()));
    };
    thread::Builder::new().name("long-work".to_owned()).spawn(work).ok()?;
    result.await.ok()
}
