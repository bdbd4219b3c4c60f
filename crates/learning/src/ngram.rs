//! A memory of what followed which tokens, mixed with a model's predictions: what learning has to beat.

use std::collections::HashMap;

/// Tokens before the predicted one that are looked up at most.
const CONTEXT_MAX: usize = 4;
/// Weights that are tried for each length of context.
const WEIGHTS: [f64; 11] = [0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9];

/// An item and how a model predicts its targets.
#[derive(Clone, Copy, Debug)]
pub struct Scored<'a> {
    pub tokens: &'a [u32],
    /// Whether each token is a target.
    pub targets: &'a [bool],
    /// The losses of the targets, in their order, in nats.
    pub losses: &'a [f64],
}

/// Counts of tokens by the one to four tokens before them, and how much each length is trusted.
#[derive(Clone, Debug, Default)]
pub struct NgramMemory {
    counts: HashMap<Vec<u32>, HashMap<u32, u32>>,
    weights: [f64; CONTEXT_MAX],
}

impl NgramMemory {
    /// Remembers texts as a whole: prompts say something too.
    pub fn of<'t>(texts: impl IntoIterator<Item = &'t [u32]>) -> Self {
        let mut counts: HashMap<Vec<u32>, HashMap<u32, u32>> = HashMap::new();
        for text in texts {
            for at in 1..text.len() {
                for length in 1..=CONTEXT_MAX.min(at) {
                    let followers = counts.entry(text[at - length..at].to_vec()).or_default();
                    *followers.entry(text[at]).or_default() += 1;
                }
            }
        }
        Self { counts, weights: [0.0; CONTEXT_MAX] }
    }

    /// Chooses for each length of context the weight that predicts these items best.
    pub fn fit<'s>(mut self, items: impl IntoIterator<Item = Scored<'s>>) -> Self {
        let mut losses = [[0.0; WEIGHTS.len()]; CONTEXT_MAX];
        for item in items {
            for (at, loss) in item.predictions() {
                if let Some((length, share)) = self.follow(&item.tokens[..at], item.tokens[at]) {
                    for (sum, weight) in losses[length - 1].iter_mut().zip(WEIGHTS) {
                        *sum += mixed(loss, share, weight);
                    }
                }
            }
        }
        for (weight, losses) in self.weights.iter_mut().zip(losses) {
            let best = WEIGHTS.iter().zip(losses).min_by(|(_, one), (_, other)| one.total_cmp(other));
            *weight = best.map_or(0.0, |(weight, _)| *weight);
        }
        self
    }

    /// Returns the losses of an item's targets with the memory mixed in.
    pub fn losses(&self, item: Scored<'_>) -> Vec<f64> {
        let one = |(at, loss): (usize, f64)| match self.follow(&item.tokens[..at], item.tokens[at]) {
            Some((length, share)) => mixed(loss, share, self.weights[length - 1]),
            None => loss,
        };
        item.predictions().map(one).collect()
    }

    /// Returns the longest context that was seen before, and how often `token` came next there.
    fn follow(&self, before: &[u32], token: u32) -> Option<(usize, f64)> {
        (1..=CONTEXT_MAX.min(before.len())).rev().find_map(|length| {
            let followers = self.counts.get(&before[before.len() - length..])?;
            let all: u32 = followers.values().sum();
            let share = f64::from(followers.get(&token).copied().unwrap_or(0)) / f64::from(all);
            Some((length, share))
        })
    }
}

impl Scored<'_> {
    /// Returns the place and the loss of each target.
    fn predictions(&self) -> impl Iterator<Item = (usize, f64)> {
        let places = (1..self.tokens.len()).filter(|at| self.targets[*at]);
        places.zip(self.losses.iter().copied())
    }
}

/// Returns the loss of a mixture. A weight below 1 leaves what the memory has not seen possible.
fn mixed(loss: f64, share: f64, weight: f64) -> f64 {
    if weight == 0.0 { loss } else { -((1.0 - weight) * (-loss).exp() + weight * share).ln() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scored<'a>(tokens: &'a [u32], targets: &'a [bool], losses: &'a [f64]) -> Scored<'a> {
        Scored { tokens, targets, losses }
    }

    #[test]
    fn what_was_seen_is_predicted_better_and_what_was_not_as_before() {
        let (seen, targets) = ([1, 2, 3, 4, 5], [false, false, true, true, true]);
        let memory = NgramMemory::of([&seen[..]]).fit([scored(&seen, &targets, &[5.0; 3])]);
        let better = memory.losses(scored(&seen, &targets, &[5.0; 3]));
        assert!(better.iter().all(|loss| *loss < 0.2), "{better:?}");
        let other = [7, 8, 9, 7, 8];
        assert_eq!(memory.losses(scored(&other, &targets, &[5.0; 3])), [5.0; 3]);
    }

    #[test]
    fn a_memory_that_misleads_gets_no_weight() {
        let (seen, targets) = ([1, 2, 3], [false, false, true]);
        let other = [1, 2, 4];
        let memory = NgramMemory::of([&seen[..]]).fit([scored(&other, &targets, &[1.0])]);
        assert_eq!(memory.losses(scored(&other, &targets, &[1.0])), [1.0]);
        assert_eq!(memory.losses(scored(&seen, &targets, &[1.0])), [1.0]);
    }
}
