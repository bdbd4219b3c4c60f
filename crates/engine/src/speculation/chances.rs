//! How often guesses have been right lately.

/// Guesses are told apart by how many tokens matched before them: a single one, a few, or a phrase. Finer classes
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

/// The measured chance that a guess is right, given that all before it were.
#[derive(Debug, Default)]
pub(crate) struct Chances {
    /// For each class, how many guesses were tested and how many were right.
    tested: [f32; CLASSES],
    right: [f32; CLASSES],
}

fn class(length: usize) -> usize {
    usize::from(length >= FEW) + usize::from(length >= PHRASE)
}

impl Chances {
    /// For a guess after `length` matching tokens, earlier guesses of the same draft included.
    pub(crate) fn of(&self, length: usize) -> f32 {
        let class = class(length);
        (PRIORS[class] * PRIOR_WEIGHT + self.right[class]) / (PRIOR_WEIGHT + self.tested[class])
    }

    /// A step has tested a draft that was made from a match of `length`. Guesses after the first wrong one were
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
        let mut chances = Chances::default();
        let before: Vec<f32> = [1, 2, 4].map(|length| chances.of(length)).to_vec();
        assert_eq!(before, PRIORS);
        (0..50).for_each(|_| chances.observe(1, 1, 0));
        assert!(chances.of(1) < 0.04, "{}", chances.of(1));
        assert_eq!(chances.of(2), PRIORS[1], "classes are told apart");
        (0..300).for_each(|_| chances.observe(1, 0, 0));
        assert!(chances.of(1) > 0.14, "{}", chances.of(1));
    }

    #[test]
    fn only_guesses_up_to_the_first_wrong_one_count() {
        let mut chances = Chances::default();
        chances.observe(2, 8, 2);
        // Two right ones after two and three tokens, a wrong one after four; five never tested.
        assert_eq!((chances.tested, chances.right), ([0.0, 2.0, 1.0], [0.0, 2.0, 0.0]));
        chances = Chances::default();
        chances.observe(4, 3, 3);
        assert_eq!((chances.tested, chances.right), ([0.0, 0.0, 3.0], [0.0, 0.0, 3.0]));
    }
}
