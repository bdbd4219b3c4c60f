//! Tells how a training goes on, and what came of it.

use std::time::Instant;

use anyhow::Result;
use indicatif::ProgressBar;
use ruvllm_training::{Advance, Evaluation, Outcome, StepReport, Trainer};
use serde_json::{Value, json};

use super::Installed;
use crate::output;
use crate::output::progress::count_bar;

/// Progress on the terminal; elsewhere a line for each epoch.
pub struct Report {
    bar: ProgressBar,
    began: Instant,
    tokens: usize,
}

impl Report {
    pub fn new(trainer: &Trainer) -> Self {
        let [training, replay, validation] = trainer.item_counts();
        let replayed = if replay > 0 { format!(", {replay} to replay") } else { String::new() };
        output::remark(&format!("{training} items to learn from{replayed}, {validation} to judge by"));
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
            Advance::Evaluated(evaluation) => self.bar.suspend(|| output::remark(&line(evaluation))),
            Advance::Done => {}
        }
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }

    /// Prints the losses of all epochs.
    pub fn table(&self, adapter: &Installed, model: &str, outcome: &Outcome) -> Result<()> {
        let loss = |loss: Option<f64>| loss.map_or("-".to_owned(), |loss| format!("{loss:.4}"));
        let before = outcome.evaluations.first().and_then(|first| first.validation_loss);
        let change = |now: Option<f64>| match (before, now) {
            (Some(before), Some(now)) => format!("{:+.1} %", (now / before - 1.0) * 100.0),
            _ => "-".to_owned(),
        };
        let mut rows = vec![["EPOCH", "TRAINING LOSS", "VALIDATION LOSS", "CHANGE"].map(str::to_owned).to_vec()];
        rows.extend(outcome.evaluations.iter().map(|of| {
            vec![of.epoch.to_string(), loss(of.training_loss), loss(of.validation_loss), change(of.validation_loss)]
        }));
        output::table(&rows)?;
        if outcome.validation_loss.is_some() && outcome.validation_loss == before {
            output::remark("the held-out lines were not predicted better: the adapter changes nothing");
        }
        let (name, size) = (&adapter.name, output::bytes(adapter.bytes));
        output::line(&format!("{name} is ready ({size}): ruvllm run {model} --adapter {name}"))
    }

    pub fn to_json(&self, adapter: &Installed, trainer: &Trainer, outcome: &Outcome, seconds: f64) -> Value {
        let ((base, data), [training, replay, validation]) = (trainer.digests(), trainer.item_counts());
        json!({
            "adapter": adapter.name,
            "bytes": adapter.bytes,
            "base": base,
            "data": data,
            "items": { "training": training, "replay": replay, "validation": validation },
            "options": trainer.options(),
            "steps": outcome.steps,
            "tokens": outcome.tokens,
            "seconds": seconds,
            // Of the steps of this process, with what was spent on judging between them.
            "tokens_per_second": self.tokens as f64 / seconds,
            "losses": outcome.evaluations,
            "validation_loss": outcome.validation_loss,
        })
    }
}

fn line(evaluation: &Evaluation) -> String {
    let Evaluation { epoch, training_loss, validation_loss } = evaluation;
    let training = training_loss.map_or(String::new(), |loss| format!(", training loss {loss:.4}"));
    let validation = validation_loss.map_or(String::new(), |loss| format!(", validation loss {loss:.4}"));
    match epoch {
        0 => format!("before training{validation}"),
        _ => format!("epoch {epoch}{training}{validation}"),
    }
}
