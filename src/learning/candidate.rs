//! An adapter that was trained and has not been judged yet.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Context, Result};
use ruvllm_kernels::Cores;
use ruvllm_runtime::hardware::{Hardware, chosen_kernels};
use ruvllm_training::{AdapterLabel, Base, Data, Machine, Outcome, TrainError, TrainOptions, Trainer};

use crate::exit::Interrupted;
use crate::output::training::TrainingProgress;

/// How candidates of a model are trained.
pub struct Training {
    base: Arc<Base>,
    name: String,
    machine: Machine,
}

/// An adapter in a folder.
pub struct Candidate {
    pub folder: PathBuf,
    pub outcome: Outcome,
    pub options: TrainOptions,
    /// Items of the training, of what is replayed, and of the validation.
    pub item_counts: [usize; 3],
    /// Pairs of the training and of the validation.
    pub pair_counts: [usize; 2],
    pub seconds: f64,
}

impl Training {
    /// Opens the file of a model, for steps of up to so many tokens.
    pub fn open(
        (path, name): (&Path, &str),
        step_tokens: usize,
        threads: Option<usize>,
        stop: &Arc<AtomicBool>,
    ) -> Result<Self> {
        let gguf = ruvllm_model::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        let base = Base::open(Arc::new(gguf), step_tokens);
        let base = Arc::new(base.with_context(|| format!("{name} cannot be trained"))?);
        let hardware = Hardware::detect();
        let memory_budget = hardware.memory_available_bytes.and_then(|bytes| usize::try_from(bytes).ok());
        let machine = Machine {
            cores: Arc::new(Cores::new(hardware.cores)),
            threads: threads.unwrap_or(hardware.cores).max(1),
            kernels: chosen_kernels()?,
            stop: Arc::clone(stop),
            memory_budget: memory_budget.unwrap_or(usize::MAX),
        };
        Ok(Self { base, name: name.to_owned(), machine })
    }

    /// Trains a candidate and writes it into a folder. `invocation` switches it on, where it applies to answers only.
    pub fn run(
        &self,
        options: TrainOptions,
        data: Data,
        (folder, invocation): (&Path, Option<&[u32]>),
    ) -> Result<Candidate> {
        let mut trainer = Trainer::new(Arc::clone(&self.base), options.clone(), data, &self.machine)?;
        let began = Instant::now();
        let mut progress = TrainingProgress::new();
        let outcome = match trainer.run(&mut |advance| progress.tell(advance)) {
            Err(TrainError::Stopped) => return Err(Interrupted.into()),
            outcome => outcome?,
        };
        progress.finish();
        trainer.write(folder, AdapterLabel { base_model: Some(&self.name), invocation })?;
        Ok(Candidate {
            folder: folder.to_owned(),
            outcome,
            options,
            item_counts: trainer.item_counts(),
            pair_counts: trainer.pair_counts(),
            seconds: began.elapsed().as_secs_f64(),
        })
    }
}

/// A folder that is removed at the end, if it is still there.
pub struct Scratch(pub PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed does no harm, and the next run of this process number removes it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
