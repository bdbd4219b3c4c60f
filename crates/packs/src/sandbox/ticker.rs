//! The clock by which kernels are stopped: a thread that counts milliseconds while kernels are called, and sleeps otherwise.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, Thread};
use std::time::Duration;
use std::{io, mem};

use wasmtime::Engine;

pub(super) const TICK: Duration = Duration::from_millis(1);
/// Ticks without any call after which it sleeps: waking it costs more than a call.
const IDLE_TICKS: u32 = 20;

#[derive(Debug)]
pub(super) struct Ticker {
    shared: Arc<Shared>,
    thread: Thread,
}

#[derive(Debug, Default)]
struct Shared {
    sleeps: AtomicBool,
    ends: AtomicBool,
    clocks: Mutex<Vec<Weak<CallClock>>>,
}

/// Counts the calls of one instance: once when one begins, and once when it ends. In a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct CallClock(AtomicU64);

impl Ticker {
    pub(super) fn start(engine: &Engine) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (engine, of_thread) = (engine.weak(), Arc::clone(&shared));
        let run = move || {
            let (mut before, mut idle) = (Vec::new(), 0);
            while !of_thread.ends.load(Ordering::SeqCst) {
                let counts = of_thread.counts();
                let is_idle = counts == before && counts.iter().all(|count| count % 2 == 0);
                idle = if is_idle { idle + 1 } else { 0 };
                before = counts;
                if idle < IDLE_TICKS {
                    thread::sleep(TICK);
                    let Some(engine) = engine.upgrade() else { return };
                    engine.increment_epoch();
                    continue;
                }
                of_thread.sleeps.store(true, Ordering::SeqCst);
                // A call that began before it could see that is seen here.
                if of_thread.counts() == before && !of_thread.ends.load(Ordering::SeqCst) {
                    thread::park();
                }
                of_thread.sleeps.store(false, Ordering::SeqCst);
                idle = 0;
            }
        };
        let thread = thread::Builder::new().name("kernel-clock".to_owned()).spawn(run)?.thread().clone();
        Ok(Self { shared, thread })
    }

    /// Returns the clock of a new instance.
    pub(super) fn clock(&self) -> Arc<CallClock> {
        let clock = Arc::new(CallClock::default());
        let mut clocks = self.shared.clocks.lock().unwrap_or_else(PoisonError::into_inner);
        clocks.retain(|clock| clock.strong_count() > 0);
        clocks.push(Arc::downgrade(&clock));
        clock
    }

    /// Notes that a call begins, until what is returned is dropped.
    pub(super) fn begin<'a>(&self, clock: &'a CallClock) -> Running<'a> {
        clock.0.fetch_add(1, Ordering::SeqCst);
        if self.shared.sleeps.load(Ordering::SeqCst) {
            self.thread.unpark();
        }
        Running(clock)
    }
}

impl Shared {
    fn counts(&self) -> Vec<u64> {
        let clocks = self.clocks.lock().unwrap_or_else(PoisonError::into_inner);
        clocks.iter().filter_map(Weak::upgrade).map(|clock| clock.0.load(Ordering::SeqCst)).collect()
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::SeqCst);
        self.thread.unpark();
    }
}

pub(super) struct Running<'a>(&'a CallClock);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_add(1, Ordering::Release);
    }
}

const _: () = assert!(mem::align_of::<CallClock>() == 64);
