//! Measures a candidate and what it has to be better than, in the arithmetic that requests are served with.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use ruvllm_learning::{Loss, NgramMemory, Prompted, Scored, with_examples};
use ruvllm_runtime::{Engine, HeldAdapter};
use ruvllm_training::{Item, Preferences};
use serde::Serialize;

use super::{Divided, interrupted};
use crate::output::progress::count_bar;

/// Measures with a model as it is served.
pub struct Meter<'a> {
    pub engine: &'a Engine,
    pub stop: &'a AtomicBool,
}

/// What the model makes of held-out corrections beside the answers that they correct, alone and with the candidate.
#[derive(Debug, Serialize)]
pub struct HeldOutPairs {
    pub base: Preferences,
    pub candidate: Preferences,
}

impl Meter<'_> {
    /// Loads the adapter in a folder.
    pub fn hold(&self, folder: &Path) -> Result<HeldAdapter> {
        let adapters = self.engine.adapters();
        let registered = adapters.register(folder.to_owned());
        let registered = registered.with_context(|| format!("cannot use the adapter in {}", folder.display()))?;
        Ok(adapters.hold(&[(registered.id, 1.0)])?)
    }

    /// Returns the losses of all targets of items.
    pub fn losses(&self, adapter: Option<&HeldAdapter>, items: &[Item], what: &str) -> Result<Vec<Vec<f64>>> {
        let bar = count_bar(items.len(), what);
        let losses = items.iter().map(|item| {
            interrupted(self.stop)?;
            let losses = self.engine.target_losses(adapter, &item.tokens, &item.targets)?;
            bar.inc(1);
            Ok(losses)
        });
        let losses = losses.collect();
        bar.finish_and_clear();
        losses
    }

    /// Mixes a memory of what is learned from with the model's predictions of what is held out. How much it counts is
    /// fitted to the validation.
    pub fn ngram(&self, items: &Divided, base: &[Vec<f64>], validation: &[Vec<f64>]) -> Vec<Loss> {
        let memory = NgramMemory::of(items.training.iter().map(|item| &item.tokens[..]));
        let memory = memory.fit(items.validation.iter().zip(validation).map(|(item, losses)| scored(item, losses)));
        let mixed = |(item, losses): (&Item, &Vec<f64>)| Loss::of(&memory.losses(scored(item, losses)));
        items.held_out.iter().zip(base).map(mixed).collect()
    }

    /// Gives the model the last examples in the prompt, as many as there is room for. Returns also how many these were on
    /// average.
    pub fn with_examples(&self, items: &Divided, examples_max: usize) -> Result<(Vec<Loss>, f64)> {
        let (tokenizer, room) = (self.engine.tokenizer(), self.engine.context());
        let ends_message = |token: u32| tokenizer.is_end_of_generation(token);
        let examples: Vec<&[u32]> = items.training.iter().map(|item| &item.tokens[..]).collect();
        let prompted = |item: &Item| {
            let Prompted { tokens, added, examples } =
                with_examples(&examples, &item.tokens, ends_message, (examples_max, room));
            let first = item.targets.iter().position(|is_target| *is_target).unwrap_or(item.tokens.len());
            let targets = first + added..tokens.len();
            (Item::new(tokens, targets, item.document), examples)
        };
        let (items, counts): (Vec<Item>, Vec<usize>) = items.held_out.iter().map(prompted).unzip();
        let losses = self.losses(None, &items, "examples in the prompt")?;
        Ok((sums(&losses), counts.iter().sum::<usize>() as f64 / counts.len() as f64))
    }

    /// Compares corrections with what they correct. Takes the losses of all that is held out.
    pub fn preferences(
        &self,
        held_out: &[Item],
        beta: f32,
        candidate: &HeldAdapter,
        (base, with_candidate): (&[Vec<f64>], &[Vec<f64>]),
    ) -> Result<Option<HeldOutPairs>> {
        let rejected: Vec<Item> = held_out.iter().filter_map(|item| item.rejected.as_deref().cloned()).collect();
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        let leads = |adapter, losses: &[Vec<f64>]| {
            let corrected = held_out.iter().zip(losses).filter(|(item, _)| item.rejected.is_some());
            let of_rejected = self.losses(adapter, &rejected, "answers that were corrected")?;
            let leads =
                corrected.zip(&of_rejected).map(|((_, of_chosen), losses)| (mean(losses) - mean(of_chosen)) as f32);
            anyhow::Ok(leads.collect::<Vec<f32>>())
        };
        let (base, candidate) = (leads(None, base)?, leads(Some(candidate), with_candidate)?);
        let [alone, with] = [&base, &candidate].map(|leads| Preferences::of(leads, &base, beta));
        Ok(alone.zip(with).map(|(base, candidate)| HeldOutPairs { base, candidate }))
    }
}

fn scored<'a>(item: &'a Item, losses: &'a [f64]) -> Scored<'a> {
    Scored { tokens: &item.tokens, targets: &item.targets, losses }
}

/// Sums up the losses of each item.
pub fn sums(losses: &[Vec<f64>]) -> Vec<Loss> {
    losses.iter().map(|losses| Loss::of(losses)).collect()
}
