//! Measures a candidate and what it has to be better than, in the arithmetic that requests are served with.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use ruvllm_learning::{GateOptions, HeldOut, Loss, NgramMemory, Prompted, Report, Scored, judge, with_examples};
use ruvllm_runtime::{Engine, HeldAdapter};
use ruvllm_training::{Item, Preferences};
use serde::Serialize;

use super::data::Lesson;
use super::general::GeneralTexts;
use super::interrupted;
use crate::output::progress::count_bar;

/// What is measured.
pub struct Measurement<'a> {
    pub engine: &'a Engine,
    pub lesson: &'a Lesson,
    pub general: &'a GeneralTexts,
    /// Folders of adapters.
    pub candidate: &'a Path,
    pub served: Option<&'a Path>,
    pub prompt_examples: usize,
    pub beta: f32,
    pub stop: &'a AtomicBool,
}

/// What the model makes of held-out corrections beside the answers that they correct, alone and with the candidate.
#[derive(Debug, Serialize)]
pub struct HeldOutPairs {
    pub base: Preferences,
    pub candidate: Preferences,
}

/// The losses of all items, in their order.
pub struct Measured {
    base: Vec<Loss>,
    served: Option<Vec<Loss>>,
    candidate: Vec<Loss>,
    baselines: Vec<(&'static str, Vec<Loss>)>,
    general_base: Vec<Loss>,
    general_candidate: Vec<Loss>,
    /// Examples that the prompts had on average.
    pub prompt_examples: f64,
    pub preferences: Option<HeldOutPairs>,
}

impl Measurement<'_> {
    pub fn run(&self) -> Result<Measured> {
        let Self { lesson, general, .. } = self;
        let candidate = self.hold(self.candidate)?;
        let base = self.losses(None, &lesson.held_out, "the model on what is held out")?;
        let with_candidate = self.losses(Some(&candidate), &lesson.held_out, "the candidate")?;
        let served = match self.served {
            Some(path) => Some(sums(&self.losses(Some(&self.hold(path)?), &lesson.held_out, "what is served now")?)),
            None => None,
        };
        let (in_prompt, prompt_examples) = self.with_examples()?;
        let baselines = vec![("ngram", self.ngram(&base)?), ("examples", in_prompt)];
        let preferences = self.preferences(&candidate, (&base, &with_candidate))?;
        let general_base = self.losses(None, &general.judged, "the model on general texts")?;
        let general_candidate = self.losses(Some(&candidate), &general.judged, "the candidate on general texts")?;
        Ok(Measured {
            base: sums(&base),
            served,
            candidate: sums(&with_candidate),
            baselines,
            general_base: sums(&general_base),
            general_candidate: sums(&general_candidate),
            prompt_examples,
            preferences,
        })
    }

    /// Compares corrections with what they correct. Takes the losses of all that is held out.
    fn preferences(
        &self,
        candidate: &HeldAdapter,
        (base, with_candidate): (&[Vec<f64>], &[Vec<f64>]),
    ) -> Result<Option<HeldOutPairs>> {
        let held_out = &self.lesson.held_out;
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
        let beta = self.beta;
        let [alone, with] = [&base, &candidate].map(|leads| Preferences::of(leads, &base, beta));
        Ok(alone.zip(with).map(|(base, candidate)| HeldOutPairs { base, candidate }))
    }

    fn hold(&self, folder: &Path) -> Result<HeldAdapter> {
        let adapters = self.engine.adapters();
        let registered = adapters.register(folder.to_owned());
        let registered = registered.with_context(|| format!("cannot use the adapter in {}", folder.display()))?;
        Ok(adapters.hold(&[(registered.id, 1.0)])?)
    }

    fn losses(&self, adapter: Option<&HeldAdapter>, items: &[Item], what: &str) -> Result<Vec<Vec<f64>>> {
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

    /// Mixes a memory of what is learned from with the model's predictions.
    fn ngram(&self, base: &[Vec<f64>]) -> Result<Vec<Loss>> {
        let Lesson { training, validation, held_out, .. } = self.lesson;
        let fitted = self.losses(None, validation, "an n-gram memory")?;
        let memory = NgramMemory::of(training.iter().map(|item| &item.tokens[..]));
        let memory = memory.fit(validation.iter().zip(&fitted).map(|(item, losses)| scored(item, losses)));
        let mixed = |(item, losses): (&Item, &Vec<f64>)| Loss::of(&memory.losses(scored(item, losses)));
        Ok(held_out.iter().zip(base).map(mixed).collect())
    }

    /// Gives the model the last examples in the prompt. Returns also how many there was room for on average.
    fn with_examples(&self) -> Result<(Vec<Loss>, f64)> {
        let Lesson { training, held_out, .. } = self.lesson;
        let (tokenizer, room) = (self.engine.tokenizer(), self.engine.context());
        let ends_message = |token: u32| tokenizer.is_end_of_generation(token);
        let examples: Vec<&[u32]> = training.iter().map(|item| &item.tokens[..]).collect();
        let prompted = |item: &Item| {
            let Prompted { tokens, added, examples } =
                with_examples(&examples, &item.tokens, ends_message, (self.prompt_examples, room));
            let first = item.targets.iter().position(|is_target| *is_target).unwrap_or(item.tokens.len());
            let targets = first + added..tokens.len();
            (Item::new(tokens, targets, item.document), examples)
        };
        let (items, counts): (Vec<Item>, Vec<usize>) = held_out.iter().map(prompted).unzip();
        let losses = self.losses(None, &items, "examples in the prompt")?;
        Ok((sums(&losses), counts.iter().sum::<usize>() as f64 / counts.len() as f64))
    }
}

impl Measured {
    /// Lets the gate decide.
    pub fn judge(&self, lesson: &Lesson, options: GateOptions) -> Result<Report> {
        let documents: Vec<u64> = lesson.held_out.iter().map(|item| item.document as u64).collect();
        let held_out = HeldOut {
            documents: &documents,
            base: &self.base,
            served: self.served.as_deref(),
            candidate: &self.candidate,
            baselines: &self.baselines,
        };
        Ok(judge(&held_out, (&self.general_base, &self.general_candidate), options)?)
    }
}

fn scored<'a>(item: &'a Item, losses: &'a [f64]) -> Scored<'a> {
    Scored { tokens: &item.tokens, targets: &item.targets, losses }
}

fn sums(losses: &[Vec<f64>]) -> Vec<Loss> {
    losses.iter().map(|losses| Loss::of(losses)).collect()
}
