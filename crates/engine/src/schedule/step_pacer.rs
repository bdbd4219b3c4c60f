//! How many rows of prompts a step may have while other sequences generate: each row makes those wait for their next
//! token.
//!
//! Learned from how long steps take, because a row's cost differs tenfold between machines and grows with the depth of its
//! prompt. A step with a few rows costs much more than its share, as the keys and values of the whole prompt are read for
//! them, so some steps have more rows than would be allowed, and others follow without any until the delay is made up for.
//! Decides how long a prompt takes, and with one KV format never which tokens come.

use std::time::Duration;

/// Rows of the first step with both: about what costs as much again as a step without them.
const FIRST_ROWS: usize = 8;
/// Rows of later ones at least. Fewer of a prompt alone tell little of what a row costs: the weights are read for them all the
/// same.
const ROWS_MIN: usize = 16;
/// Rows of a step that is kept short, at least.
const ROWS_WITHIN_MIN: usize = 32;
/// The weight of the latest step.
const BLEND: f64 = 0.3;
/// The share of the allowed delay that is aimed at: steps vary.
const AIM: f64 = 0.8;
/// How much of the allowed delay a step with prompts takes at once.
const STRETCH: f64 = 2.0;
/// A delay is made up for within at most this many steps: one that was out of all proportion has other causes.
const REPAID_WITHIN: f64 = 64.0;
/// After this many steps with prompts comes one without. When other programs slow all steps down, an old measurement would put
/// that down to the rows.
const STEPS_UNTIL_PLAIN: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct StepPacer {
    /// Seconds of a step that only generates, and of each row of a prompt beside one.
    step: Option<f64>,
    row: Option<f64>,
    /// Seconds of each row of a prompt where nothing else is computed.
    row_alone: Option<f64>,
    /// The delay that is aimed at, in units of a step that only generates.
    delay: f64,
    /// Seconds of delay that are still to be made up for.
    debt: f64,
    /// Steps with prompts since one that only generated.
    since_plain: usize,
}

impl StepPacer {
    /// Rows of prompts for the next step, so that steps take at most `slowdown` times as long as those that only generate, on
    /// average.
    pub(crate) fn prompt_rows(&mut self, slowdown: f64) -> usize {
        self.delay = (slowdown - 1.0).max(0.0) * AIM;
        match (self.step, self.row) {
            (Some(_), Some(_)) if self.debt > 0.0 || self.since_plain >= STEPS_UNTIL_PLAIN => 0,
            (Some(step), Some(row)) => ((step * self.delay * STRETCH / row) as usize).max(ROWS_MIN),
            (Some(_), None) => FIRST_ROWS,
            // No durations were reported.
            (None, _) => usize::MAX,
        }
    }

    /// Rows of prompts that take so long where nothing else is computed. Fewer than some would take twice as long for each, which
    /// a machine that is slow because it has too much to do can least afford.
    pub(crate) fn rows_within(&self, time: Duration) -> usize {
        self.row_alone.map_or(usize::MAX, |row| (time.as_secs_f64() / row) as usize).max(ROWS_WITHIN_MIN)
    }

    /// What a row of a prompt takes to compute, once that was seen.
    pub(crate) fn row_time(&self) -> Option<Duration> {
        self.row_alone.or(self.row).map(Duration::from_secs_f64)
    }

    /// Records how long a step took, by the number of generating sequences and of prompt rows.
    pub(crate) fn observe(&mut self, generating: usize, prompt_rows: usize, took: Duration) {
        let took = took.as_secs_f64();
        match (generating, prompt_rows) {
            (0, rows) if rows >= ROWS_MIN => blend(&mut self.row_alone, took / rows as f64),
            (0, _) => {}
            (_, 0) => {
                self.since_plain = 0;
                self.debt = (self.debt - self.delay * took).max(0.0);
                blend(&mut self.step, took);
            }
            (_, rows) => {
                self.since_plain += 1;
                if let Some(step) = self.step {
                    // A step is never cheaper for having more rows; what looks like it is noise.
                    let delay = (took - step).max(step * 0.01);
                    blend(&mut self.row, delay / rows as f64);
                    let most = REPAID_WITHIN * self.delay * step;
                    self.debt = (self.debt + delay - self.delay * step).clamp(0.0, most);
                }
            }
        }
    }
}

