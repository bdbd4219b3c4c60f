//! How many threads of a pool are active.
//!
//! Phases end with their slowest thread. If another program takes one core, the thread on it stands still for
//! milliseconds at a time and all others wait at a barrier; then one thread fewer can be faster. Whether it is shows only
//! when it is tried. Results do not depend on the number of threads, so it may change from region to region.

use std::time::Duration;

/// Shorter waits are not worth a change: a scheduler's time slice is longer.
const WAIT_MIN: Duration = Duration::from_millis(1);
/// Regions until another number of threads is tried, initially and at most.
const PAUSE_MIN: u32 = 16;
const PAUSE_MAX: u32 = 1024;

/// The number of threads for the next region.
#[derive(Debug)]
pub(super) struct ActiveThreads {
    size: usize,
    count: usize,
    /// How many processors' worth of work was done by one thread more, while it is unknown if that was better.
    more: Option<f64>,
    /// Regions until something else is tried.
    left: u32,
    pause: u32,
}

impl ActiveThreads {
    pub(super) fn new(size: usize) -> Self {
        Self { size, count: size, more: None, left: 0, pause: PAUSE_MIN }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Takes in how long a region took, how much processor time its threads worked in that, and how long the most
    /// patient of them waited for the others.
    pub(super) fn learn(&mut self, took: Duration, worked: Duration, waited: Duration) {
        let processors = worked.as_secs_f64() / took.as_secs_f64().max(1e-9);
        let others = (self.count - 1) as u32;
        // One thread fewer would mean that much more work for each of the others.
        let is_slow = others > 0 && waited > WAIT_MIN && waited > took.saturating_sub(waited) / others;
        // Where the system does not tell processor times, there is no way to see which number is better.
        let is_slow = is_slow && !worked.is_zero();
        self.left = self.left.saturating_sub(1);
        if let Some(more) = self.more.take() {
            // Either way, this is not to be tried again soon.
            self.count += usize::from(processors < more);
            self.left = self.pause;
            self.pause = PAUSE_MAX.min(self.pause * 2);
        } else if is_slow && (self.left == 0 || self.count < self.size) {
            self.more = Some(processors);
            self.count -= 1;
        } else if self.left == 0 && self.count < self.size {
            self.count += 1;
        } else if self.left == 0 {
            self.pause = (self.pause - 1).max(PAUSE_MIN);
        }
    }
}

/// Processor time that the calling thread has used; zero where the system does not tell.
#[cfg(unix)]
pub(super) fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the call; every system with this clock has it for the calling thread.
    match unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) } {
        0 => Duration::new(time.tv_sec as u64, time.tv_nsec as u32),
        _ => Duration::ZERO,
    }
}

#[cfg(not(unix))]
pub(super) fn processor_time() -> Duration {
    Duration::ZERO
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(4);
    const CALM: Duration = Duration::from_micros(100);
    const LONG: Duration = Duration::from_millis(3);

    /// Learns that some processors' worth of work was done in a step.
    fn learn(active: &mut ActiveThreads, processors: f64, waited: Duration) {
        active.learn(STEP, STEP.mul_f64(processors), waited);
    }

    /// Regions until all take part again.
    fn recovery(active: &mut ActiveThreads) -> u32 {
        let mut regions = 0;
        while active.count() < active.size {
            learn(active, 1.0, CALM);
            regions += 1;
        }
        regions
    }

    #[test]
    fn a_thread_that_keeps_others_waiting_is_left_out_for_a_while() {
        let mut active = ActiveThreads::new(2);
        learn(&mut active, 1.9, CALM);
        assert_eq!(active.count(), 2);
        learn(&mut active, 0.7, LONG);
        assert_eq!(active.count(), 1);
        assert_eq!(recovery(&mut active), 1 + PAUSE_MIN);
    }

    #[test]
    fn it_comes_back_at_once_if_it_was_better_with_it() {
        let mut active = ActiveThreads::new(2);
        learn(&mut active, 0.7, LONG);
        learn(&mut active, 0.5, CALM);
        assert_eq!(active.count(), 2);
        // And that is not tried again for a while.
        for _ in 0..PAUSE_MIN - 1 {
            learn(&mut active, 0.7, LONG);
            assert_eq!(active.count(), 2);
        }
        learn(&mut active, 0.7, LONG);
        assert_eq!(active.count(), 1);
    }

    #[test]
    fn while_it_goes_on_attempts_become_rare() {
        let mut active = ActiveThreads::new(2);
        for pause in [16, 32, 64, 128, 256, 512, 1024, 1024] {
            learn(&mut active, 0.7, LONG);
            assert_eq!(recovery(&mut active), 1 + pause);
        }
        (0..PAUSE_MAX).for_each(|_| learn(&mut active, 1.9, CALM));
        learn(&mut active, 0.7, LONG);
        assert_eq!(recovery(&mut active), 1 + PAUSE_MIN);
    }

    #[test]
    fn a_wait_that_costs_less_than_a_thread_is_borne() {
        let mut active = ActiveThreads::new(2);
        learn(&mut active, 1.3, STEP / 3);
        assert_eq!(active.count(), 2);
        // Of eight, a thread is worth a seventh.
        let mut active = ActiveThreads::new(8);
        learn(&mut active, 5.0, STEP * 3 / 10);
        assert_eq!(active.count(), 7);
        let mut blind = ActiveThreads::new(2);
        blind.learn(STEP, Duration::ZERO, LONG);
        assert_eq!(blind.count(), 2);
        let mut alone = ActiveThreads::new(1);
        learn(&mut alone, 0.2, STEP);
        assert_eq!(alone.count(), 1);
    }

    #[test]
    #[cfg(unix)]
    fn processor_time_grows_with_work_and_not_with_sleep() {
        let began = processor_time();
        std::thread::sleep(Duration::from_millis(20));
        assert!(processor_time() - began < Duration::from_millis(10));
        let until = processor_time() + Duration::from_millis(2);
        while processor_time() < until {}
    }
}
