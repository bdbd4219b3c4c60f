//! A router that learns what a linear function cannot: a FastGRNN cell over the features, seen as a short sequence.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::decision::Decision;
use super::fastgrnn::{CellShape, add_outer, backward, forward, product, transposed};
use super::features::{FEATURES, Features};
use super::logged::LoggedChoice;
use crate::bootstrap::normal_share;
use crate::random::Random;

/// Features of one step, and steps of the sequence.
const CHUNK: usize = 16;
const STEPS: usize = FEATURES / CHUNK;
/// Each step is told which one it is, so that the same place in two chunks can mean two things.
const CELL: CellShape = CellShape { inputs: CHUNK + STEPS, state: 16, rank: 8 };
/// More models than a server ever has.
const MODELS_MAX: usize = 16;
/// Choices per step of the optimizer, and passes over all of them.
const BATCH: usize = 32;
const EPOCHS_MAX: usize = 100;
/// Passes without a gain after which training ends.
const PATIENCE: usize = 20;
const LEARNING_RATE: f64 = 0.01;
const WEIGHT_DECAY: f64 = 3e-4;
/// The largest weight of a choice that was unlikely: without a bound few of them would be all that counts.
const WEIGHT_MAX: f64 = 10.0;
/// Leads over the default that are tried as the least to leave it.
const LEADS: [f64; 5] = [0.0, 0.02, 0.05, 0.1, 0.2];

/// A trained network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Network {
    /// The models that it knows the value of.
    models: Vec<String>,
    /// The cell's, then for each model those of the state, those of the features, and a constant.
    weights: Vec<f32>,
    /// How much more than the default a model must be worth to be chosen.
    lead_min: f64,
    /// Root of the mean squared error of its predictions.
    deviation: f64,
}

/// Why a stored network is not used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NetworkError {
    #[error("a router has {weights} weights for {models} models; another version of the program made it")]
    Shape { weights: usize, models: usize },
    #[error("a router has weights that are no numbers")]
    NotFinite,
}

impl Network {
    /// Trains a network on choices whose probabilities are known; `validation` says when to end. `None` if there is
    /// nothing to learn from.
    pub(crate) fn train(training: &[&LoggedChoice], validation: &[&LoggedChoice], seed: u64) -> Option<Self> {
        let models = models_of(training);
        let [training, validation] = [training, validation].map(|part| samples(part, &models));
        if training.is_empty() || validation.is_empty() || models.len() < 2 {
            return None;
        }
        let (weights, deviation) = fit(&training, &validation, models.len(), seed);
        let weights = weights.into_iter().map(|weight| weight as f32).collect();
        Some(Self { models, weights, lead_min: 0.0, deviation })
    }

    /// Chooses the least lead over the default by what choices with it would have given: `value` says that.
    pub(crate) fn with_best_lead(self, value: impl Fn(&Self) -> f64) -> Self {
        let with = |lead_min| Self { lead_min, ..self.clone() };
        let valued = LEADS.map(|lead| (value(&with(lead)), lead));
        // Of equal ones the last: the default is what somebody has chosen.
        let best = valued.into_iter().max_by(|(one, _), (other, _)| one.total_cmp(other));
        with(best.map_or(0.0, |(_, lead)| lead))
    }

    /// Refuses a stored network that is not one of this program.
    pub fn check(&self) -> Result<(), NetworkError> {
        let (weights, models) = (self.weights.len(), self.models.len());
        if models > MODELS_MAX || weights != weight_count(models) {
            return Err(NetworkError::Shape { weights, models });
        }
        let numbers = self.weights.iter().map(|weight| f64::from(*weight)).chain([self.lead_min, self.deviation]);
        if numbers.into_iter().all(f64::is_finite) { Ok(()) } else { Err(NetworkError::NotFinite) }
    }

    /// Returns the expected rewards of all models that it knows.
    fn values(&self, features: &Features) -> Vec<f64> {
        let weights: Vec<f64> = self.weights.iter().map(|weight| f64::from(*weight)).collect();
        Heads::of(self.models.len()).values(&weights, &sequence(features), &features.values()).0
    }

    /// Decides between models. One that it does not know is chosen only as the `default`.
    pub fn decide(&self, features: &Features, models: &[&str], default: usize) -> Decision {
        let values = self.values(features);
        let value = |place: usize| {
            let known = self.models.iter().position(|model| model == models[place])?;
            Some(values[known])
        };
        let Some(of_default) = value(default) else { return Decision { place: default, confidence: 0.0 } };
        let lead = |place: usize| Some(value(place)? - of_default);
        let best = (0..models.len()).filter(|place| *place != default).filter_map(|place| Some((place, lead(place)?)));
        let best = best.max_by(|(_, one), (_, other)| one.total_cmp(other));
        let confidence = |lead: f64| normal_share(lead / (self.deviation * 2.0_f64.sqrt()).max(1e-9));
        match best {
            Some((place, lead)) if lead > self.lead_min => Decision { place, confidence: confidence(lead) },
            Some((_, lead)) => Decision { place: default, confidence: confidence(-lead) },
            None => Decision { place: default, confidence: 1.0 },
        }
    }

