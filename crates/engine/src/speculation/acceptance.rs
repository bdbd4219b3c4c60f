//! How often draft tokens have been right lately.

/// Draft tokens are told apart by how many tokens matched before them: a single one, a few, or a phrase. Finer classes
/// gave nothing.
const FEW: usize = 2;
const PHRASE: usize = 4;
const CLASSES: usize = 3;

/// What to expect of a sequence not known yet, for each class: about what open chat gives, so that little is lost
/// until it shows to be a copy, code or JSON.
const PRIORS: [f32; CLASSES] = [0.15, 0.45, 0.8];
/// How many observations the expectation is worth.
const PRIOR_WEIGHT: f32 = 8.0;
/// What is left of an observation a step later. Old ones fade, so that what did not pay is tried again some day.
const FADE: f32 = 0.98;

/// The measured chance that a draft is right, given that all before it were.
#[derive(Debug, Default)]
pub(crate) struct AcceptanceRates {
    /// For each class, how many draft tokens were tested and how many were right.
    tested: [f32; CLASSES],
    right: [f32; CLASSES],
}

fn class(length: usize) -> usize {
    usize::from(length >= FEW) + usize::from(length >= PHRASE)
}

impl AcceptanceRates {
    /// For a draft after `length` matching tokens, earlier draft tokens of the same draft included.
    pub(crate) fn of(&self, length: usize) -> f32 {
        let class = class(length);
        (PRIORS[class] * PRIOR_WEIGHT + self.right[class]) / (PRIOR_WEIGHT + self.tested[class])
    }

    /// A step has tested a draft that was made from a match of `length`. Draft tokens after the first wrong one were
    /// not tested.
    pub(crate) fn observe(&mut self, length: usize, drafted: usize, accepted: usize) {
        self.tested.iter_mut().chain(&mut self.right).for_each(|count| *count *= FADE);
        for i in 0..drafted.min(accepted + 1) {
            self.tested[class(length + i)] += 1.0;
            self.right[class(length + i)] += if i < accepted { 1.0 } else { 0.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_follow_what_is_observed_and_return_to_the_expectation() {
        let mut acceptance = AcceptanceRates::default();
        let before: Vec<f32> = [1, 2, 4].map(|length| acceptance.of(length)).to_vec();
        assert_eq!(before, PRIORS);
        (0..50).for_each(|_| acceptance.observe(1, 1, 0));
        assert!(acceptance.of(1) < 0.04, "{}", acceptance.of(1));
        assert_eq!(acceptance.of(2), PRIORS[1], "classes are told apart");
        (0..300).for_each(|_| acceptance.observe(1, 0, 0));
        assert!(acceptance.of(1) > 0.14, "{}", acceptance.of(1));
    }

    #[test]
    fn only_drafts_up_to_the_first_wrong_one_count() {
        let mut acceptance = AcceptanceRates::default();
        acceptance.observe(2, 8, 2);
        // Two right ones after two and three tokens, a wrong one after four; five never tested.
        assert_eq!((acceptance.tested, acceptance.right), ([0.0, 2.0, 1.0], [0.0, 2.0, 0.0]));
        acceptance = AcceptanceRates::default();
        acceptance.observe(4, 3, 3);
        assert_eq!((acceptance.tested, acceptance.right), ([0.0, 0.0, 3.0], [0.0, 0.0, 3.0]));
    }
}
