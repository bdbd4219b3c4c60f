//! Work on a thread of its own, within a time of the processor.
//!
//! Such threads have a low priority and get little of a busy machine, where a limit in time of day would refuse what is
//! fine on an idle one.

use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::priority::lower_priority;

/// How much longer than its time a thread is waited for, at most: with its priority, it gets a tenth of a busy machine.
const PATIENCE: u32 = 15;
const POLL: Duration = Duration::from_millis(50);

/// Why there is no result.
#[derive(Debug)]
pub(super) enum Unfinished {
    TooSlow,
    Panicked,
    NoThread(std::io::Error),
}

/// A thread's stack and time.
#[derive(Clone, Copy, Debug)]
pub(super) struct ThreadLimits {
    pub name: &'static str,
    pub stack_bytes: usize,
    pub time_max: Duration,
}

impl ThreadLimits {
    /// Runs something on a thread of low priority and waits for it. One that takes too long cannot be stopped: it runs on.
    pub(super) fn run<T: Send + 'static>(self, job: impl FnOnce() -> T + Send + 'static) -> Result<T, Unfinished> {
        let (sender, receiver) = mpsc::channel();
        let clock = Arc::new(OnceLock::new());
        let clock_of_thread = Arc::clone(&clock);
        let job = move || {
            lower_priority();
            let _ = clock_of_thread.set(ThreadClock::of_this_thread());
            drop(sender.send(job()));
        };
        let thread = thread::Builder::new().name(self.name.to_owned()).stack_size(self.stack_bytes);
        thread.spawn(job).map_err(Unfinished::NoThread)?;
        let began = Instant::now();
        let mut wait = self.time_max;
        loop {
            match receiver.recv_timeout(wait) {
                Ok(result) => return Ok(result),
                Err(RecvTimeoutError::Disconnected) => return Err(Unfinished::Panicked),
                Err(RecvTimeoutError::Timeout) => {}
            }
            // A thread that was given no time yet has used none.
            let used = clock.get().map_or(Duration::ZERO, |clock| clock.used().unwrap_or(began.elapsed()));
            if used >= self.time_max || began.elapsed() >= self.time_max * PATIENCE {
                return Err(Unfinished::TooSlow);
            }
            wait = POLL;
        }
    }
}

/// Where the system tells how long a thread has run.
#[derive(Debug)]
struct ThreadClock(Option<PathBuf>);

impl ThreadClock {
    fn of_this_thread() -> Self {
        let thread = std::fs::read_link("/proc/thread-self").ok();
        Self(thread.map(|thread| PathBuf::from("/proc").join(thread).join("schedstat")))
    }

    /// Returns `None` where the system does not tell.
    fn used(&self) -> Option<Duration> {
        let told = std::fs::read_to_string(self.0.as_ref()?).ok()?;
        told.split(' ').next()?.parse().ok().map(Duration::from_nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: ThreadLimits =
        ThreadLimits { name: "limited", stack_bytes: 1 << 20, time_max: Duration::from_millis(200) };

    #[test]
    fn time_counts_while_a_thread_computes_and_not_while_it_waits() {
        assert!(matches!(LIMITS.run(|| 7), Ok(7)));
        let waits = || {
            thread::sleep(Duration::from_millis(400));
            7
        };
        assert!(matches!(LIMITS.run(waits), Ok(7)));
        let computes = || {
            let began = Instant::now();
            let mut sum = 0u64;
            while began.elapsed() < Duration::from_secs(60) {
                sum = std::hint::black_box(sum.wrapping_add(1));
            }
            sum
        };
        assert!(matches!(LIMITS.run(computes), Err(Unfinished::TooSlow)));
        assert!(matches!(LIMITS.run(|| panic!("on purpose")), Err::<u8, _>(Unfinished::Panicked)));
    }
}
