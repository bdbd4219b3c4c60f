//! From a decision to probabilities, and from those to a choice.

/// Exploring more would answer most requests by chance.
pub const EXPLORATION_MAX: f64 = 0.5;

/// What a router would have answer a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// Place among the candidates.
    pub place: usize,
    /// How sure it is that this one is at least as good as the default, from 0 to 1.
    pub confidence: f64,
}

/// Returns how likely each of `count` candidates is to be chosen: the one decided on, and with the probability
/// `exploration` any of them, that one included.
pub fn explored(place: usize, count: usize, exploration: f64) -> Vec<f64> {
    let exploration = if count > 1 { exploration.clamp(0.0, EXPLORATION_MAX) } else { 0.0 };
    let mut probabilities = vec![exploration / count as f64; count];
    probabilities[place] += 1.0 - exploration;
    probabilities
}

/// Draws a place with these probabilities. `unit` is a random number from 0 to below 1.
pub fn drawn(probabilities: &[f64], unit: f64) -> usize {
    let mut left = unit;
    for (place, probability) in probabilities.iter().enumerate() {
        left -= probability;
        if left < 0.0 {
            return place;
        }
    }
    // Sums of floats may end a little below 1.
    probabilities.iter().rposition(|probability| *probability > 0.0).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_candidate_is_chosen_as_often_as_the_log_says() {
        assert_eq!(explored(1, 2, 0.0), [0.0, 1.0]);
        assert_eq!(explored(0, 1, 0.3), [1.0]);
        let probabilities = explored(2, 4, 0.2);
        assert_eq!(probabilities, [0.05, 0.05, 0.05 + 0.8, 0.05]);
        assert_eq!(explored(0, 2, 7.0), [0.75, 0.25], "bounded");
        let mut counts = [0; 4];
        (0..1000).for_each(|index| counts[drawn(&probabilities, (f64::from(index) + 0.5) / 1000.0)] += 1);
        assert_eq!(counts, [50, 50, 850, 50]);
        assert_eq!(drawn(&[0.5, 0.5, 0.0], 0.999_999_999_999), 1);
        assert_eq!(drawn(&[0.3, 0.3, 0.0], 0.9), 1, "never one that could not be chosen");
    }
}
