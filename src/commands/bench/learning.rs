//! `ruvllm bench learning`: what learning is worth on texts that nobody here wrote.

mod controls;
mod instant;
mod record;
mod report;
mod texts;
mod trained;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use ruvllm_learning::Loss;
use ruvllm_runtime::{Engine, ItemEncoder};
use ruvllm_training::{Item, TrainOptions};

use self::record::{Kind, Name, Records};
use self::texts::{Domain, ITEM_TOKENS};
use self::trained::Bench;
use crate::flags::memory::MemoryLocationFlags;
use crate::flags::model::ModelFlags;
use crate::learning::{Divided, GeneralTexts, Meter, Scratch, Training, sums};
use crate::loading::build;
use crate::output;
use crate::output::progress::interrupt_flag;

/// Room for ten items in a prompt, and one behind them.
const CONTEXT: usize = 12 * ITEM_TOKENS;
/// Items of those measurements that are made with one number of them.
const ITEMS_FIXED: usize = 50;

/// Measure what a model learns from texts of several domains, and what that does to others
///
/// Each folder in --texts is a domain and each file in it a document. Documents are divided by a seed: what is held out
/// shares no run of 13 tokens with what is learned from. Items have 192 tokens, and the last 128 of them are the answer.
/// Losses are those of the model as it is served.
///
/// The whole takes hours. With --results, everything that was measured is kept, and the same command goes on where it was
/// interrupted; --only, --items, --seeds and --domain ask for parts.
#[derive(Debug, Args)]
#[command(
    after_help = "Example (texts of Django, Meson and Ansible):\n  for kind in documentation manual code announcements; do\n    \
                  python3 tests/fetch.py texts-$kind texts/$kind\n  done\n  ruvllm bench learning smollm2 --texts texts \
                  --results learning.jsonl --plot learning.html"
)]
pub struct LearningBench {
    #[command(flatten)]
    model: ModelFlags,
    /// Folder with a folder of texts for each domain
    #[arg(long, value_name = "FOLDER")]
    texts: PathBuf,
    /// Only these domains of them
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    domain: Vec<String>,
    /// Numbers of items to learn from
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [10, 50, 200])]
    items: Vec<usize>,
    /// Number of divisions, each with a training of its own
    #[arg(long, value_name = "N", default_value_t = 5)]
    seeds: u64,
    /// Only these measurements
    #[arg(long, value_name = "KIND", value_enum, value_delimiter = ',')]
    only: Vec<Kind>,
    /// Keep measurements in this file, a line each, and do not repeat those that are in it
    #[arg(long, value_name = "FILE.jsonl")]
    results: Option<PathBuf>,
    /// Write a page with plots
    #[arg(long, value_name = "FILE.html")]
    plot: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

impl LearningBench {
    pub fn execute(mut self) -> Result<()> {
        self.check()?;
        let stop = interrupt_flag();
        let model = self.model.file(Arc::clone(&stop))?;
        let encoder = ItemEncoder::open(&model.path, ITEM_TOKENS, false)?;
        let domains = self.domains(&encoder)?;
        let builder = self.model.engine.builder(&model.path)?.sequences(1).context(Some(CONTEXT));
        let engine = build(builder, &model.path)?;
        engine.adapters().set_budget(usize::MAX);
        let options = TrainOptions { step_tokens: 512, ..TrainOptions::default() };
        let general = GeneralTexts::read((None, None), &encoder, &domains[0].divide(0, self.items[0])?)?;
        let setup = setup(&engine, &domains, &options, &general);
        let mut records = Records::open(self.results.as_deref(), setup)?;
        let training =
            Training::open((&model.path, &model.name), options.step_tokens, self.model.engine.threads, &stop)?;
        let bench = Bench {
            meter: Meter { engine: &engine, stop: &stop },
            training,
            general,
            general_base: Default::default(),
            options,
            scratch: Scratch(self.memory.learned_files()?.scratch()?),
        };
        self.measure(&bench, &domains, &mut records, &stop)?;
        let report = report::Report::new(&records, &domains, &self.items);
        if let Some(path) = &self.plot {
            report.write_page(path, &model.name)?;
        }
        match self.json {
            true => output::json(&report.to_json(&records.all)),
            false => report.print(),
        }
    }

    fn check(&mut self) -> Result<()> {
        self.items.sort_unstable();
        self.items.dedup();
        if self.items.first().is_none_or(|least| *least < 4) || self.items.last().is_some_and(|most| *most > 10_000) {
            bail!("--items must name numbers from 4 to 10000");
        }
        if self.seeds == 0 || self.seeds > 1000 {
            bail!("--seeds is {}; it must be 1 to 1000", self.seeds);
        }
        Ok(())
    }

