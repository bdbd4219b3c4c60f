//! Tells how a training goes on, and what came of it.

use anyhow::Result;
use ruvllm_training::{Outcome, Trainer};
use serde_json::{Value, json};

use super::Installed;
use crate::output;
use crate::output::training::{TrainingProgress, chosen_likelier};

pub struct Report {
    pub progress: TrainingProgress,
}

impl Report {
    pub fn new(trainer: &Trainer) -> Self {
        let [training, replay, validation] = trainer.item_counts();
        let replayed = if replay > 0 { format!(", {replay} to replay") } else { String::new() };
        let pairs = match trainer.pair_counts() {
            [0, 0] => String::new(),
            [training, validation] => format!("; {training} and {validation} of them with a rejected answer"),
        };
        output::remark(&format!("{training} items to learn from{replayed}, {validation} to judge by{pairs}"));
        Self { progress: TrainingProgress::new() }
    }

    /// Prints the losses of all epochs.
    pub fn table(&self, adapter: &Installed, model: &str, outcome: &Outcome) -> Result<()> {
        let loss = |loss: Option<f64>| loss.map_or("-".to_owned(), |loss| format!("{loss:.4}"));
        let before = outcome.evaluations.first().and_then(|first| first.validation_loss);
        let change = |now: Option<f64>| match (before, now) {
            (Some(before), Some(now)) => format!("{:+.1} %", (now / before - 1.0) * 100.0),
            _ => "-".to_owned(),
        };
        let has_pairs = outcome.evaluations.iter().any(|of| of.preferences.is_some());
        let heading = ["EPOCH", "TRAINING LOSS", "VALIDATION LOSS", "CHANGE"].into_iter();
        let of_pairs = ["CHOSEN LIKELIER", "LEAD"].into_iter().filter(|_| has_pairs);
        let mut rows = vec![heading.chain(of_pairs).map(str::to_owned).collect::<Vec<_>>()];
        rows.extend(outcome.evaluations.iter().map(|of| {
            let figures =
                [of.epoch.to_string(), loss(of.training_loss), loss(of.validation_loss), change(of.validation_loss)];
            let of_pairs = of.preferences.iter().flat_map(|of| [chosen_likelier(of), format!("{:+.3}", of.lead)]);
            figures.into_iter().chain(of_pairs).collect()
        }));
        output::table(&rows)?;
        if has_pairs {
            output::remark(
                "chosen likelier: of the held-out pairs, per token; lead: by how much on average, in nats per token",
            );
        }
        if outcome.kept.is_some_and(|kept| kept.epoch == 0) {
            output::remark("the held-out lines were not predicted better: the adapter changes nothing");
        }
        let (name, size) = (&adapter.name, output::bytes(adapter.bytes));
        output::line(&format!("{name} is ready ({size}): ruvllm run {model} --adapter {name}"))
    }

    pub fn to_json(&self, adapter: &Installed, trainer: &Trainer, outcome: &Outcome, seconds: f64) -> Value {
        let ((base, data), [training, replay, validation]) = (trainer.digests(), trainer.item_counts());
        let [training_pairs, validation_pairs] = trainer.pair_counts();
        json!({
            "adapter": adapter.name,
            "bytes": adapter.bytes,
            "base": base,
            "data": data,
            "items": { "training": training, "replay": replay, "validation": validation },
            "pairs": { "training": training_pairs, "validation": validation_pairs },
            "options": trainer.options(),
            "steps": outcome.steps,
            "tokens": outcome.tokens,
            "seconds": seconds,
            // Of the steps of this process, with what was spent on judging between them.
            "tokens_per_second": self.progress.tokens as f64 / seconds,
            "losses": outcome.evaluations,
            "validation_loss": outcome.kept.and_then(|kept| kept.validation_loss),
            "preferences": outcome.kept.and_then(|kept| kept.preferences),
        })
    }
}
