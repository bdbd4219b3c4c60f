//! Adapters that are trained as `learn now` trains them, and judged as it judges them.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};

use anyhow::Result;
use ruvllm_learning::{GateOptions, HeldOut, Loss, Needed, Repeats, Report, Shingles, judge};
use ruvllm_training::{Data, Item, TrainOptions};

use super::Beside;
use super::controls;
use super::instant::{recalled, relative};
use super::record::{Kind, Name, Record};
use super::texts::{Domain, renumbered};
use crate::learning::{Divided, GeneralTexts, Meter, Scratch, Training, sums};

/// Examples in the prompt that a candidate has to be better than.
const PROMPT_EXAMPLES: usize = 10;

/// What all measurements need.
pub struct Bench<'a> {
    pub meter: Meter<'a>,
    pub training: Training,
    pub general: GeneralTexts,
    /// The losses of the model alone, once they are known.
    pub general_base: OnceCell<Vec<Vec<f64>>>,
    pub options: TrainOptions,
    pub scratch: Scratch,
}

impl Bench<'_> {
    pub fn measure(&self, domains: &[Domain], known: &mut Beside, name: &Name) -> Result<Record> {
        let mut items = self.items(domains, known, name)?;
        let left_out = match name.kind {
            Kind::Template | Kind::Poisoned => without_repeats(&mut items),
            _ => 0,
        };
        if items.training.len() < Needed::LEAST.training || items.held_out.len() < Needed::LEAST.held_out {
            return Ok(Record { left_out, ..Record::of(name, BTreeMap::new()) });
        }
        let options = TrainOptions { seed: name.seed, ..self.options.clone() };
        let data = Data {
            training: items.training.clone(),
            replay: self.general.replay.clone(),
            validation: items.validation.clone(),
        };
        let folder = self.scratch.0.join("candidate");
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        let candidate = self.training.run(options, data, (&folder, None))?;
        let held = self.meter.hold(&folder)?;
        let is_natural = matches!(name.kind, Kind::Background | Kind::Shuffled);
        let base = match is_natural {
            true => known.base.clone(),
            false => self.meter.losses(None, &items.held_out, "the model on what is held out")?,
        };
        let validation = match name.kind {
            Kind::Background => known.validation.clone(),
            _ => self.meter.losses(None, &items.validation, "an n-gram memory")?,
        };
        let with_candidate = self.meter.losses(Some(&held), &items.held_out, "the candidate")?;
        let (in_prompt, _) = self.meter.with_examples(&items, PROMPT_EXAMPLES)?;
        let mut baselines = vec![("ngram", self.meter.ngram(&items, &base, &validation)), ("examples", in_prompt)];
        if name.kind == Kind::Background {
            baselines.push(("recall", recalled(self, domains, known, name.items)?.losses));
        }
        let (base, with_candidate) = (sums(&base), sums(&with_candidate));
        let gate = self.judge(&items, (&base, &with_candidate), &baselines, &held)?;
        let changes = match name.kind {
            Kind::Both => {
                let half = known.held_out().len();
                let other = domains[(known.domain + 1) % domains.len()].name.clone();
                BTreeMap::from([
                    (name.domain.clone(), relative(&base[..half], &with_candidate[..half])),
                    (other, relative(&base[half..], &with_candidate[half..])),
                ])
            }
            _ => BTreeMap::from([(name.domain.clone(), relative(&base, &with_candidate))]),
        };
        Ok(Record {
            left_out,
            gate: Some(gate),
            tokens_per_second: Some(candidate.outcome.tokens as f64 / candidate.seconds),
            ..Record::of(name, changes)
        })
    }

    /// Returns what is learned from in a measurement, and what it is judged by.
    fn items(&self, domains: &[Domain], known: &Beside, name: &Name) -> Result<Divided> {
        let items = domains[known.domain].divide(name.seed, name.items)?;
        let tokenizer = self.meter.engine.tokenizer();
        Ok(match name.kind {
            Kind::Instant | Kind::Background => items,
            Kind::Shuffled => controls::shuffled(items, name.seed),
            Kind::Template => controls::template(items, tokenizer, name.seed),
            Kind::Poisoned => controls::poisoned(items, tokenizer, name.seed),
            Kind::Both => {
                let other = domains[(known.domain + 1) % domains.len()].divide(name.seed, name.items)?;
                joined(&items, &other)
            }
        })
    }

    fn judge(
        &self,
        items: &Divided,
        (base, candidate): (&[Loss], &[Loss]),
        baselines: &[(&'static str, Vec<Loss>)],
        held: &ruvllm_runtime::HeldAdapter,
    ) -> Result<Report> {
        let judged = &self.general.judged;
        let general_base = match self.general_base.get() {
            Some(losses) => losses,
            None => {
                let losses = self.meter.losses(None, judged, "the model on general texts")?;
                self.general_base.get_or_init(|| losses)
            }
        };
        let general = self.meter.losses(Some(held), judged, "the candidate on general texts")?;
        let documents = items.held_out_documents();
        let held_out = HeldOut { documents: &documents, base, served: None, candidate, baselines };
        Ok(judge(&held_out, (&sums(general_base), &sums(&general)), GateOptions::default())?)
    }
}

/// Puts the items of two domains together.
fn joined(one: &Divided, other: &Divided) -> Divided {
    let mut numbers = HashMap::new();
    let mut of =
        |one: &[Item], other: &[Item]| [renumbered(one, &mut numbers, 0), renumbered(other, &mut numbers, 1)].concat();
    let mut joined = Divided {
        training: of(&one.training, &other.training),
        validation: of(&one.validation, &other.validation),
        held_out: of(&one.held_out, &other.held_out),
    };
    // Two domains may quote each other.
    let seen = Shingles::of(joined.validation.iter().chain(&joined.held_out).map(|item| &item.tokens[..]));
    joined.training.retain(|item| !seen.touch(&item.tokens));
    joined
}

/// Leaves out what `learn now` leaves out. Returns how much of what was to be learned from that is.
fn without_repeats(items: &mut Divided) -> usize {
    let mut repeats = Repeats::default();
    let count = items.training.len();
    for side in [&mut items.training, &mut items.validation, &mut items.held_out] {
        side.retain(|item| repeats.take(item.document as u64, item.answer()));
    }
    count - items.training.len()
}
