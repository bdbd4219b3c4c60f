//! The baseline: what each model is worth, as a linear function of the request.

use std::collections::BTreeMap;

use super::decision::Decision;
use super::features::Features;
use super::logged::LoggedChoice;
use super::ridge::Ridge;
use crate::bootstrap::normal_share;

/// How sure a bandit must be that another model is better, before it leaves the default.
const CONFIDENCE_MIN: f64 = 0.7;
/// Outcomes that must be known of a model before it is chosen for what it is worth.
const OBSERVATIONS_MIN: usize = 3;
/// Models of which something is known at a time.
const MODELS_MAX: usize = 16;
/// Assumed deviation of rewards from what can be expected.
const NOISE: f64 = 0.35;

/// Chooses the model whose expected reward is highest, as far as it can be told from the default's.
#[derive(Clone, Debug, Default)]
pub struct Bandit {
    models: BTreeMap<String, Ridge>,
    /// What a model is worth of which nothing is known: the mean of all.
    mean: f64,
    observations: usize,
}

impl Bandit {
    /// Learns from choices, by chance or not: what a model was worth does not depend on why it was chosen, as far as
    /// that was for what the features say.
    pub fn of<'c>(choices: impl IntoIterator<Item = &'c LoggedChoice> + Clone) -> Self {
        let (sum, count) =
            choices.clone().into_iter().fold((0.0, 0), |(sum, count), one| (sum + one.reward, count + 1));
        let mut bandit = Self { mean: if count > 0 { sum / f64::from(count) } else { 0.0 }, ..Self::default() };
        for choice in choices {
            bandit.observe(&choice.candidates[choice.chosen].model, &choice.features, choice.reward);
        }
        bandit
    }

    /// Learns from one outcome.
    pub(crate) fn observe(&mut self, model: &str, features: &Features, reward: f64) {
        if !self.models.contains_key(model) && self.models.len() >= MODELS_MAX {
            return;
        }
        let regression = self.models.entry(model.to_owned()).or_insert_with(Ridge::new);
        regression.observe(features, reward - self.mean);
        self.observations += 1;
    }

    /// Returns how many outcomes it knows.
    pub fn observations(&self) -> usize {
        self.observations
    }

    /// Returns what it takes in memory.
    pub fn bytes(&self) -> usize {
        self.models.len() * Ridge::BYTES
    }

    /// Returns the expected reward of a model.
    pub fn value(&self, model: &str, features: &Features) -> f64 {
        self.mean + self.models.get(model).map_or(0.0, |regression| regression.predict(features).0)
    }

    /// Decides between models. `default` is the place of the one that answers where nothing is known.
    pub fn decide(&self, features: &Features, models: &[&str], default: usize) -> Decision {
        let nothing = Decision { place: default, confidence: 0.0 };
        let known = |place: usize| self.models.get(models[place]).filter(|one| one.observations >= OBSERVATIONS_MIN);
        let Some(of_default) = known(default) else { return nothing };
        let (default_value, default_variance) = of_default.predict(features);
        let mut best = Decision { place: default, confidence: 0.5 };
        let mut best_value = default_value;
        for place in (0..models.len()).filter(|place| *place != default) {
            let Some((value, variance)) = known(place).map(|one| one.predict(features)) else { continue };
            if value > best_value {
                let deviation = NOISE * (variance + default_variance).sqrt();
                let confidence = normal_share((value - default_value) / deviation.max(1e-9));
                (best, best_value) = (Decision { place, confidence }, value);
            }
        }
        if best.place != default && best.confidence < CONFIDENCE_MIN {
            // As sure as it can be of the default, which is not very.
            return Decision { place: default, confidence: 1.0 - best.confidence };
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::{AskedText, Candidate};

    fn of(text: &str) -> Features {
        Features::of(&AskedText { text, messages: 1, ..AskedText::default() })
    }

    #[test]
    fn a_model_is_chosen_for_what_it_was_found_right_for() {
        let mut bandit = Bandit::default();
        let (cake, code) = (of("How do I bake an apple cake?"), of("Why does this loop not end? while true {}"));
        let models = ["small", "large"];
        assert_eq!(bandit.decide(&code, &models, 0), Decision { place: 0, confidence: 0.0 }, "nothing is known");
        for _ in 0..5 {
            bandit.observe("small", &cake, 1.0);
            bandit.observe("small", &code, -1.0);
        }
        assert_eq!(bandit.decide(&code, &models, 0).place, 0, "nothing is known of the other");
        for _ in 0..5 {
            bandit.observe("large", &cake, 0.2);
            bandit.observe("large", &code, 0.8);
        }
        let decision = bandit.decide(&of("Why does this loop not stop? while x {}"), &models, 0);
        assert!(decision.place == 1 && decision.confidence > 0.8, "{decision:?}");
        assert_eq!(bandit.decide(&of("How do I bake a cherry cake?"), &models, 0).place, 0);
        assert_eq!(bandit.decide(&code, &["small"], 0).place, 0, "only candidates");
        assert_eq!(bandit.decide(&code, &["unknown", "large"], 0).place, 0, "the default may be good");
    }

    #[test]
    fn a_handful_of_ratings_tells_subjects_apart() {
        let cakes = [
            "How long do I bake an apple cake?",
            "How hot must the oven be to bake a cherry cake?",
            "How much sugar goes into a cheese cake?",
            "Can I bake a cake without any eggs?",
        ];
        let loops = [
            "Why does `while (x > 0) { x++; }` never end?",
            "Why does `for (;;) { y--; }` never end?",
            "Is `while (true) { break; }` a loop that ends?",
            "Why is `for (i = 0; i < n; i--) {}` a loop without end?",
        ];
        let mut choices = Vec::new();
        for (texts, right) in [(cakes, 0), (loops, 1)] {
            for (text, chosen) in texts.iter().flat_map(|text| [(text, 0), (text, 1)]) {
                let candidate = |model: &str| Candidate { model: model.into(), probability: 1.0 };
                let candidates = vec![candidate(["a", "b"][chosen])];
                let reward = if chosen == right { 1.0 } else { -1.0 };
                let features = of(text);
                choices.push(LoggedChoice { features, candidates, chosen: 0, default: 0, is_named: true, reward });
            }
        }
        let bandit = Bandit::of(&choices);
        let decide = |text: &str| bandit.decide(&of(text), &["a", "b"], 0);
        let decision = decide("Why does `while (y > 9) { y++; }` never end?");
        assert!(decision.place == 1 && decision.confidence > 0.9, "{decision:?}");
        for text in ["How do I bake a cake with two layers?", "Who was the first king of Norway?"] {
            assert_eq!(decide(text).place, 0, "{text}: {:?}", decide(text));
        }
    }

    #[test]
    fn a_small_difference_leaves_the_default() {
        let mut bandit = Bandit::default();
        let text = of("Anything.");
        for round in 0..6 {
            bandit.observe("a", &text, if round % 2 == 0 { 0.4 } else { -0.4 });
            bandit.observe("b", &text, if round % 2 == 0 { 0.5 } else { -0.4 });
        }
        let decision = bandit.decide(&text, &["a", "b"], 0);
        assert!(decision.place == 0 && decision.confidence < 0.5, "{decision:?}");
    }

    #[test]
    fn what_it_takes_is_bounded() {
        let mut bandit = Bandit::default();
        (0..100).for_each(|number| bandit.observe(&format!("model-{number}"), &of("x"), 0.0));
        assert_eq!(bandit.bytes(), MODELS_MAX * Ridge::BYTES);
    }
}
