//! What one row more in a step costs, learned from how long steps take.
//!
//! It differs tenfold between machines, models and instruction sets: where reading the weights takes the time, further
//! rows are nearly free; where computing does, each costs nearly a step. A fixed figure would make some of them slower.
//! The engine has no clock: durations are reported by its caller, and without them the cautious initial estimate stands.

use std::time::Duration;

/// In units of a step of one row, until steps were measured.
const FIRST_GUESS: f32 = 0.25;
/// Below, the measurement is noise. Above, nothing would be drafted any more, so nothing could show that it was noise.
const LEAST: f32 = 0.03;
const MOST: f32 = 0.75;
/// What is left of a measurement a step later.
const FADE: f64 = 0.98;
/// What is left of an average with each measurement.
const KEPT: f64 = 0.9;
/// Steps that are needed before a line is drawn through them, and how much their rows must differ (variance).
const STEPS_MIN: f64 = 4.0;
const VARIANCE_MIN: f64 = 0.2;
/// A step that takes this many times what was expected was interrupted by something else, and counts as this long.
const OUTLIER: f64 = 2.0;

/// A line through the durations of recent steps over their numbers of rows.
#[derive(Debug)]
pub(crate) struct RowCost {
    cost: f32,
    /// Seconds of a step of one row and of each further one, once known.
    line: Option<(f64, f64)>,
    /// Seconds of a step of one row, on average and lately.
    single: Option<f64>,
    sums: Sums,
}

/// Weighted sums of recent steps, for a least-squares line.
#[derive(Debug, Default)]
struct Sums {
    weight: f64,
    rows: f64,
    rows_squared: f64,
    seconds: f64,
    rows_seconds: f64,
}

impl Default for RowCost {
    fn default() -> Self {
        Self { cost: FIRST_GUESS, line: None, single: None, sums: Sums::default() }
    }
}

impl RowCost {
    /// Of a further row, in units of a step of one row.
    pub(crate) fn get(&self) -> f32 {
        self.cost
    }

    /// Returns how many seconds a step of one row takes, once steps were measured.
    pub(crate) fn single_seconds(&self) -> Option<f64> {
        self.single
    }

    /// Other sequences run from now on, perhaps much longer or shorter ones: older durations cannot be compared.
    pub(crate) fn restart(&mut self) {
        self.sums = Sums::default();
        self.line = None;
    }

    /// A step of `rows` rows, none of a prompt, took this long.
    pub(crate) fn observe(&mut self, rows: usize, took: Duration) {
        let (rows, mut seconds) = (rows as f64, took.as_secs_f64());
        if let Some((first, further)) = self.line {
            seconds = seconds.min(OUTLIER * (first + further * (rows - 1.0)));
        }
        self.sums.add(rows, seconds);
        let single = seconds / (1.0 + f64::from(self.cost) * (rows - 1.0));
        self.single = Some(self.single.map_or(single, |before| KEPT * before + (1.0 - KEPT) * single));
        if let Some((first, further)) = self.sums.line() {
            self.line = Some((first, further));
            self.cost = ((further / first) as f32).clamp(LEAST, MOST);
        }
    }
}

impl Sums {
    fn add(&mut self, rows: f64, seconds: f64) {
        let Self { weight, rows: sum, rows_squared, seconds: total, rows_seconds } = self;
        for (sum, value) in
            [(weight, 1.0), (sum, rows), (rows_squared, rows * rows), (total, seconds), (rows_seconds, rows * seconds)]
        {
            *sum = *sum * FADE + value;
        }
    }

    /// Seconds of one row and of each further one, if the steps tell them.
    fn line(&self) -> Option<(f64, f64)> {
        let (rows, seconds) = (self.rows / self.weight, self.seconds / self.weight);
        let variance = self.rows_squared / self.weight - rows * rows;
        if self.weight < STEPS_MIN || variance < VARIANCE_MIN {
            return None;
        }
        let further = ((self.rows_seconds / self.weight - rows * seconds) / variance).max(0.0);
        let first = seconds - further * (rows - 1.0);
        (first > 0.0).then_some((first, further))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps of alternating lengths, each `scale` times as long as the line through 10 ms with `cost` per row.
    fn measured(cost: f64, scale: impl Fn(usize) -> f64) -> RowCost {
        let mut measured = RowCost::default();
        for step in 0..100 {
            let rows = [1, 4, 1, 9][step % 4];
            let ms = 10.0 * (1.0 + cost * (rows - 1) as f64) * scale(step);
            measured.observe(rows, Duration::from_secs_f64(ms / 1e3));
        }
        measured
    }

    #[test]
    fn the_cost_is_read_from_the_durations() {
        for cost in [0.05f32, 0.1, 0.3, 0.7] {
            let got = measured(f64::from(cost), |_| 1.0).get();
            assert!((got - cost).abs() < 0.001, "{got} for {cost}");
        }
        assert_eq!(measured(0.0, |_| 1.0).get(), LEAST);
        assert_eq!(measured(1.0, |_| 1.0).get(), MOST);
    }

    #[test]
    fn interrupted_and_ever_slower_steps_do_not_mislead_it() {
        let got = measured(0.1, |step| if step % 7 == 3 { 8.0 } else { 1.0 }).get();
        assert!((0.04..0.25).contains(&got), "{got}");
        let got = measured(0.1, |step| 1.0 + step as f64 * 0.01).get();
        assert!((0.08..0.12).contains(&got), "{got}");
    }

    #[test]
    fn without_steps_of_different_lengths_nothing_is_concluded() {
        let mut cost = RowCost::default();
        (0..50).for_each(|_| cost.observe(1, Duration::from_millis(5)));
        assert_eq!(cost.get(), FIRST_GUESS);
        cost.observe(9, Duration::from_millis(9));
        cost.observe(9, Duration::from_millis(9));
        assert!((cost.get() - 0.1).abs() < 0.02, "{}", cost.get());
        cost.restart();
        cost.observe(1, Duration::from_millis(500));
        assert!((cost.get() - 0.1).abs() < 0.02, "what was learned is kept");
    }
}
