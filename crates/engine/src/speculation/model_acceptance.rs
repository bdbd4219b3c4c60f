//! How often the tokens of a draft model have been right lately, and how far its confidence can be trusted.

use super::draft_model::ModelToken;

/// What to expect of a sequence not known yet: about what a model of a third of the size gives on text.
const PRIOR_RATE: f32 = 0.7;
const PRIOR_TRUST: f32 = 0.9;
/// How many observations the expectations are worth.
const PRIOR_WEIGHT: f32 = 8.0;
/// What is left of an observation a step later. Old ones fade, so that what did not pay is tried again some day.
const FADE: f32 = 0.98;
/// Nothing is surer than this.
const CHANCE_MAX: f32 = 0.98;

#[derive(Debug, Default)]
pub(crate) struct ModelAcceptance {
    tested: f32,
    right: f32,
    /// The sum of the confidences of those that were tested.
    promised: f32,
}

impl ModelAcceptance {
    /// Returns the chance that the next token will be right, whatever it is.
    pub(crate) fn rate(&self) -> f32 {
        (PRIOR_RATE * PRIOR_WEIGHT + self.right) / (PRIOR_WEIGHT + self.tested)
    }

    /// Returns the chance that a token is right of which the draft model was so sure.
    pub(crate) fn chance(&self, confidence: f32) -> f32 {
        let trust = (PRIOR_TRUST * PRIOR_WEIGHT + self.right) / (PRIOR_WEIGHT + self.promised);
        (confidence * trust).min(CHANCE_MAX)
    }

    /// A step has tested the first `drafted` of these tokens, of which `accepted` were right. Those after the first wrong one
    /// were not tested.
    pub(crate) fn observe(&mut self, draft: &[ModelToken], drafted: usize, accepted: usize) {
        for sum in [&mut self.tested, &mut self.right, &mut self.promised] {
            *sum *= FADE;
        }
        for (i, token) in draft[..drafted.min(accepted + 1)].iter().enumerate() {
            self.tested += 1.0;
            self.promised += token.confidence;
            self.right += if i < accepted { 1.0 } else { 0.0 };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draft(confidence: f32) -> Vec<ModelToken> {
        vec![ModelToken { token: 1, confidence, chance: confidence }; 3]
    }

    #[test]
    fn chances_follow_what_is_observed() {
        let mut acceptance = ModelAcceptance::default();
        assert_eq!((acceptance.rate(), acceptance.chance(0.5)), (PRIOR_RATE, 0.45));
        (0..50).for_each(|_| acceptance.observe(&draft(0.9), 1, 0));
        assert!(acceptance.rate() < 0.2 && acceptance.chance(0.9) < 0.25);
        (0..100).for_each(|_| acceptance.observe(&draft(0.5), 2, 2));
        assert!(acceptance.rate() > 0.9 && acceptance.chance(0.5) > 0.8, "it was too modest");
        // Tokens behind a wrong one say nothing.
        let mut acceptance = ModelAcceptance::default();
        acceptance.observe(&draft(0.9), 3, 1);
        assert_eq!((acceptance.tested, acceptance.right), (2.0, 1.0));
    }
}