fn blend(value: &mut Option<f64>, latest: f64) {
    *value = Some(value.map_or(latest, |value| value + BLEND * (latest - value)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_becomes_slower_slows_prompts_down_no_more_than_that() {
        let mut pacer = StepPacer::default();
        (0..20).for_each(|_| pacer.observe(4, 0, Duration::from_millis(5)));
        let mut prompt_tokens = 0;
        for _ in 0..400 {
            let rows = pacer.prompt_rows(2.0);
            // Everything takes four times as long as before.
            pacer.observe(4, rows, Duration::from_secs_f64((20.0 + 0.8 * rows as f64) / 1e3));
            prompt_tokens += rows;
        }
        assert!(prompt_tokens > 400 * 10, "{prompt_tokens}");
    }

    /// Steps of 5 ms and a cost of prompts that may depend on the step and the rows. Gives the mean slowdown, the largest but for
    /// the first, and the rows of all steps.
    fn paced(prompt_ms: impl Fn(usize, usize) -> f64) -> (f64, f64, usize) {
        let mut pacer = StepPacer::default();
        (0..20).for_each(|_| pacer.observe(4, 0, Duration::from_millis(5)));
        let mut slowdowns = Vec::new();
        let mut all = 0;
        for step in 0..400 {
            let rows = pacer.prompt_rows(2.0);
            let ms = 5.0 + if rows > 0 { prompt_ms(step, rows) } else { 0.0 };
            slowdowns.push(ms / 5.0);
            pacer.observe(4, rows, Duration::from_secs_f64(ms / 1e3));
            all += rows;
        }
        let most = slowdowns[1..].iter().copied().fold(0.0, f64::max);
        (slowdowns.iter().sum::<f64>() / 400.0, most, all)
    }

    #[test]
    fn steps_take_at_most_twice_as_long_on_average() {
        for row_ms in [0.01, 0.2, 0.5] {
            let (mean, most, rows) = paced(|_, rows| row_ms * rows as f64);
            assert!(mean <= 2.0 && most <= 2.7, "{row_ms} ms a row: {mean}, {most}");
            assert!(rows as f64 >= 400.0 * 5.0 * AIM / row_ms * 0.8, "{row_ms} ms a row: {rows}");
        }
        let (mean, ..) = paced(|step, rows| (0.1 + step as f64 * 0.002) * rows as f64);
        assert!(mean <= 2.0, "rows that take longer and longer: {mean}");
    }

    /// As it is deep in a prompt, whose keys and values are read for one row as for many.
    #[test]
    fn what_few_rows_cost_as_well_does_not_make_them_fewer() {
        let (mean, _, rows) = paced(|_, rows| 8.0 + 0.25 * rows as f64);
        assert!(mean <= 2.0 && rows > 400 * 2, "{mean}, {rows}");
    }

    #[test]
    fn without_a_clock_prompts_take_all_there_is() {
        assert_eq!(StepPacer::default().prompt_rows(2.0), usize::MAX);
    }

    #[test]
    fn the_time_of_a_row_is_that_of_many_together() {
        let mut pacer = StepPacer::default();
        pacer.observe(0, 1, Duration::from_millis(5));
        pacer.observe(1, 0, Duration::from_millis(5));
        assert_eq!(pacer.row_time(), None, "a step of one row reads all weights for it");
        pacer.observe(1, 10, Duration::from_millis(10));
        assert_eq!(pacer.row_time(), Some(Duration::from_micros(500)));
        pacer.observe(0, 100, Duration::from_millis(40));
        assert_eq!(pacer.row_time(), Some(Duration::from_micros(400)));
    }

    #[test]
    fn deep_in_a_prompt_fewer_rows_take_the_same_time() {
        let mut pacer = StepPacer::default();
        let time = Duration::from_millis(25);
        assert_eq!(pacer.rows_within(time), usize::MAX, "nobody knows yet");
        pacer.observe(0, 128, Duration::from_millis(64));
        assert_eq!(pacer.rows_within(time), 50);
        (0..20).for_each(|_| pacer.observe(0, 50, Duration::from_millis(200)));
        assert_eq!(pacer.rows_within(time), ROWS_WITHIN_MIN);
    }

    #[test]
    fn a_prompt_is_never_held_up_altogether() {
        let mut pacer = StepPacer::default();
        pacer.observe(4, 0, Duration::from_millis(5));
        let mut prompt_tokens = 0;
        for _ in 0..300 {
            let rows = pacer.prompt_rows(2.0);
            pacer.observe(4, rows, Duration::from_millis(5 + 100 * rows as u64));
            prompt_tokens += rows;
        }
        assert!(prompt_tokens >= 4 * ROWS_MIN, "{prompt_tokens}");
    }
}
