//! Pairs of answers to the same prompt: how much likelier the chosen one is, and how its lead over the rejected one grows.
//!
//! A lead is a difference of mean log probabilities, so that long answers weigh no more than short ones. The loss of a pair is
//! `-log sigmoid(beta * (lead - reference))`, where the reference is the lead that the base model gives (DPO with lengths
//! normalised). It pulls less the larger the lead has become, so a rejected answer is not pushed down without end.

use serde::{Deserialize, Serialize};

use crate::TrainOptions;
use crate::batch::{Batch, Pair};

/// What a model makes of pairs that are not learned from.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Preferences {
    pub pairs: usize,
    /// Share of the pairs whose chosen answer is the likelier one, per token.
    pub share: f64,
    /// The mean lead of chosen answers, in nats per token.
    pub lead: f64,
    /// The mean loss of preferences.
    pub loss: f64,
}

impl Preferences {
    /// Describes leads, of which the base model gives `references`. Returns `None` if there are no pairs.
    pub fn of(leads: &[f32], references: &[f32], beta: f32) -> Option<Self> {
        if leads.is_empty() {
            return None;
        }
        let mean = |sum: f64| sum / leads.len() as f64;
        let losses = leads.iter().zip(references).map(|(lead, reference)| loss(beta, lead - reference));
        Some(Self {
            pairs: leads.len(),
            share: mean(leads.iter().filter(|lead| **lead > 0.0).count() as f64),
            lead: mean(leads.iter().copied().map(f64::from).sum()),
            loss: mean(losses.sum()),
        })
    }
}

impl Batch {
    /// Returns the sum of the losses of what is to be predicted, and how many they are.
    pub(crate) fn learned(&self, losses: &[f32]) -> (f64, usize) {
        let of_targets = self.targets.iter().zip(losses).filter(|(target, _)| !target.is_rejected);
        of_targets.fold((0.0, 0), |(sum, count), (_, loss)| (sum + f64::from(*loss), count + 1))
    }

    /// Returns the lead of the chosen answer of each pair, in nats per target.
    pub fn leads(&self, losses: &[f32]) -> Vec<f32> {
        let mean = |losses: &[f32]| losses.iter().copied().map(f64::from).sum::<f64>() / losses.len() as f64;
        let lead = |Pair { chosen, rejected }: &Pair| mean(&losses[rejected.clone()]) - mean(&losses[chosen.clone()]);
        self.pairs.iter().map(|pair| lead(pair) as f32).collect()
    }

    /// Returns how much each target counts in the gradient of a step: those that are to be predicted alike, and in addition
    /// those of pairs, with the sign and the strength of the preference. `references` are the leads that the base model
    /// gives.
    pub fn target_weights(&self, losses: &[f32], references: &[f32], options: &TrainOptions) -> Vec<f32> {
        let learned = self.targets.iter().filter(|target| !target.is_rejected).count();
        let of_target = |is_rejected: bool| if is_rejected { 0.0 } else { 1.0 / learned as f32 };
        let mut weights: Vec<f32> = self.targets.iter().map(|target| of_target(target.is_rejected)).collect();
        let of_pair = options.preference_weight / (self.items.len() - self.pairs.len()) as f32;
        let leads = self.leads(losses);
        for (Pair { chosen, rejected }, (lead, reference)) in self.pairs.iter().zip(leads.iter().zip(references)) {
            let pull = of_pair * slope(options.beta, lead - reference);
            let (up, down) = (pull / chosen.len() as f32, pull / rejected.len() as f32);
            weights[chosen.clone()].iter_mut().for_each(|weight| *weight += up);
            weights[rejected.clone()].iter_mut().for_each(|weight| *weight -= down);
        }
        weights
    }
}

/// Returns the loss of a pair whose lead has grown by `gain`.
fn loss(beta: f32, gain: f32) -> f64 {
    let x = f64::from(beta * gain);
    // So that no exponential overflows.
    (-x.abs()).exp().ln_1p() + (-x).max(0.0)
}

/// Returns by how much the loss falls for each nat that the lead grows.
fn slope(beta: f32, gain: f32) -> f32 {
    beta / (1.0 + (beta * gain).exp())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Item;

    #[test]
    fn the_loss_falls_by_its_slope_and_both_are_bounded() {
        for gain in [-1e9, -300.0, -2.0, -0.1, 0.0, 0.3, 2.0, 300.0, 1e9] {
            let (beta, step) = (2.0, 1e-3);
            let slope = slope(beta, gain);
            assert!((0.0..=beta).contains(&slope) && loss(beta, gain).is_finite(), "{gain}");
            if gain.abs() < 10.0 {
                let got = (loss(beta, gain - step) - loss(beta, gain + step)) / f64::from(2.0 * step);
                assert!((got - f64::from(slope)).abs() < 1e-3, "{gain}: {got} is not {slope}");
            }
        }
        assert!(slope(2.0, 5.0) < 1e-4, "nothing is left to pull");
        assert!((loss(2.0, 0.0) - 2f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn targets_of_a_pair_pull_apart_and_what_is_chosen_is_learned_too() {
        let mut pair = Item::new(vec![1, 2, 3], 1..3, 0);
        pair.rejected = Some(Box::new(Item::new(vec![1, 4, 5, 6, 7], 1..5, 0)));
        let batch = Batch::new([&pair, &Item::new(vec![1, 2], 1..2, 1)]);
        let losses = [1.0, 2.0, 4.0, 4.0, 5.0, 5.0, 3.0];
        assert_eq!(batch.leads(&losses), [3.0]);
        let options = TrainOptions { beta: 2.0, preference_weight: 1.0, ..TrainOptions::default() };
        // Two items, and a pull of 1: half of beta.
        let weights = batch.target_weights(&losses, &[3.0], &options);
        let (third, each) = (1.0 / 3.0, 0.125);
        assert_eq!(weights, [third + 0.25, third + 0.25, -each, -each, -each, -each, third]);
        let satisfied = batch.target_weights(&losses, &[-100.0], &options);
        assert_eq!(satisfied, [third, third, 0.0, 0.0, 0.0, 0.0, third]);
        let ignored = batch.target_weights(&losses, &[3.0], &TrainOptions { preference_weight: 0.0, ..options });
        assert_eq!(ignored, satisfied);
    }

    #[test]
    fn preferences_count_the_pairs_whose_chosen_answer_leads() {
        let all = Preferences::of(&[0.5, -0.25, 0.0, 1.75], &[0.5, -0.25, 0.0, 1.75], 2.0).expect("pairs");
        assert_eq!((all.pairs, all.share, all.lead), (4, 0.5, 0.5));
        assert!((all.loss - 2f64.ln()).abs() < 1e-6);
        assert_eq!(Preferences::of(&[], &[], 2.0), None);
    }
}
