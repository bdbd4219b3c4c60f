//! Measures a candidate and what it has to be better than, and lets the gate decide.

use std::path::Path;

use anyhow::Result;
use ruvllm_learning::{GateOptions, HeldOut, Loss, Report, judge};

use crate::learning::{Divided, GeneralTexts, HeldOutPairs, Meter, sums};

/// What is measured.
pub struct Measurement<'a> {
    pub meter: Meter<'a>,
    pub items: &'a Divided,
    pub general: &'a GeneralTexts,
    /// Folders of adapters.
    pub candidate: &'a Path,
    pub served: Option<&'a Path>,
    pub prompt_examples: usize,
    pub beta: f32,
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
        let Self { meter, items, general, .. } = self;
        let held_out = &items.held_out;
        let candidate = meter.hold(self.candidate)?;
        let base = meter.losses(None, held_out, "the model on what is held out")?;
        let with_candidate = meter.losses(Some(&candidate), held_out, "the candidate")?;
        let served = match self.served {
            Some(path) => Some(sums(&meter.losses(Some(&meter.hold(path)?), held_out, "what is served now")?)),
            None => None,
        };
        let (in_prompt, prompt_examples) = meter.with_examples(items, self.prompt_examples)?;
        let validation = meter.losses(None, &items.validation, "an n-gram memory")?;
        let baselines = vec![("ngram", meter.ngram(items, &base, &validation)), ("examples", in_prompt)];
        let preferences = meter.preferences(held_out, self.beta, &candidate, (&base, &with_candidate))?;
        let general_base = meter.losses(None, &general.judged, "the model on general texts")?;
        let general_candidate = meter.losses(Some(&candidate), &general.judged, "the candidate on general texts")?;
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
}

impl Measured {
    /// Lets the gate decide.
    pub fn judge(&self, items: &Divided, options: GateOptions) -> Result<Report> {
        let held_out = HeldOut {
            documents: &items.held_out_documents(),
            base: &self.base,
            served: self.served.as_deref(),
            candidate: &self.candidate,
            baselines: &self.baselines,
        };
        Ok(judge(&held_out, (&self.general_base, &self.general_candidate), options)?)
    }
}
