//! How sure a difference is: a paired bootstrap over documents.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Loss;
use crate::random::Random;

/// A relative change of a loss, and what it lies between with the confidence that was asked for. Below 0 is better.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    pub change: f64,
    pub low: f64,
    pub high: f64,
}

/// Compares losses of the same items with those of `reference`. Documents are drawn as a whole, since the items of
/// one are alike, and for both sides together, since they are hard or easy for both.
///
/// Few documents vary less than what they were drawn from, so the interval of percentiles would be too narrow; it is
/// widened as that of a mean of as many numbers is (Hesterberg's expanded percentiles).
pub(crate) fn compare(
    documents: &[u64],
    reference: &[Loss],
    losses: &[Loss],
    (resamples, seed): (usize, u64),
    confidence: f64,
) -> Interval {
    let mut of_documents: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for (document, (reference, loss)) in documents.iter().zip(reference.iter().zip(losses)) {
        let sums = of_documents.entry(*document).or_default();
        *sums = (sums.0 + reference.sum, sums.1 + loss.sum);
    }
    let sums: Vec<(f64, f64)> = of_documents.into_values().collect();
    let (low, high) = resampled(&sums, change, (resamples, seed), confidence);
    Interval { change: change(&mut sums.iter().copied()), low, high }
}

/// Returns what a statistic lies between when the parts that it is of are drawn anew.
pub(crate) fn resampled<T: Copy>(
    parts: &[T],
    statistic: impl Fn(&mut dyn Iterator<Item = T>) -> f64,
    (resamples, seed): (usize, u64),
    confidence: f64,
) -> (f64, f64) {
    let mut random = Random::new(seed);
    let drawn = |random: &mut Random| statistic(&mut (0..parts.len()).map(|_| parts[random.below(parts.len())]));
    let mut values: Vec<f64> = (0..resamples).map(|_| drawn(&mut random)).collect();
    values.sort_by(f64::total_cmp);
    let outside = expanded_tail(parts.len(), (1.0 - confidence) / 2.0);
    let at = |share: f64| values[((resamples - 1) as f64 * share).round() as usize];
    (at(outside), at(1.0 - outside))
}

fn change(sums: &mut dyn Iterator<Item = (f64, f64)>) -> f64 {
    let (reference, loss) = sums.fold((0.0, 0.0), |all, (reference, loss)| (all.0 + reference, all.1 + loss));
    if reference == 0.0 { 0.0 } else { loss / reference - 1.0 }
}

/// Returns the share to leave out on each side so that an interval of `count` numbers covers what 1 - 2 `tail` should.
fn expanded_tail(count: usize, tail: f64) -> f64 {
    let count = count.max(2) as f64;
    let quantile = student_quantile(-normal_quantile(tail), count - 1.0);
    normal_share(-(count / (count - 1.0)).sqrt() * quantile)
}

/// Returns Student's quantile from that of the normal distribution (Cornish and Fisher).
fn student_quantile(z: f64, freedom: f64) -> f64 {
    let terms = [
        (z.powi(3) + z) / 4.0,
        (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0,
        (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0,
    ];
    z + terms.iter().zip(1..).map(|(term, power)| term / freedom.powi(power)).sum::<f64>()
}

/// Returns the share of the standard normal distribution below `x` (Abramowitz and Stegun 26.2.17).
pub(crate) fn normal_share(x: f64) -> f64 {
    const TERMS: [f64; 5] = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let t = 1.0 / (1.0 + 0.231_641_9 * x.abs());
    let tail = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt()
        * TERMS.iter().rev().fold(0.0, |sum, term| (sum + term) * t);
    if x < 0.0 { tail } else { 1.0 - tail }
}

/// Returns where the standard normal distribution has this share below it, by halving.
fn normal_quantile(share: f64) -> f64 {
    let (mut low, mut high) = (-10.0, 10.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if normal_share(middle) < share { low = middle } else { high = middle }
    }
    (low + high) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_tables() {
        assert!((normal_share(-1.96) - 0.025).abs() < 1e-4);
        assert!((normal_quantile(0.975) - 1.959_96).abs() < 1e-4);
        for (freedom, expected) in [(5.0, 2.5706), (10.0, 2.2281), (30.0, 2.0423)] {
            assert!((student_quantile(1.959_96, freedom) - expected).abs() < 5e-3, "{freedom}");
        }
        assert!(expanded_tail(8, 0.025) < 0.01 && (expanded_tail(10_000, 0.025) - 0.025).abs() < 1e-4);
    }

    #[test]
    fn the_same_seed_gives_the_same_interval_and_documents_are_drawn_as_a_whole() {
        let losses = |shift: f64| -> Vec<Loss> {
            (0..40)
                .map(|item| Loss { sum: 10.0 + f64::from(item % 7) + shift * f64::from(item / 4), targets: 4 })
                .collect()
        };
        let (base, other) = (losses(0.0), losses(-0.1));
        let (items, tens): (Vec<u64>, Vec<u64>) = ((0..40).collect(), (0..40).map(|item| item / 4).collect());
        let of = |documents: &[u64], seed| compare(documents, &base, &other, (2000, seed), 0.95);
        assert_eq!(of(&items, 1), of(&items, 1));
        assert!((of(&items, 1).change - of(&tens, 2).change).abs() < 1e-12);
        let width = |interval: Interval| interval.high - interval.low;
        assert!(width(of(&tens, 1)) > 1.5 * width(of(&items, 1)), "items of a document are alike");
    }
}
