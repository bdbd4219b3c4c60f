//! What other choices would have given, estimated from a log of choices that were partly made by chance.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use thiserror::Error;

use super::bandit::Bandit;
use super::logged::LoggedChoice;
use super::network::Network;
use crate::bootstrap::resampled;
use crate::{Part, part_of};

/// Fewer documents say too little for an interval to mean anything.
const DOCUMENTS_MIN: usize = 20;
const RESAMPLES: usize = 2000;
const CONFIDENCE: f64 = 0.95;

/// A mean reward, and what it lies between with 95 % confidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

/// What always choosing in one way would have given, estimated in three ways.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PolicyEstimates {
    /// `served`, a model, `bandit` or `fastgrnn`.
    pub policy: String,
    /// By a regression alone: wrong where that is.
    pub direct: Estimate,
    /// By weighing what happened with the probabilities of the log: right on average, and uncertain.
    pub inverse_propensity: Estimate,
    /// By both: the regression, corrected by what happened.
    pub doubly_robust: Estimate,
    /// How many choices the weighted ones are worth.
    pub effective_choices: f64,
}

/// Estimates on choices that were held out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Held-out choices in which each candidate had a chance, and different requests among them.
    pub choices: usize,
    pub documents: usize,
    pub policies: Vec<PolicyEstimates>,
    /// By how much the network is better than the bandit, doubly robust; `None` without a network.
    pub network_against_bandit: Option<Estimate>,
}

/// Why the log does not support an estimate.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Unsupported {
    #[error(
        "there are no choices between models in the log: send requests with the model \"auto\" to a server that \
             serves several, for a tenant that takes part in learning (--learn)"
    )]
    Nothing,
    #[error(
        "none of {choices} choices had any chance to be another: nobody can tell from them what another model \
             would have given. Serve with --explore 0.05 for a while"
    )]
    NotExplored { choices: usize },
    #[error(
        "only {documents} different requests are held out whose choice was left to chance, of {choices} choices; \
             at least {DOCUMENTS_MIN} are needed. Serve with --explore for longer"
    )]
    TooFew { documents: usize, choices: usize },
}

/// What one choice says of a way to choose.
#[derive(Clone, Copy, Debug, Default)]
struct Score {
    direct: f64,
    inverse_propensity: f64,
    doubly_robust: f64,
    weight: f64,
}

/// Estimates what was served, each model alone, the bandit and the network would have given on held-out choices. Bandit
/// and regression are made from the other choices; the network must not have been trained on these either.
pub fn evaluate(choices: &[LoggedChoice], network: Option<&Network>, seed: u64) -> Result<Evaluation, Unsupported> {
    let (held_out, others): (Vec<&LoggedChoice>, Vec<&LoggedChoice>) =
        choices.iter().partition(|choice| part_of(choice.document()) == Part::HeldOut);
    let held_out = supported(choices, held_out)?;
    let bandit = Bandit::of(others.iter().copied());
    let documents: Vec<u64> = held_out.iter().map(|choice| choice.document().number()).collect();
    let scores = |policy: &dyn Fn(&LoggedChoice) -> Vec<f64>| {
        held_out.iter().map(|choice| score(choice, &bandit, &policy(choice))).collect::<Vec<Score>>()
    };
    let by_bandit =
        scores(&|choice| one(choice, bandit.decide(&choice.features, &choice.models(), choice.default).place));
    let by_network = network.map(|network| {
        scores(&|choice| one(choice, network.decide(&choice.features, &choice.models(), choice.default).place))
    });
    let mut policies = vec![("served".to_owned(), scores(&logged))];
    let models: BTreeSet<&str> = held_out.iter().flat_map(|choice| choice.models()).collect();
    for model in models {
        // Where it was no candidate, what was served is.
        let always = |choice: &LoggedChoice| match choice.models().iter().position(|one| *one == model) {
            Some(place) => one(choice, place),
            None => logged(choice),
        };
        policies.push((model.to_owned(), scores(&always)));
    }
    policies.push(("bandit".to_owned(), by_bandit.clone()));
    policies.extend(by_network.clone().map(|scores| ("fastgrnn".to_owned(), scores)));
    let network_against_bandit = by_network.map(|scores| {
        let gain = |(one, other): (&Score, &Score)| one.doubly_robust - other.doubly_robust;
        mean(&documents, &scores.iter().zip(&by_bandit).map(gain).collect::<Vec<f64>>(), seed)
    });
    Ok(Evaluation {
        choices: held_out.len(),
        documents: documents.iter().collect::<BTreeSet<_>>().len(),
        policies: policies.into_iter().map(|(policy, scores)| estimates(policy, &documents, &scores, seed)).collect(),
        network_against_bandit,
    })
}