    /// Returns what it takes in memory.
    pub fn bytes(&self) -> usize {
        self.weights.len() * size_of::<f32>() + self.models.iter().map(String::len).sum::<usize>()
    }
}

/// A choice as training sees it.
struct Sample {
    sequence: Vec<Vec<f64>>,
    features: [f64; FEATURES],
    model: usize,
    reward: f64,
    weight: f64,
}

/// Returns the models that have answered, by name.
fn models_of(choices: &[&LoggedChoice]) -> Vec<String> {
    let mut models: Vec<String> = choices.iter().map(|choice| choice.candidates[choice.chosen].model.clone()).collect();
    models.sort();
    models.dedup();
    models.truncate(MODELS_MAX);
    models
}

/// Weighs choices by how unlikely they were, so that what was explored counts as much as what was usual.
fn samples(choices: &[&LoggedChoice], models: &[String]) -> Vec<Sample> {
    let sample = |choice: &&LoggedChoice| {
        let chosen = &choice.candidates[choice.chosen];
        let model = models.iter().position(|model| *model == chosen.model)?;
        let even = 1.0 / choice.candidates.len() as f64;
        Some(Sample {
            sequence: sequence(&choice.features),
            features: choice.features.values(),
            model,
            reward: choice.reward,
            weight: (even / chosen.probability).min(WEIGHT_MAX),
        })
    };
    choices.iter().filter(|choice| !choice.is_named).filter_map(sample).collect()
}

fn sequence(features: &Features) -> Vec<Vec<f64>> {
    let step = |(index, chunk): (usize, &[f64])| {
        let which = (0..STEPS).map(|step| f64::from(u8::from(step == index)));
        chunk.iter().copied().chain(which).collect()
    };
    features.values().chunks_exact(CHUNK).enumerate().map(step).collect()
}

fn weight_count(models: usize) -> usize {
    CELL.weights() + models * (CELL.state + FEATURES + 1)
}

/// Where the weights of the models are.
struct Heads {
    state: std::ops::Range<usize>,
    features: std::ops::Range<usize>,
    constants: std::ops::Range<usize>,
}

impl Heads {
    fn of(models: usize) -> Self {
        let state = CELL.weights()..CELL.weights() + models * CELL.state;
        let features = state.end..state.end + models * FEATURES;
        Self { constants: features.end..features.end + models, features, state }
    }

    /// Returns the values of all models, and what the way back needs.
    fn values(&self, weights: &[f64], sequence: &[Vec<f64>], features: &[f64]) -> (Vec<f64>, super::fastgrnn::Pass) {
        let pass = forward(CELL, &weights[..CELL.weights()], sequence);
        let of_state = product(&weights[self.state.clone()], &pass.state);
        let of_features = product(&weights[self.features.clone()], features);
        let values = of_state.iter().zip(of_features).zip(&weights[self.constants.clone()]);
        (values.map(|((state, features), constant)| state + features + constant).collect(), pass)
    }

    /// Adds the gradients of a weighted squared error, and returns that error.
    fn learn(&self, weights: &[f64], sample: &Sample, gradients: &mut [f64]) -> f64 {
        let (values, pass) = self.values(weights, &sample.sequence, &sample.features);
        let error = values[sample.model] - sample.reward;
        let mut of_values = vec![0.0; values.len()];
        of_values[sample.model] = 2.0 * sample.weight * error;
        add_outer(&mut gradients[self.state.clone()], &of_values, &pass.state);
        add_outer(&mut gradients[self.features.clone()], &of_values, &sample.features);
        gradients[self.constants.start + sample.model] += of_values[sample.model];
        let of_state = transposed(&weights[self.state.clone()], &of_values, CELL.state);
        let (cell, of_cell) = (&weights[..CELL.weights()], &mut gradients[..CELL.weights()]);
        backward(CELL, cell, (&sample.sequence, &pass), of_state, of_cell);
        sample.weight * error * error
    }

    fn error(&self, weights: &[f64], samples: &[Sample]) -> f64 {
        let one = |sample: &Sample| {
            let error = self.values(weights, &sample.sequence, &sample.features).0[sample.model] - sample.reward;
            (sample.weight * error * error, sample.weight)
        };
        let (sum, weight) = samples.iter().map(one).fold((0.0, 0.0), |all, one| (all.0 + one.0, all.1 + one.1));
        sum / weight
    }
}

