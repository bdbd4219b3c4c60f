//! Long work, done behind whatever computes.

use std::thread;

use ruvllm_text::lower_priority;
use tokio::sync::oneshot;

/// Work on more bytes than that is long: it takes milliseconds and more.
pub(crate) const LONG_BYTES: usize = 256 << 10;

/// Does the work on a thread of its own, because a thread keeps its lower priority. `None` if it panicked, or if no
/// thread could be started.
pub(crate) async fn run<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (done, result) = oneshot::channel();
    let work = move || {
        lower_priority();
        // Nobody may wait for it any more.
        drop(done.send(work()));
    };
    thread::Builder::new().name("long-work".to_owned()).spawn(work).ok()?;
    result.await.ok()
}
