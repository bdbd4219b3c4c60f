//! Whether engines compute the same from the same file: their logits after the same texts.

use anyhow::{Result, bail};
use peers_protocol::{Start, prompt};

use crate::candidates::{Candidate, RUVLLM};
use crate::machine::Machine;
use crate::models::Model;
use crate::options::Options;
use crate::process::{Failure, Process};
use crate::table::print_columns;

const TEXTS: usize = 8;
/// Tokens of each text, in turn: within a page of keys and values, and over several.
const LENGTHS: [usize; 4] = [3, 17, 64, 200];
/// Tokens whose probabilities are compared one by one: the likeliest of the reference.
const LIKELIEST: usize = 20;

/// Prints how far each candidate's distributions are from those of the reference: the first peer, or the first candidate if
/// there is no peer. A peer's other settings show how far one engine is from itself.
pub fn compare(model: &Model, candidates: &[Candidate], options: &Options, machine: &Machine) -> Result<()> {
    let reference = candidates.iter().position(|candidate| candidate.engine != RUVLLM).unwrap_or(0);
    let expected = match log_probabilities(model, &candidates[reference], options, machine) {
        Ok(expected) => expected,
        Err(why) => bail!("{} gives no logits of {}: {why}", candidates[reference].name(), model.name),
    };
    println!("\n{}: {TEXTS} texts, beside {}", model.name, candidates[reference].name());
    let heading = ["", "", "divergence", "log probability off by", "choices alike"];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    for (_, candidate) in candidates.iter().enumerate().filter(|(index, _)| *index != reference) {
        let cells = match log_probabilities(model, candidate, options, machine) {
            Ok(got) => Distance::between(&expected, &got).cells(),
            Err(why) => vec![format!("failed: {why}")],
        };
        rows.push([candidate.name(), String::new()].into_iter().chain(cells).collect());
    }
    print_columns(&rows);
    Ok(())
}

/// The distribution after each text, as logarithms.
fn log_probabilities(
    model: &Model,
    candidate: &Candidate,
    options: &Options,
    machine: &Machine,
) -> Result<Vec<Vec<f64>>, String> {
    let start = Start {
        model: model.path.clone(),
        vocabulary: model.vocabulary,
        threads: machine.threads,
        context: 256,
        sequences: 1,
        batch_rows: options.batch_rows,
        setting: candidate.setting.to_owned(),
    };
    let mut process = Process::start(candidate, &start, options.timeout())?;
    let text = |number: usize| prompt(model.vocabulary, number, LENGTHS[number % LENGTHS.len()]);
    let logits = (0..TEXTS).map(|number| process.logits_after(&text(number)));
    logits
        .map(|logits| match logits {
            Ok(logits) => Ok(log_softmax(&logits)),
            Err(Failure::Work(why) | Failure::Process(why)) => Err(why),
        })
        .collect()
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let total: f64 = logits.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum();
    logits.iter().map(|logit| f64::from(*logit) - largest - total.ln()).collect()
}

struct Distance {
    /// Kullback-Leibler divergence from the reference, in nats: the mean of all texts.
    divergence: f64,
    /// Of any of the likeliest tokens, at most.
    log_probability_max: f64,
    choices_alike: usize,
}

impl Distance {
    fn between(expected: &[Vec<f64>], got: &[Vec<f64>]) -> Self {
        let mut distance = Self { divergence: 0.0, log_probability_max: 0.0, choices_alike: 0 };
        for (expected, got) in expected.iter().zip(got) {
            let terms = expected.iter().zip(got).map(|(expected, got)| expected.exp() * (expected - got));
            distance.divergence += terms.sum::<f64>() / TEXTS as f64;
            let tokens = likeliest(expected);
            let off = tokens.iter().map(|token| (expected[*token] - got[*token]).abs());
            distance.log_probability_max = off.fold(distance.log_probability_max, f64::max);
            distance.choices_alike += usize::from(likeliest(got)[0] == tokens[0]);
        }
        distance
    }

    fn cells(&self) -> Vec<String> {
        let Self { divergence, log_probability_max, choices_alike } = self;
        vec![format!("{divergence:.6}"), format!("{log_probability_max:.4}"), format!("{choices_alike}/{TEXTS}")]
    }
}

/// The likeliest tokens, the first one first.
fn likeliest(distribution: &[f64]) -> Vec<usize> {
    let mut tokens: Vec<usize> = (0..distribution.len()).collect();
    tokens.sort_by(|a, b| distribution[*b].total_cmp(&distribution[*a]));
    tokens.truncate(LIKELIEST);
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_distance_from_itself_is_nothing_and_grows_with_the_difference() {
        let texts = |bump: f32| {
            let logits = (0..40).map(|token| (token as f32 * 0.7).sin() + if token == 3 { bump } else { 0.0 });
            vec![log_softmax(&logits.collect::<Vec<_>>()); TEXTS]
        };
        let same = Distance::between(&texts(0.0), &texts(0.0));
        assert_eq!((same.divergence, same.log_probability_max, same.choices_alike), (0.0, 0.0, TEXTS));
        let other = Distance::between(&texts(0.0), &texts(9.0));
        assert!(other.divergence > 1.0 && other.log_probability_max > 5.0 && other.choices_alike == 0);
    }
}