/// Returns the weights with the least error on what they were not trained on, and the root of that error.
fn fit(training: &[Sample], validation: &[Sample], models: usize, seed: u64) -> (Vec<f64>, f64) {
    let heads = Heads::of(models);
    let mut random = Random::new(seed);
    let mut weights = CELL.initial(&mut random);
    weights.resize(weight_count(models), 0.0);
    // From nothing, so that what is not seen is worth what is usual.
    let mean = training.iter().map(|one| one.weight * one.reward).sum::<f64>()
        / training.iter().map(|one| one.weight).sum::<f64>();
    weights[heads.constants.clone()].fill(mean);
    weights[heads.state.clone()].fill_with(|| 0.1 * random.normal());
    let mut optimizer = Adam::new(weights.len());
    let mut order: Vec<usize> = (0..training.len()).collect();
    let (mut best, mut least, mut since) = (weights.clone(), heads.error(&weights, validation), 0);
    for _ in 0..EPOCHS_MAX {
        for last in (1..order.len()).rev() {
            order.swap(last, random.below(last + 1));
        }
        for batch in order.chunks(BATCH) {
            let mut gradients = vec![0.0; weights.len()];
            batch.iter().for_each(|index| {
                heads.learn(&weights, &training[*index], &mut gradients);
            });
            gradients.iter_mut().for_each(|gradient| *gradient /= batch.len() as f64);
            optimizer.step(&mut weights, &gradients);
        }
        let error = heads.error(&weights, validation);
        if error < least {
            (best, least, since) = (weights.clone(), error, 0);
        } else {
            since += 1;
        }
        if since >= PATIENCE {
            break;
        }
    }
    (best, least.sqrt())
}

/// Adam with weight decay.
struct Adam {
    mean: Vec<f64>,
    square: Vec<f64>,
    steps: i32,
}

impl Adam {
    const DECAY: (f64, f64) = (0.9, 0.999);

    fn new(count: usize) -> Self {
        Self { mean: vec![0.0; count], square: vec![0.0; count], steps: 0 }
    }

    fn step(&mut self, weights: &mut [f64], gradients: &[f64]) {
        let (of_mean, of_square) = Self::DECAY;
        self.steps += 1;
        let (mean_scale, square_scale) = (1.0 - of_mean.powi(self.steps), 1.0 - of_square.powi(self.steps));
        let moments = self.mean.iter_mut().zip(&mut self.square);
        for ((weight, gradient), (mean, square)) in weights.iter_mut().zip(gradients).zip(moments) {
            *mean = of_mean * *mean + (1.0 - of_mean) * gradient;
            *square = of_square * *square + (1.0 - of_square) * gradient * gradient;
            let step = *mean / mean_scale / ((*square / square_scale).sqrt() + 1e-8);
            *weight -= LEARNING_RATE * (step + WEIGHT_DECAY * *weight);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_of_the_whole_network_are_those_of_small_changes() {
        let heads = Heads::of(3);
        let mut random = Random::new(5);
        let mut values = [0.0; FEATURES];
        values.fill_with(|| 2.0 * random.unit() - 1.0);
        let features = Features::new(&values);
        let (sequence, features) = (sequence(&features), features.values());
        let sample = Sample { sequence, features, model: 1, reward: 0.4, weight: 2.5 };
        let mut weights = CELL.initial(&mut random);
        weights.extend((weights.len()..weight_count(3)).map(|_| 0.1 * random.normal()));
        let mut gradients = vec![0.0; weights.len()];
        heads.learn(&weights, &sample, &mut gradients);
        let loss = |weights: &[f64]| heads.learn(weights, &sample, &mut vec![0.0; weights.len()]);
        for index in (0..weights.len()).step_by(7).chain(CELL.weights() - 2..CELL.weights()) {
            let changed = |step: f64| {
                let mut changed = weights.clone();
                changed[index] += step;
                loss(&changed)
            };
            let expected = (changed(1e-5) - changed(-1e-5)) / 2e-5;
            assert!((gradients[index] - expected).abs() < 1e-6, "{index}: {} {expected}", gradients[index]);
        }
    }

    #[test]
    fn a_damaged_network_is_refused() {
        let good = Network {
            models: vec!["a".into(), "b".into()],
            weights: vec![0.0; weight_count(2)],
            lead_min: 0.0,
            deviation: 1.0,
        };
        assert_eq!(good.check(), Ok(()));
        let models = vec!["a".into()];
        assert!(Network { models, ..good.clone() }.check().is_err());
        let mut weights = good.weights.clone();
        weights[7] = f32::NAN;
        assert_eq!(Network { weights, ..good }.check(), Err(NetworkError::NotFinite));
    }
}
