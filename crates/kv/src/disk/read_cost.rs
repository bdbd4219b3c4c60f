//! What reading from the disk costs, learned from its own reads.

use std::time::Duration;

/// What is left of a read one read later: the last fifty or so count.
const FADE: f64 = 0.98;
/// What is left of the cost each time that it was too high to read. What is not read is not measured either, and the disk
/// may only have been asleep: sooner or later it is tried again, the later the slower it was.
const DOUBT: f64 = 0.9;

/// Sums of recent reads, the latest with the most weight.
#[derive(Debug, Default)]
pub(super) struct ReadCost {
    seconds: f64,
    bytes: f64,
}

impl ReadCost {
    /// Records how long reading `bytes` bytes took.
    pub(super) fn observe(&mut self, bytes: u64, took: Duration) {
        self.seconds = self.seconds * FADE + took.as_secs_f64();
        self.bytes = self.bytes * FADE + bytes as f64;
    }

    /// Whether reading `bytes` bytes is predicted to take less than `limit`. Before the first read it is assumed to.
    pub(super) fn is_below(&self, bytes: u64, limit: Duration) -> bool {
        self.bytes == 0.0 || self.seconds / self.bytes * (bytes as f64) < limit.as_secs_f64()
    }

    /// Something was not read because it would have cost too much.
    pub(super) fn doubt(&mut self) {
        self.seconds *= DOUBT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Reads of 1,000 bytes that took so many milliseconds each.
    fn measured(reads: impl IntoIterator<Item = u32>) -> ReadCost {
        let mut cost = ReadCost::default();
        reads.into_iter().for_each(|ms| cost.observe(1000, MS * ms));
        cost
    }

    #[test]
    fn reading_is_worth_it_where_computing_takes_longer() {
        let cost = measured([2; 10]);
        assert!(cost.is_below(5000, MS * 11) && !cost.is_below(5000, MS * 9));
        assert!(ReadCost::default().is_below(u64::MAX, Duration::ZERO), "the first time it is tried");
    }

    #[test]
    fn what_was_unlucky_or_has_changed_is_forgotten() {
        assert!(measured([400].into_iter().chain([1; 300])).is_below(1000, MS * 3));
        assert!(!measured([1].into_iter().chain([400; 10])).is_below(1000, MS * 300));
    }

    #[test]
    fn a_disk_that_was_too_slow_is_tried_again_the_later_the_slower() {
        let skips = |ms: u32| {
            let mut cost = measured([ms]);
            let mut skips = 0;
            while !cost.is_below(1000, MS) {
                cost.doubt();
                skips += 1;
            }
            skips
        };
        assert_eq!((skips(2), skips(10), skips(1000)), (7, 22, 66));
    }
}
