//! Trains a network, and judges whether it is served.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::bandit::Bandit;
use super::evaluate::{Evaluation, Unsupported, evaluate, value};
use super::logged::LoggedChoice;
use super::network::Network;
use crate::{Part, part_of};

/// Choices by chance that there must be to learn from, besides those that end and judge it.
const TRAINING_MIN: usize = 40;
const VALIDATION_MIN: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RouterVerdict {
    Promoted,
    /// The bandit chooses as before.
    Refused,
}

/// What a network was judged by.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RouterReport {
    pub verdict: RouterVerdict,
    /// Why it was refused; empty if it was promoted.
    pub reasons: Vec<String>,
    /// Choices that it was trained on, and that ended its training.
    pub training: usize,
    pub validation: usize,
    pub evaluation: Evaluation,
    pub seed: u64,
}

/// Why nothing can be trained.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TrainError {
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    #[error(
        "there are {training} choices to learn from and {validation} to end by; at least {TRAINING_MIN} and \
         {VALIDATION_MIN} are needed. Serve with --explore for longer"
    )]
    TooFew { training: usize, validation: usize },
    #[error("all choices in the log were of one model: there is nothing to choose between")]
    OneModel,
}

/// Trains a network on choices, and compares it with the bandit on those that were held out. It is promoted only if it is
/// better with an interval that excludes no gain.
pub fn train(choices: &[LoggedChoice], seed: u64) -> Result<(Network, RouterReport), TrainError> {
    // First what would be refused in the end.
    evaluate(choices, None, seed)?;
    let part = |wanted: Part| -> Vec<&LoggedChoice> {
        let drawn = choices.iter().filter(|choice| !choice.is_named && choice.candidates.len() > 1);
        drawn.filter(|choice| part_of(choice.document()) == wanted).collect()
    };
    let (training, validation) = (part(Part::Training), part(Part::Validation));
    if training.len() < TRAINING_MIN || validation.len() < VALIDATION_MIN {
        return Err(TrainError::TooFew { training: training.len(), validation: validation.len() });
    }
    let network = Network::train(&training, &validation, seed).ok_or(TrainError::OneModel)?;
    let regression = Bandit::of(training.iter().copied());
    let network = network.with_best_lead(|network| {
        value(&validation, &regression, |choice| {
            network.decide(&choice.features, &choice.models(), choice.default).place
        })
    });
    let evaluation = evaluate(choices, Some(&network), seed)?;
    let reasons = shortfall(&evaluation);
    let verdict = if reasons.is_empty() { RouterVerdict::Promoted } else { RouterVerdict::Refused };
    let (training, validation) = (training.len(), validation.len());
    Ok((network, RouterReport { verdict, reasons, training, validation, evaluation, seed }))
}

/// Says what keeps a network from being served.
fn shortfall(evaluation: &Evaluation) -> Vec<String> {
    let Some(gain) = evaluation.network_against_bandit.filter(|gain| gain.low <= 0.0) else { return Vec::new() };
    vec![if gain.value > 0.0 {
        format!(
            "the gain over the bandit may be chance: {:+.3} per request, and {:+.3} to {:+.3} with 95 % confidence",
            gain.value, gain.low, gain.high
        )
    } else {
        format!("it is not better than the bandit: {:+.3} per request", gain.value)
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::routing::{AskedText, Candidate, Features};

    /// Choices between two models that are worth the same, whatever is asked.
    fn alike(count: usize, seed: u64) -> Vec<LoggedChoice> {
        let mut random = Random::new(seed);
        let choice = |number: usize| {
            let text = format!("Question {number} of {}", random.below(5));
            let candidates = ["a", "b"].map(|model| Candidate { model: model.into(), probability: 0.5 });
            LoggedChoice {
                features: Features::of(&AskedText { text: &text, ..AskedText::default() }),
                candidates: candidates.into(),
                chosen: random.below(2),
                default: 0,
                is_named: false,
                reward: 0.3 * random.normal(),
            }
        };
        (0..count).map(choice).collect()
    }

    #[test]
    fn a_network_yields_where_there_is_nothing_to_gain() {
        let mut promoted = 0;
        for seed in 0..10 {
            let (network, report) = train(&alike(200, seed), seed).unwrap();
            assert_eq!(network.check(), Ok(()));
            promoted += i32::from(report.verdict == RouterVerdict::Promoted);
            assert!(report.reasons.iter().all(|reason| reason.contains("the bandit")), "{:?}", report.reasons);
        }
        // One in forty by chance, with an interval of 95 %.
        assert!(promoted <= 1, "{promoted} of 10");
        assert_eq!(train(&alike(200, 1), 7), train(&alike(200, 1), 7), "the same seed gives the same network");
    }

    #[test]
    fn too_little_is_refused_before_anything_is_trained() {
        assert!(matches!(train(&[], 0), Err(TrainError::Unsupported(Unsupported::Nothing))));
        let mut one = alike(300, 1);
        one.iter_mut().for_each(|choice| choice.chosen = 0);
        assert_eq!(train(&one, 0).unwrap_err(), TrainError::OneModel);
    }
}
