//! The gate: whether a candidate is served.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::bootstrap::compare;
use crate::{Interval, Loss};

/// Losses of the same items, in the same order, in several ways.
#[derive(Clone, Debug)]
pub struct HeldOut<'a> {
    /// The document of each item.
    pub documents: &'a [u64],
    /// Of the model alone.
    pub base: &'a [Loss],
    /// Of the version that is served now; `None` is the model alone.
    pub served: Option<&'a [Loss]>,
    pub candidate: &'a [Loss],
    /// Of other ways to the same end, by their names.
    pub baselines: &'a [(&'static str, Vec<Loss>)],
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateOptions {
    /// Resamples of the bootstrap.
    pub resamples: usize,
    pub seed: u64,
    /// Of the intervals.
    pub confidence: f64,
    /// How much the loss on general texts may rise.
    pub general_rise_max: f64,
}

impl Default for GateOptions {
    fn default() -> Self {
        Self { resamples: 4000, seed: 0, confidence: 0.95, general_rise_max: 0.005 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Promoted,
    Refused,
}

/// How a candidate does against something else on what was held out.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// `base`, `served`, or a baseline.
    pub against: String,
    /// Per target, in nats.
    pub loss: f64,
    #[serde(flatten)]
    pub interval: Interval,
    /// Whether the candidate has to be better.
    pub is_required: bool,
}

/// What became of general texts. They are judged against the model alone, so that small losses of many versions
/// cannot add up.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct GeneralReport {
    pub targets: usize,
    pub base: f64,
    pub candidate: f64,
    /// Relative; below 0 is better.
    pub rise: f64,
    pub rise_max: f64,
}

/// Everything that a verdict follows from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub verdict: Verdict,
    /// Why it was refused; empty if it was promoted.
    pub reasons: Vec<String>,
    pub documents: usize,
    pub items: usize,
    pub targets: usize,
    /// The candidate's, per target, in nats.
    pub loss: f64,
    pub comparisons: Vec<Comparison>,
    pub general: GeneralReport,
    pub resamples: usize,
    pub seed: u64,
    pub confidence: f64,
}

/// Why there is nothing to judge.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum GateError {
    #[error("{what} has {got} items and the candidate {expected}: they were not measured on the same ones")]
    Unpaired { what: String, got: usize, expected: usize },
    #[error("{what} has a loss that is no number: the model or the adapter is damaged")]
    NotFinite { what: String },
    #[error("{documents} documents are held out; at least 2 are needed to tell a gain from chance")]
    TooFew { documents: usize },
    #[error("there are no general texts to judge by")]
    NoGeneral,
    #[error("{resamples} resamples are too few; at least 1000 are needed")]
    Resamples { resamples: usize },
}

/// Judges a candidate. It is promoted only if it is better than what is served now and than all baselines, each with
/// an interval that excludes no change, and if general texts have not become harder for it than they may.
pub fn judge(
    held_out: &HeldOut<'_>,
    (general_base, general_candidate): (&[Loss], &[Loss]),
    options: GateOptions,
) -> Result<Report, GateError> {
    if options.resamples < 1000 {
        return Err(GateError::Resamples { resamples: options.resamples });
    }
    let documents = checked(held_out)?;
    check("the candidate on general texts", general_candidate, general_base.len())?;
    check("the model on general texts", general_base, general_candidate.len())?;
    let of = |against: &str, losses: &[Loss], is_required| Comparison {
        against: against.to_owned(),
        loss: losses.iter().copied().sum::<Loss>().mean(),
        interval: compare(
            held_out.documents,
            losses,
            held_out.candidate,
            (options.resamples, options.seed),
            options.confidence,
        ),
        is_required,
    };
    let mut comparisons = vec![of("base", held_out.base, held_out.served.is_none())];
    comparisons.extend(held_out.served.map(|served| of("served", served, true)));
    comparisons.extend(held_out.baselines.iter().map(|(name, losses)| of(name, losses, true)));
    let general = general_report(general_base, general_candidate, options.general_rise_max)?;
    let mut reasons: Vec<String> = comparisons.iter().filter_map(|one| shortfall(one, options.confidence)).collect();
    if general.rise > general.rise_max {
        let (rise, max) = (100.0 * general.rise, 100.0 * general.rise_max);
        reasons.push(format!("the loss on general texts rises by {rise:.2} %; at most {max} % are allowed"));
    }
    let all: Loss = held_out.candidate.iter().copied().sum();
    Ok(Report {
        verdict: if reasons.is_empty() { Verdict::Promoted } else { Verdict::Refused },
        reasons,
        documents,
        items: held_out.candidate.len(),
        targets: all.targets,
        loss: all.mean(),
        comparisons,
        general,
        resamples: options.resamples,
        seed: options.seed,
        confidence: options.confidence,
    })
}

/// Says what keeps a comparison from being a win.
fn shortfall(one: &Comparison, confidence: f64) -> Option<String> {
    let Interval { change, low, high } = one.interval;
    if !one.is_required || high < 0.0 {
        return None;
    }
    let (against, confidence) = (&one.against, 100.0 * confidence);
    Some(if change < 0.0 {
        format!(
            "the gain over {against} may be chance: {:+.2} %, and {:+.2} to {:+.2} % with {confidence} % confidence",
            100.0 * change,
            100.0 * low,
            100.0 * high
        )
    } else {
        format!("it is not better than {against}: {:+.2} % loss", 100.0 * change)
    })
}

fn general_report(base: &[Loss], candidate: &[Loss], rise_max: f64) -> Result<GeneralReport, GateError> {
    let (base, candidate): (Loss, Loss) = (base.iter().copied().sum(), candidate.iter().copied().sum());
    if base.targets == 0 || base.sum <= 0.0 {
        return Err(GateError::NoGeneral);
    }
    let (targets, base, candidate) = (base.targets, base.mean(), candidate.mean());
    Ok(GeneralReport { targets, base, candidate, rise: candidate / base - 1.0, rise_max })
}

/// Returns the number of documents, if all lists are of the same items.
fn checked(held_out: &HeldOut<'_>) -> Result<usize, GateError> {
    let items = held_out.candidate.len();
    check("the model", held_out.base, items)?;
    check("the candidate", held_out.candidate, held_out.documents.len())?;
    held_out.served.map_or(Ok(()), |served| check("what is served", served, items))?;
    held_out.baselines.iter().try_for_each(|(name, losses)| check(name, losses, items))?;
    let mut documents = held_out.documents.to_vec();
    documents.sort_unstable();
    documents.dedup();
    if documents.len() < 2 {
        return Err(GateError::TooFew { documents: documents.len() });
    }
    Ok(documents.len())
}

fn check(what: &str, losses: &[Loss], expected: usize) -> Result<(), GateError> {
    if losses.len() != expected {
        return Err(GateError::Unpaired { what: what.to_owned(), got: losses.len(), expected });
    }
    match losses.iter().all(|loss| loss.sum.is_finite()) {
        true => Ok(()),
        false => Err(GateError::NotFinite { what: what.to_owned() }),
    }
}

#[cfg(test)]
mod tests;
