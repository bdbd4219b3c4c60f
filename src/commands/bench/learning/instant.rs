//! Items that are looked up, as feedback is at once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use ruvllm_engine::Recall;
use ruvllm_learning::Loss;
use ruvllm_training::Item;

use super::Beside;
use super::record::{Name, Record};
use super::texts::{Domain, PROMPT_TOKENS};
use super::trained::Bench;
use crate::learning::interrupted;
use crate::output::progress::count_bar;

/// The losses of what is held out, and what a look-up takes.
#[derive(Clone)]
pub struct Recalled {
    pub losses: Vec<Loss>,
    pub microseconds: f64,
}

pub fn measure(bench: &Bench<'_>, domains: &[Domain], known: &mut Beside, name: &Name) -> Result<Record> {
    let recalled = recalled(bench, domains, known, name.items)?;
    let change = relative(&known.base_sums(), &recalled.losses);
    let changes = BTreeMap::from([(name.domain.clone(), change)]);
    Ok(Record { microseconds: Some(recalled.microseconds), ..Record::of(name, changes) })
}

/// Returns the relative change of a loss.
pub fn relative(base: &[Loss], losses: &[Loss]) -> f64 {
    let [base, losses] = [base, losses].map(|losses| losses.iter().copied().sum::<Loss>());
    losses.mean() / base.mean() - 1.0
}

/// Predicts what is held out with a memory of so many items.
pub fn recalled(bench: &Bench<'_>, domains: &[Domain], known: &mut Beside, items: usize) -> Result<Recalled> {
    if let Some((_, recalled)) = known.recalled.iter().find(|(count, _)| *count == items) {
        return Ok(recalled.clone());
    }
    let training = domains[known.domain].divide(known.seed, items)?.training;
    let (engine, stop) = (bench.meter.engine, bench.meter.stop);
    let space = engine.recall_space()?;
    let bar = count_bar(training.len() + known.held_out().len(), "a memory");
    let observed = |item: &Item| {
        interrupted(stop)?;
        bar.inc(1);
        anyhow::Ok(Arc::new(engine.recall_item(space.clone(), item.tokens.clone(), PROMPT_TOKENS)?))
    };
    let mut recall = Recall::new(space.clone());
    for item in &training {
        // Where there is no room for all of them, the first ones stay.
        recall.add(observed(item)?);
    }
    let held_out = known.held_out().iter().map(&observed).collect::<Result<Vec<_>>>()?;
    bar.finish_and_clear();
    let began = Instant::now();
    let losses: Vec<Loss> =
        held_out.iter().map(|item| Loss { sum: -recall.score(item).1, targets: item.targets() }).collect();
    let targets: usize = losses.iter().map(|loss| loss.targets).sum();
    let microseconds = began.elapsed().as_secs_f64() * 1e6 / targets.max(1) as f64;
    let recalled = Recalled { losses, microseconds };
    known.recalled.push((items, recalled.clone()));
    Ok(recalled)
}
