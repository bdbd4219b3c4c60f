//! How much of a mixture each kind of suggestion gets: what would have been right so far.
//!
//! For each kind there is a list of shares that it could have. Each of these is credited with how likely it would have
//! made the tokens that came, and the share in use is their mean, weighted by credit (a Bayesian mixture). Credits are
//! sums over tokens, in their order, and depend on nothing else.

use super::chain::{Opinion, PRIORS};

/// Shares that are weighed against each other.
const SHARES: [f64; 10] = [0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8];

/// How much less credit a share begins with for each step that it is away from the expected one, in nats.
const STIFFNESS: f64 = 1.0;

/// Below this, a suggestion is not worth mixing in.
const SHARE_MIN: f64 = 0.003;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Shares {
    credits: Vec<[f64; SHARES.len()]>,
    /// What follows from these.
    shares: Vec<f64>,
}

impl Default for Shares {
    fn default() -> Self {
        let nearest = |expected: &f64| {
            let distance = |share: &f64| (share - expected).abs();
            (0..SHARES.len()).min_by(|a, b| distance(&SHARES[*a]).total_cmp(&distance(&SHARES[*b]))).unwrap_or(0)
        };
        let credits = PRIORS
            .iter()
            .map(nearest)
            .map(|expected| std::array::from_fn(|index| -STIFFNESS * (index as f64 - expected as f64).abs()));
        let credits: Vec<_> = credits.collect();
        let shares = credits.iter().map(share).collect();
        Self { credits, shares }
    }
}

impl Shares {
    /// Returns the share of suggestions of this kind.
    pub fn of(&self, opinion: Opinion) -> f64 {
        self.shares[opinion.0]
    }

    /// Notes that a token came that was this many times as likely by the suggestion as without.
    pub fn observe(&mut self, opinion: Opinion, ratio: f64) {
        let credits = &mut self.credits[opinion.0];
        credits.iter_mut().zip(SHARES).for_each(|(credit, share)| *credit += (1.0 - share + share * ratio).ln());
        self.shares[opinion.0] = share(credits);
    }
}

/// Returns the mean share; 0 where nothing has more credit than that.
fn share(credits: &[f64; SHARES.len()]) -> f64 {
    let largest = credits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if credits[0] >= largest {
        return 0.0;
    }
    let weights = credits.map(|credit| (credit - largest).exp());
    let mean =
        weights.iter().zip(SHARES).map(|(weight, share)| weight * share).sum::<f64>() / weights.iter().sum::<f64>();
    if mean < SHARE_MIN { 0.0 } else { mean }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_predicts_well_gets_more_and_what_does_not_gets_nothing() {
        let (mut shares, kind) = (Shares::default(), Opinion(0));
        let before = shares.of(kind);
        (0..50).for_each(|_| shares.observe(kind, 3.0));
        assert!(shares.of(kind) > 0.5 && before == 0.0, "{before} {}", shares.of(kind));
        (0..200).for_each(|_| shares.observe(kind, 0.0));
        assert_eq!(shares.of(kind), 0.0);
        assert_eq!(shares.of(Opinion(1)), Shares::default().of(Opinion(1)), "others are judged on their own");
    }

    #[test]
    fn what_is_right_half_of_the_time_gets_about_half() {
        let (mut shares, kind) = (Shares::default(), Opinion(0));
        // Certain, and right every other time, where the model finds everything unlikely.
        for i in 0..400 {
            shares.observe(kind, if i % 2 == 0 { 1000.0 } else { 0.0 });
        }
        assert!((0.45..0.56).contains(&shares.of(kind)), "{}", shares.of(kind));
    }
}
