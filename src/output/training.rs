//! How a training goes on.

use std::time::Instant;

use indicatif::ProgressBar;
use ruvllm_training::{Advance, Evaluation, Preferences, StepReport};

use super::progress::count_bar;
use super::remark;

/// Progress on the terminal; elsewhere a line for each epoch.
pub struct TrainingProgress {
    bar: ProgressBar,
    began: Instant,
    /// Of the steps so far.
    pub tokens: usize,
}

impl TrainingProgress {
    pub fn new() -> Self {
        Self { bar: count_bar(0, "training"), began: Instant::now(), tokens: 0 }
    }

    pub fn tell(&mut self, advance: &Advance) {
        match advance {
            Advance::Stepped(StepReport { step, steps, loss, tokens, .. }) => {
                self.tokens += tokens;
                self.bar.set_length(*steps as u64);
                self.bar.set_position(*step as u64);
                let speed = self.tokens as f64 / self.began.elapsed().as_secs_f64();
                self.bar.set_message(format!("loss {loss:.3}, {speed:.0} tokens/s"));
            }
            Advance::Evaluated(evaluation) => self.bar.suspend(|| remark(&line(evaluation))),
            Advance::Done => {}
        }
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn line(evaluation: &Evaluation) -> String {
    let Evaluation { epoch, training_loss, validation_loss, preferences } = evaluation;
    let training = training_loss.map_or(String::new(), |loss| format!(", training loss {loss:.4}"));
    let validation = validation_loss.map_or(String::new(), |loss| format!(", validation loss {loss:.4}"));
    let preferred = preferences.map_or(String::new(), |of| format!(", chosen likelier in {}", chosen_likelier(&of)));
    match epoch {
        0 => format!("before training{validation}{preferred}"),
        _ => format!("epoch {epoch}{training}{validation}{preferred}"),
    }
}

/// Names the share of pairs whose chosen answer is the likelier one.
pub fn chosen_likelier(preferences: &Preferences) -> String {
    format!("{:.0} % of {}", 100.0 * preferences.share, preferences.pairs)
}
