//! What a step of the draft model costs, in terms of a step of the large model.

use std::time::Duration;

/// Batches of up to so many rows are steps of drafting; longer ones are read texts.
const FEW_ROWS: usize = 6;
/// What a row of a text that is read costs in terms of a step of drafting, until that is measured.
const ROW_SHARE: f32 = 0.1;
/// What is left of the average with each measurement.
const KEPT: f64 = 0.9;
/// A batch that takes this many times the average was interrupted by something else, and counts as this long.
const OUTLIER: f64 = 2.0;

/// Averages of recent durations.
#[derive(Debug)]
pub(super) struct DraftCost {
    /// The guess for a step, until both kinds of steps were measured.
    guess: f32,
    /// Seconds.
    step: Option<f64>,
    row: Option<f64>,
    large_step: Option<f64>,
    /// Since it was last asked for.
    time: Duration,
}

impl DraftCost {
    pub(super) fn new(guess: f32) -> Self {
        Self { guess, step: None, row: None, large_step: None, time: Duration::ZERO }
    }

    /// Returns the cost of a step.
    pub(super) fn step(&self) -> f32 {
        self.step.zip(self.large_step).map_or(self.guess, |(step, large)| (step / large) as f32)
    }

    /// Returns the cost of a row of a text that is read.
    pub(super) fn row(&self) -> f32 {
        self.row.zip(self.large_step).map_or(self.step() * ROW_SHARE, |(row, large)| (row / large) as f32)
    }

    /// A batch of `rows` rows took this long.
    pub(super) fn observe(&mut self, rows: usize, took: Duration) {
        self.time += took;
        let seconds = took.as_secs_f64();
        if seconds == 0.0 {
            return;
        }
        if rows <= FEW_ROWS {
            average(&mut self.step, seconds);
        } else {
            average(&mut self.row, seconds / rows as f64);
        }
    }

    pub(super) fn set_large_step(&mut self, seconds: f64) {
        self.large_step = Some(seconds);
    }

    pub(super) fn take_time(&mut self) -> Duration {
        std::mem::take(&mut self.time)
    }
}

fn average(average: &mut Option<f64>, seconds: f64) {
    *average = Some(match *average {
        None => seconds,
        Some(before) => KEPT * before + (1.0 - KEPT) * seconds.min(OUTLIER * before),
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_guessed_until_they_are_measured() {
        let mut cost = DraftCost::new(0.4);
        assert!(cost.step() == 0.4 && (cost.row() - 0.04).abs() < 1e-6);
        cost.set_large_step(0.05);
        assert_eq!(cost.step(), 0.4);
        cost.observe(1, Duration::from_millis(10));
        cost.observe(100, Duration::from_millis(200));
        assert!((cost.step() - 0.2).abs() < 1e-6 && (cost.row() - 0.04).abs() < 1e-6);
        assert_eq!(cost.take_time(), Duration::from_millis(210));
        // An interruption does not mislead it.
        cost.observe(1, Duration::from_secs(5));
        assert!(cost.step() < 0.23, "{}", cost.step());
    }
}
