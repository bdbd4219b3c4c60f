//! Traffic with a known best choice: how much worse than that each way to choose is, as requests come.

use serde::Serialize;

use super::bandit::Bandit;
use super::decision::{drawn, explored};
use super::features::{FEATURES, Features};
use super::logged::{Candidate, LoggedChoice};
use super::network::Network;
use super::training::{RouterVerdict, train};
use crate::random::Random;

const MODELS: [&str; 3] = ["first", "second", "third"];
/// Where subjects are among the features: anywhere but among the figures of the text.
const SUBJECTS: usize = 6;
const EXPLORATION: f64 = 0.3;
/// Deviation of rewards.
const NOISE: f64 = 0.2;
/// Requests after which the network is trained anew.
const TRAIN_EVERY: usize = 1500;
/// More would take minutes.
const REQUESTS_MAX: usize = 20_000;
/// Requests between two points of a curve.
const POINT_EVERY: usize = 100;

/// What the best model depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Optimum {
    /// The subject of the request: a linear function of the features.
    Linear,
    /// Whether two of its properties agree, which no linear function says.
    Nonlinear,
}

/// Mean regrets per request: how much less than the best choice was expected of what was chosen.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RegretCurve {
    pub optimum: Optimum,
    pub seed: u64,
    /// How many requests there were at each point.
    pub requests: Vec<usize>,
    /// Of the requests since the point before, without what exploring costs.
    pub bandit: Vec<f64>,
    pub fastgrnn: Vec<f64>,
    /// Of the model that is best for all requests together.
    pub best_fixed: f64,
    /// Whether the network was promoted, each time that it was trained.
    pub promoted: Vec<bool>,
}

/// Simulates requests that are answered as by a server with exploration. Each router learns from a log of its own; the
/// network is served from when it has beaten the bandit, and the bandit until then.
pub fn regret_curve(optimum: Optimum, requests: usize, seed: u64) -> RegretCurve {
    let world = World::new(optimum, seed);
    let mut bandit = Run::new(seed);
    let mut network = Run::new(seed);
    let mut curve = RegretCurve {
        optimum,
        seed,
        requests: Vec::new(),
        bandit: Vec::new(),
        fastgrnn: Vec::new(),
        best_fixed: world.best_fixed_regret(),
        promoted: Vec::new(),
    };
    for request in 1..=requests.min(REQUESTS_MAX) {
        bandit.answer(&world);
        network.answer(&world);
        if request.is_multiple_of(TRAIN_EVERY) {
            curve.promoted.extend(network.train(seed));
        }
        if request.is_multiple_of(POINT_EVERY) {
            curve.requests.push(request);
            curve.bandit.push(bandit.take_regret());
            curve.fastgrnn.push(network.take_regret());
        }
    }
    curve
}

/// One router, its log, and what it cost.
struct Run {
    random: Random,
    bandit: Bandit,
    network: Option<Network>,
    log: Vec<LoggedChoice>,
    regret: f64,
    answered: usize,
}

impl Run {
    fn new(seed: u64) -> Self {
        let random = Random::new(seed ^ 0x5eed);
        Self { random, bandit: Bandit::default(), network: None, log: Vec::new(), regret: 0.0, answered: 0 }
    }

    fn answer(&mut self, world: &World) {
        let (features, values) = world.request(&mut self.random);
        let decision = match &self.network {
            Some(network) => network.decide(&features, &MODELS, 0),
            None => self.bandit.decide(&features, &MODELS, 0),
        };
        let best = values.iter().copied().fold(f64::MIN, f64::max);
        self.regret += best - values[decision.place];
        self.answered += 1;
        let probabilities = explored(decision.place, MODELS.len(), EXPLORATION);
        let chosen = drawn(&probabilities, self.random.unit());
        let reward = (values[chosen] + NOISE * self.random.normal()).clamp(-1.0, 1.0);
        self.bandit.observe(MODELS[chosen], &features, reward);
        let candidate = |(model, probability): (&&str, f64)| Candidate { model: (*model).to_owned(), probability };
        let candidates = MODELS.iter().zip(probabilities).map(candidate).collect();
        self.log.push(LoggedChoice { features, candidates, chosen, default: 0, is_named: false, reward });
    }

