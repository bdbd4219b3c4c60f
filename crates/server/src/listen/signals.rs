//! Ctrl-C and SIGTERM: the first lets running requests finish, the second stops them, the third ends the process.

use std::io;

use crate::lifecycle::{Lifecycle, Phase};

/// Exit code of a process that was interrupted, as in shells: 128 plus the number of SIGINT.
const KILLED: i32 = 130;

/// Drains the server when standard input ends. Whoever started it holds the other end, so that the server ends with them,
/// however they end.
pub fn drain_at_end_of_input(lifecycle: Lifecycle) {
    std::thread::spawn(move || {
        let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
        tracing::info!("shutting down: whoever started this server has ended");
        lifecycle.advance(Phase::Draining);
    });
}

/// Handles signals from now on. Must be called within the runtime.
pub fn advance_on_signals(lifecycle: Lifecycle) -> io::Result<()> {
    let mut signals = Signals::new()?;
    tokio::spawn(async move {
        signals.next().await;
        tracing::info!("shutting down: running answers may finish; a second signal ends them");
        lifecycle.drain();
        signals.next().await;
        tracing::info!("shutting down at once");
        lifecycle.advance(Phase::Ended);
        signals.next().await;
        // Something hangs, such as a database or a disk, and the operator wants the process to end.
        tracing::warn!("ended by a third signal; unwritten entries are lost");
        std::process::exit(KILLED);
    });
    Ok(())
}

#[cfg(unix)]
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) {
        // Without a handler there is nothing to wait for, and the system ends the process itself.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    }
}
