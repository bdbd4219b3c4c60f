//! What the calls of one instance may take.

use std::time::Duration;

use wasmtime::StoreLimits;

use super::ticker::TICK;

/// Limits of an instance, and the time of the call that it is in. Time is that of the processor: a thread that another program
/// keeps from running is not slow.
pub(super) struct CallBudget {
    limits: StoreLimits,
    time_max: Duration,
    /// The thread's time at the first tick of the call; most calls see none.
    first_tick: Option<Duration>,
}

impl CallBudget {
    pub(super) fn new(limits: StoreLimits, budget_ms: u32) -> Self {
        Self { limits, time_max: Duration::from_millis(budget_ms.into()), first_tick: None }
    }

    pub(super) fn limits(&mut self) -> &mut StoreLimits {
        &mut self.limits
    }

    /// Notes that a call begins.
    pub(super) fn begin(&mut self) {
        self.first_tick = None;
    }

    /// Whether the call has taken all that it may. Asked at every tick; before the first one, up to a tick has passed.
    pub(super) fn is_spent(&mut self) -> bool {
        let now = thread_time();
        let since = now.saturating_sub(*self.first_tick.get_or_insert(now));
        since + TICK > self.time_max
    }
}

/// Returns how long this thread has been running on a processor.
#[cfg(unix)]
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Elsewhere the clock on the wall has to do.
#[cfg(not(unix))]
fn thread_time() -> Duration {
    use std::sync::OnceLock;
    use std::time::Instant;
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    BEGIN.get_or_init(Instant::now).elapsed()
}
