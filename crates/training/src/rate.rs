//! Chooses a learning rate by trying.

use std::sync::Arc;

use crate::trainer::Advance;
use crate::{Base, Data, Machine, TrainError, TrainOptions, Trainer};

/// A learning rate that was tried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TriedRate {
    pub learning_rate: f32,
    /// After one epoch, in nats per target, with the weighted loss of preferences where there are pairs; infinite if the run
    /// went astray.
    pub validation_loss: f64,
}

/// Rates that are tried, from the lowest on.
pub const RATES: [f32; 3] = [3e-4, 1e-3, 3e-3];

/// Trains one epoch with each rate from the same beginning. Returns what each came to, the best first. Needs items for validation.
pub fn try_learning_rates(
    base: &Arc<Base>,
    options: &TrainOptions,
    data: &Data,
    machine: &Machine,
    rates: &[f32],
    report: &mut dyn FnMut(f32, &Advance),
) -> Result<Vec<TriedRate>, TrainError> {
    if data.validation.is_empty() {
        let remedy = "choosing one needs items for validation: leave out a share of them, or give a number".to_owned();
        return Err(TrainError::Option { option: "learning_rate", got: "auto".to_owned(), remedy });
    }
    let mut tried = Vec::with_capacity(rates.len());
    for rate in rates {
        let options = TrainOptions { learning_rate: *rate, epochs: 1, ..options.clone() };
        let mut trainer = Trainer::new(Arc::clone(base), options, data.clone(), machine)?;
        let outcome = trainer.run(&mut |advance| report(*rate, advance));
        let validation_loss = match outcome {
            Ok(outcome) => outcome.evaluations.last().and_then(|last| trainer.objective(last)).unwrap_or(f64::INFINITY),
            // Too high a rate is found out so.
            Err(TrainError::NotFinite { .. }) => f64::INFINITY,
            Err(other) => return Err(other),
        };
        tried.push(TriedRate { learning_rate: *rate, validation_loss });
    }
    tried.sort_by(|one, other| one.validation_loss.total_cmp(&other.validation_loss));
    Ok(tried)
}