    /// Returns whether the network that was trained is served; `None` if there was too little to train on.
    fn train(&mut self, seed: u64) -> Option<bool> {
        let (network, report) = train(&self.log, seed).ok()?;
        let is_promoted = report.verdict == RouterVerdict::Promoted;
        self.network = is_promoted.then_some(network);
        Some(is_promoted)
    }

    fn take_regret(&mut self) -> f64 {
        let (regret, answered) = (std::mem::take(&mut self.regret), std::mem::take(&mut self.answered));
        regret / answered.max(1) as f64
    }
}

/// What models are worth, by the subject of a request or by its two properties.
struct World {
    optimum: Optimum,
    /// Of each subject, for each model.
    values: [[f64; MODELS.len()]; SUBJECTS],
    /// Where each subject and each property is among the features.
    places: [usize; SUBJECTS],
}

impl World {
    fn new(optimum: Optimum, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut values = [[0.0; MODELS.len()]; SUBJECTS];
        values.iter_mut().flatten().for_each(|value| *value = random.unit() - 0.4);
        let mut places = [0; SUBJECTS];
        // In chunks of their own.
        places.iter_mut().enumerate().for_each(|(index, place)| *place = 16 * (index + 1) + random.below(16));
        Self { optimum, values, places }
    }

    /// Returns a request, and what each model is worth for it.
    fn request(&self, random: &mut Random) -> (Features, [f64; MODELS.len()]) {
        let mut features = [0.0; FEATURES];
        for _ in 0..6 {
            // Words that say nothing.
            features[16 + random.below(FEATURES - 16)] += 0.5 * random.unit() - 0.25;
        }
        let values = match self.optimum {
            Optimum::Linear => {
                let subject = random.below(SUBJECTS);
                features[self.places[subject]] = 0.8;
                self.values[subject]
            }
            Optimum::Nonlinear => {
                let properties = [0, 3].map(|which| (self.places[which], random.below(2) == 0));
                for (place, is) in properties {
                    features[place] = if is { 0.7 } else { -0.7 };
                }
                let sign = if properties[0].1 == properties[1].1 { 1.0 } else { -1.0 };
                [0.1, 0.6 * sign, -0.6 * sign]
            }
        };
        (Features::new(&features), values)
    }

    fn best_fixed_regret(&self) -> f64 {
        let situations: Vec<[f64; MODELS.len()]> = match self.optimum {
            Optimum::Linear => self.values.to_vec(),
            Optimum::Nonlinear => vec![[0.1, 0.6, -0.6], [0.1, -0.6, 0.6]],
        };
        let regret = |model: usize| {
            let lost = |values: &[f64; MODELS.len()]| values.iter().copied().fold(f64::MIN, f64::max) - values[model];
            situations.iter().map(lost).sum::<f64>() / situations.len() as f64
        };
        (0..MODELS.len()).map(regret).fold(f64::MAX, f64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEDS: std::ops::Range<u64> = 0..5;

    fn mean(points: &[f64]) -> f64 {
        points.iter().sum::<f64>() / points.len() as f64
    }

    #[test]
    fn regret_falls_below_the_best_fixed_choice() {
        for seed in SEEDS {
            let RegretCurve { bandit, best_fixed, .. } = regret_curve(Optimum::Linear, 1000, seed);
            let (first, last) = (bandit[0], mean(&bandit[7..]));
            println!("seed {seed}: {first:.3} to {last:.3}; best fixed {best_fixed:.3}");
            assert!(last < 0.6 * first && last < 0.6 * best_fixed, "seed {seed}: {bandit:?}, {best_fixed}");
        }
    }

    #[test]
    fn the_network_learns_what_the_bandit_cannot() {
        for seed in SEEDS {
            let curve = regret_curve(Optimum::Nonlinear, 1800, seed);
            let RegretCurve { bandit, fastgrnn, best_fixed, promoted, .. } = &curve;
            let (of_bandit, of_network) = (mean(&bandit[15..]), mean(&fastgrnn[15..]));
            println!("seed {seed}: {of_network:.3}, bandit {of_bandit:.3}, best fixed {best_fixed:.3}, {promoted:?}");
            assert!(promoted.contains(&true), "seed {seed}: {promoted:?}");
            assert!(of_network < 0.5 * of_bandit.min(*best_fixed), "seed {seed}: {curve:?}");
        }
    }
}