/// Returns the held-out choices that say something of every candidate.
fn supported<'c>(
    choices: &[LoggedChoice],
    held_out: Vec<&'c LoggedChoice>,
) -> Result<Vec<&'c LoggedChoice>, Unsupported> {
    let drawn = choices.iter().filter(|choice| !choice.is_named && choice.candidates.len() > 1).count();
    if drawn == 0 {
        return Err(Unsupported::Nothing);
    }
    if !choices.iter().any(LoggedChoice::is_explored) {
        return Err(Unsupported::NotExplored { choices: drawn });
    }
    let held_out: Vec<&LoggedChoice> = held_out.into_iter().filter(|choice| choice.is_explored()).collect();
    let documents = held_out.iter().map(|choice| choice.document().number()).collect::<BTreeSet<_>>().len();
    if documents < DOCUMENTS_MIN {
        return Err(Unsupported::TooFew { documents, choices: drawn });
    }
    Ok(held_out)
}

/// Returns the mean of what choosing so gives on some choices, doubly robust, without an interval. Choices that could not
/// have been others are judged by the regression.
pub(crate) fn value(choices: &[&LoggedChoice], regression: &Bandit, choose: impl Fn(&LoggedChoice) -> usize) -> f64 {
    let one = |choice: &&LoggedChoice| score(choice, regression, &one(choice, choose(choice))).doubly_robust;
    choices.iter().map(one).sum::<f64>() / choices.len().max(1) as f64
}

fn one(choice: &LoggedChoice, place: usize) -> Vec<f64> {
    (0..choice.candidates.len()).map(|other| f64::from(u8::from(other == place))).collect()
}

fn logged(choice: &LoggedChoice) -> Vec<f64> {
    choice.candidates.iter().map(|candidate| candidate.probability).collect()
}

/// `policy` are the probabilities of the candidates.
fn score(choice: &LoggedChoice, regression: &Bandit, policy: &[f64]) -> Score {
    let expected = |place: usize| regression.value(&choice.candidates[place].model, &choice.features);
    let direct = policy.iter().enumerate().filter(|(_, share)| **share > 0.0);
    let direct = direct.map(|(place, share)| share * expected(place)).sum();
    let weight = policy[choice.chosen] / choice.candidates[choice.chosen].probability;
    let correction = if weight > 0.0 { weight * (choice.reward - expected(choice.chosen)) } else { 0.0 };
    Score { direct, inverse_propensity: weight * choice.reward, doubly_robust: direct + correction, weight }
}

fn estimates(policy: String, documents: &[u64], scores: &[Score], seed: u64) -> PolicyEstimates {
    let of = |value: fn(&Score) -> f64| mean(documents, &scores.iter().map(value).collect::<Vec<f64>>(), seed);
    let (sum, squares) =
        scores.iter().fold((0.0, 0.0), |all, one| (all.0 + one.weight, all.1 + one.weight * one.weight));
    PolicyEstimates {
        policy,
        direct: of(|score| score.direct),
        inverse_propensity: of(|score| score.inverse_propensity),
        doubly_robust: of(|score| score.doubly_robust),
        effective_choices: if squares > 0.0 { sum * sum / squares } else { 0.0 },
    }
}