    fn domains(&self, encoder: &ItemEncoder) -> Result<Vec<Domain>> {
        let mut domains = texts::read(&self.texts, encoder)?;
        let known: Vec<String> = domains.iter().map(|domain| domain.name.clone()).collect();
        if let Some(name) = self.domain.iter().find(|name| !known.contains(name)) {
            bail!("--domain {name}: --texts has {}", known.join(", "));
        }
        domains.retain(|domain| self.domain.is_empty() || self.domain.contains(&domain.name));
        Ok(domains)
    }

    /// Measures what is asked for and not known yet: all domains once before the next seed, so that little is known of all
    /// of them before much is known of one.
    fn measure(&self, bench: &Bench<'_>, domains: &[Domain], records: &mut Records, stop: &AtomicBool) -> Result<()> {
        let wanted = self.wanted(domains);
        let left = wanted.iter().filter(|(name, _)| !records.has(name)).count();
        output::remark(&format!("{left} measurements of {} are to be made", wanted.len()));
        let mut beside: Option<Beside> = None;
        for (number, (name, domain)) in
            wanted.iter().enumerate().filter(|(_, (name, _))| !records.has(name)).collect::<Vec<_>>()
        {
            crate::learning::interrupted(stop)?;
            let began = Instant::now();
            if beside.as_ref().is_none_or(|known| known.domain != *domain || known.seed != name.seed) {
                beside = Some(Beside::of(bench, domains, *domain, name.seed)?);
            }
            let Some(known) = beside.as_mut() else { continue };
            let mut record = match name.kind {
                Kind::Instant => instant::measure(bench, domains, known, name)?,
                _ => bench.measure(domains, known, name)?,
            };
            record.seconds = began.elapsed().as_secs_f64();
            output::remark(&format!("{} of {}: {}", number + 1, wanted.len(), report::line(&record)));
            records.add(record)?;
        }
        Ok(())
    }

    /// Returns what is asked for, and the place of its domain.
    fn wanted(&self, domains: &[Domain]) -> Vec<(Name, usize)> {
        let mut wanted = Vec::new();
        let is_wanted = |kind: Kind| self.only.is_empty() || self.only.contains(&kind);
        for seed in 0..self.seeds {
            for (place, domain) in domains.iter().enumerate() {
                let mut add = |kind, items| {
                    if is_wanted(kind) {
                        wanted.push((Name { kind, domain: domain.name.clone(), items, seed }, place));
                    }
                };
                for items in &self.items {
                    add(Kind::Instant, *items);
                    add(Kind::Background, *items);
                }
                if self.items.contains(&ITEMS_FIXED) && domains.len() > 1 {
                    add(Kind::Both, ITEMS_FIXED);
                }
                if self.items.contains(&ITEMS_FIXED) && place == 0 {
                    [Kind::Shuffled, Kind::Template, Kind::Poisoned]
                        .into_iter()
                        .for_each(|kind| add(kind, ITEMS_FIXED));
                }
            }
        }
        wanted
    }
}

/// What all measurements of a domain and a seed need.
pub struct Beside {
    domain: usize,
    seed: u64,
    most: Divided,
    /// Of the model alone, on what is held out and on what says when to stop.
    base: Vec<Vec<f64>>,
    validation: Vec<Vec<f64>>,
    /// Losses with a memory of so many items.
    recalled: Vec<(usize, instant::Recalled)>,
}

impl Beside {
    fn of(bench: &Bench<'_>, domains: &[Domain], domain: usize, seed: u64) -> Result<Self> {
        let most = domains[domain].divide(seed, 0)?;
        let base = bench.meter.losses(None, &most.held_out, "the model on what is held out")?;
        let validation = bench.meter.losses(None, &most.validation, "the model on what says when to stop")?;
        Ok(Self { domain, seed, most, base, validation, recalled: Vec::new() })
    }

    fn base_sums(&self) -> Vec<Loss> {
        sums(&self.base)
    }

    fn held_out(&self) -> &[Item] {
        &self.most.held_out
    }
}

/// Returns a digest of everything that figures depend on.
fn setup(engine: &Engine, domains: &[Domain], options: &TrainOptions, general: &GeneralTexts) -> String {
    let mut hasher = blake3::Hasher::new_derive_key("ruvllm bench learning setup 1");
    hasher.update(engine.fingerprint().as_bytes());
    hasher.update(format!("{options:?} {} {}", general.digest, engine.kernels()).as_bytes());
    domains.iter().for_each(|domain| {
        hasher.update(domain.name.as_bytes()).update(domain.digest.as_bytes());
    });
    hasher.finalize().to_hex()[..16].to_owned()
}