/// Returns a mean with its interval. What is of one document is drawn together.
fn mean(documents: &[u64], values: &[f64], seed: u64) -> Estimate {
    let mut of_documents: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for (document, value) in documents.iter().zip(values) {
        let sums = of_documents.entry(*document).or_default();
        *sums = (sums.0 + value, sums.1 + 1.0);
    }
    let parts: Vec<(f64, f64)> = of_documents.into_values().collect();
    let ratio = |parts: &mut dyn Iterator<Item = (f64, f64)>| {
        let (sum, count) = parts.fold((0.0, 0.0), |all, one| (all.0 + one.0, all.1 + one.1));
        sum / count
    };
    let (low, high) = resampled(&parts, ratio, (RESAMPLES, seed), CONFIDENCE);
    Estimate { value: ratio(&mut parts.iter().copied()), low, high }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::routing::{AskedText, Candidate, Features, drawn};

    /// Choices between two models, of which the second is right for even numbers, by 0.6 on average.
    fn log(count: usize, exploration: f64, seed: u64) -> Vec<LoggedChoice> {
        let mut random = Random::new(seed);
        let choice = |number: usize| {
            let is_even = number.is_multiple_of(2);
            // Other ones for each seed, so that others are held out.
            let text = format!("{} {number} {seed}", if is_even { "even" } else { "odd" });
            let features = Features::of(&AskedText { text: &text, ..AskedText::default() });
            let candidates = [("a", 1.0 - exploration), ("b", exploration)];
            let candidates = candidates.map(|(model, probability)| Candidate { model: model.into(), probability });
            let chosen = drawn(&[1.0 - exploration, exploration], random.unit());
            let right = if (chosen == 1) == is_even { 0.6 } else { -0.2 };
            let reward = right + 0.2 * random.normal();
            LoggedChoice { features, candidates: candidates.into(), chosen, default: 0, is_named: false, reward }
        };
        (0..count).map(choice).collect()
    }

    #[test]
    fn intervals_have_what_is_true_and_the_bandit_is_better_than_any_model() {
        let width = |one: &Estimate| one.high - one.low;
        let (mut covered, mut all) = (0, 0);
        for seed in 0..10 {
            let evaluation = evaluate(&log(800, 0.25, seed), None, seed).unwrap();
            let of = |name: &str| evaluation.policies.iter().find(|one| one.policy == name).unwrap();
            for policy in ["a", "b", "served"] {
                let PolicyEstimates { doubly_robust, inverse_propensity, .. } = of(policy);
                for estimate in [doubly_robust, inverse_propensity] {
                    covered += i32::from(estimate.low < 0.2 && 0.2 < estimate.high);
                    all += 1;
                    assert!(width(estimate) < 0.5, "{policy} {estimate:?}");
                }
            }
            let (bandit, b) = (of("bandit"), of("b"));
            assert!(bandit.doubly_robust.low > 0.4, "{bandit:?}");
            assert!(width(&b.doubly_robust) < width(&b.inverse_propensity), "the regression takes noise away");
            assert!(b.effective_choices < 0.5 * of("served").effective_choices);
        }
        // With 95 % confidence; they are not independent of each other.
        assert!(covered >= 50 && all == 60, "{covered} of {all}");
    }

    #[test]
    fn what_the_log_does_not_support_is_refused() {
        assert_eq!(evaluate(&[], None, 0), Err(Unsupported::Nothing));
        assert_eq!(evaluate(&log(100, 0.0, 1), None, 0), Err(Unsupported::NotExplored { choices: 100 }));
        assert!(matches!(evaluate(&log(30, 0.2, 1), None, 0), Err(Unsupported::TooFew { choices: 30, .. })));
        let mut named = log(100, 0.2, 1);
        named.iter_mut().for_each(|choice| choice.is_named = true);
        assert_eq!(evaluate(&named, None, 0), Err(Unsupported::Nothing));
    }
}
