//! `ruvllm learn now`: trains a candidate, judges it, and serves it if it has won.

mod data;
mod general;
mod measure;
mod report;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use ruvllm_kernels::Cores;
use ruvllm_learning::{GateOptions, Report, Verdict};
use ruvllm_memory::{LearnedScope, LearnedVersion, Memory, NewVersion, ScopeState, now_ms};
use ruvllm_runtime::hardware::{Hardware, chosen_kernels};
use ruvllm_runtime::{Engine, LearnedFiles};
use ruvllm_store::ModelFile;
use ruvllm_text::lower_priority;
use ruvllm_training::{AdapterLabel, Base, Data, Machine, Outcome, TrainError, TrainOptions, Trainer};
use serde_json::{Value, json};

use crate::exit::Interrupted;
use crate::flags::memory::MemoryLocationFlags;
use crate::flags::model::ModelFlags;
use crate::flags::scope::{ScopeFlags, describe};
use crate::loading::build;
use crate::output;
use crate::output::progress::interrupt_flag;
use crate::output::training::TrainingProgress;
use data::{Examples, Lesson};
use general::GeneralTexts;
use measure::{Measured, Measurement};

/// Context that examples in the prompt may fill, unless --context says otherwise.
const CONTEXT_DEFAULT: usize = 2048;

/// Train on the feedback that was given, and serve the result if it has won
///
/// The corrections and approved answers of a tenant (or of one end user) are divided by conversation. From about two
/// thirds an adapter is trained, with general text mixed in; answers that were corrected become less likely than their
/// corrections (a score below 0 alone, without a correction, changes nothing). A tenth says when to stop; a quarter is
/// held out, always the same. On that the candidate has to be better than what is served now, than an n-gram memory of
/// the same examples, and than examples in the prompt, each with 95 % confidence, and the loss on general texts may rise
/// by 0.5 % at most. Then requests of that scope are answered with it that name no adapter, by running servers within
/// seconds. Otherwise it is kept with its figures: see `ruvllm learn history`.
///
/// Ctrl-C changes nothing. The same feedback, flags and seed give the same adapter.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ruvllm learn now smollm2\n  ruvllm learn now smollm2 --tenant acme --user ada --json\n  \
                        ruvllm learn rollback smollm2 --tenant acme --user ada"
)]
pub struct Now {
    #[command(flatten)]
    model: ModelFlags,
    #[command(flatten)]
    scope: ScopeFlags,
    /// Rank of the adapter, 1 to 64: how much it can hold
    #[arg(long, value_name = "N", default_value_t = 8)]
    rank: usize,
    /// How often everything is gone through at most
    #[arg(long, value_name = "N", default_value_t = 3)]
    epochs: usize,
    /// The largest learning rate
    #[arg(long, value_name = "X", default_value_t = 1e-3)]
    learning_rate: f32,
    /// Tokens of a training step, and of an example, at most; longer ones are left out
    #[arg(long, value_name = "TOKENS", default_value_t = 512)]
    step_tokens: usize,
    /// A text that must not become harder, instead of the one that comes with the program (57,000 tokens)
    #[arg(long, value_name = "FILE")]
    general: Option<PathBuf>,
    /// A text that is mixed in, so that the model does not unlearn what is like it, instead of the one that comes
    /// with the program
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Share of it in all that is trained on
    #[arg(long, value_name = "SHARE", default_value_t = 0.2)]
    replay_share: f32,
    /// How much it counts that corrections become likelier than the answers that they correct, beside learning them; 0
    /// makes nothing of corrected answers
    #[arg(long, value_name = "X", default_value_t = TrainOptions::default().preference_weight)]
    preference_weight: f32,
    /// Examples in the prompt that the candidate has to be better than
    #[arg(long, value_name = "N", default_value_t = 10)]
    prompt_examples: usize,
    /// Do nothing unless so many answers were corrected or approved since the last version was made, and there are enough
    /// of them in all: for timers
    #[arg(long, value_name = "N")]
    new: Option<usize>,
    /// Everything random follows from it
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

/// An adapter that was trained and has no name yet.
struct Candidate {
    folder: PathBuf,
    outcome: Outcome,
    options: TrainOptions,
    item_counts: [usize; 3],
    pair_counts: [usize; 2],
    seconds: f64,
}

impl Now {
    pub fn execute(self) -> Result<()> {
        self.check()?;
        let stop = interrupt_flag();
        // Threads that are started from here on have it too: a server on the same machine goes first.
        lower_priority();
        let (began, read_ms) = (Instant::now(), now_ms());
        let model = self.model.file(Arc::clone(&stop))?;
        let scope = self.scope.of(model.base.as_deref().unwrap_or(&model.name))?;
        let files = self.memory.learned_files()?;
        // A server that has this process stand still while it answers must not do so while it reads or writes.
        let reading = files.uninterrupted()?;
        let memory = self.memory.open()?;
        let served = memory.learning().scope_state(&scope)?;
        let examples = Examples::read(&memory, &scope)?;
        if let Some(least) = self.new
            && let Some(reason) = examples.too_few_new(&memory, least)?
        {
            return self.waits(&scope, &reason);
        }
        let served_adapter = served_adapter(&memory, &files, &scope, &served)?;
        drop(reading);
        examples.check_enough()?;
        let lesson = Lesson::new(examples, &model.path, self.step_tokens)?;
        report::tell_lesson(&scope, &lesson);
        let general = GeneralTexts::read(self.general.as_deref(), self.replay.as_deref(), &lesson)?;
        report::tell_general(&general);
        // Removed again whatever happens.
        let scratch = Scratch(files.scratch()?);
        let candidate = self.train(&model, &lesson, &general, &scratch, &stop)?;
        let engine = self.engine(&model)?;
        let measurement = Measurement {
            engine: &engine,
            lesson: &lesson,
            general: &general,
            candidate: &candidate.folder,
            served: served_adapter.as_deref(),
            prompt_examples: self.prompt_examples,
            beta: candidate.options.beta,
            stop: &stop,
        };
        let measured = measurement.run()?;
        let verdict = measured.judge(&lesson, GateOptions { seed: self.seed, ..GateOptions::default() })?;
        interrupted(&stop)?;
        let _writing = files.uninterrupted()?;
        let version = self.store(
            (&memory, &files, &scope),
            (&served, read_ms),
            (&candidate, &lesson, &engine),
            self.report_of(&candidate, &lesson, &general, (&measured, &verdict), began),
            verdict.verdict == Verdict::Promoted,
        )?;
        match self.json {
            true => output::json(&report::to_json(&version)),
            false => report::print(&version, &verdict, measured.preferences.as_ref()),
        }
    }

    /// Says why nothing is done.
    fn waits(&self, scope: &LearnedScope, reason: &str) -> Result<()> {
        match self.json {
            true => output::json(&json!({ "scope": scope, "state": "waiting", "reason": reason })),
            false => output::line(&format!("nothing to do for {}: {reason}", describe(scope))),
        }
    }

    fn check(&self) -> Result<()> {
        if self.prompt_examples == 0 {
            bail!("--prompt-examples is 0; the gate compares with at least 1");
        }
        if self.step_tokens < 32 {
            bail!("--step-tokens is {}; at least 32 are needed", self.step_tokens);
        }
        Ok(())
    }

    fn train(
        &self,
        model: &ModelFile,
        lesson: &Lesson,
        general: &GeneralTexts,
        scratch: &Scratch,
        stop: &Arc<AtomicBool>,
    ) -> Result<Candidate> {
        let gguf = ruvllm_model::open(&model.path).with_context(|| format!("cannot read {}", model.path.display()))?;
        let base = Base::open(Arc::new(gguf), self.step_tokens);
        let base = Arc::new(base.with_context(|| format!("{} cannot be trained", self.model.model))?);
        let options = TrainOptions {
            rank: self.rank,
            alpha: 2.0 * self.rank as f32,
            epochs: self.epochs,
            learning_rate: self.learning_rate,
            step_tokens: self.step_tokens,
            seed: self.seed,
            replay_share: self.replay_share,
            preference_weight: self.preference_weight,
            ..TrainOptions::default()
        };
        let data = Data {
            training: lesson.training.clone(),
            replay: general.replay.clone(),
            validation: lesson.validation.clone(),
        };
        let machine = self.machine(stop)?;
        let mut trainer = Trainer::new(base, options.clone(), data, &machine)?;
        let began = Instant::now();
        let mut progress = TrainingProgress::new();
        let outcome = match trainer.run(&mut |advance| progress.tell(advance)) {
            Err(TrainError::Stopped) => return Err(Interrupted.into()),
            outcome => outcome?,
        };
        progress.finish();
        let label = AdapterLabel { base_model: Some(&model.name), invocation: lesson.invocation.as_deref() };
        trainer.write(&scratch.0, label)?;
        let (item_counts, pair_counts) = (trainer.item_counts(), trainer.pair_counts());
        let seconds = began.elapsed().as_secs_f64();
        Ok(Candidate { folder: scratch.0.clone(), outcome, options, item_counts, pair_counts, seconds })
    }

    fn machine(&self, stop: &Arc<AtomicBool>) -> Result<Machine> {
        let hardware = Hardware::detect();
        let memory_budget = hardware.memory_available_bytes.and_then(|bytes| usize::try_from(bytes).ok());
        Ok(Machine {
            cores: Arc::new(Cores::new(hardware.cores)),
            threads: self.model.engine.threads.unwrap_or(hardware.cores).max(1),
            kernels: chosen_kernels()?,
            stop: Arc::clone(stop),
            memory_budget: memory_budget.unwrap_or(usize::MAX),
        })
    }

    /// Loads the model as it is served.
    fn engine(&self, model: &ModelFile) -> Result<Engine> {
        let flags = &self.model.engine;
        let context = flags.context.unwrap_or(CONTEXT_DEFAULT.max(self.step_tokens));
        let builder = flags.builder(&model.path)?.sequences(1).context(Some(context));
        let engine = build(builder, &model.path)?;
        if engine.context() < self.step_tokens {
            let (context, tokens) = (engine.context(), self.step_tokens);
            bail!(
                "--context leaves room for {context} tokens, and --step-tokens lets examples have {tokens}: raise one"
            );
        }
        engine.adapters().set_budget(usize::MAX);
        Ok(engine)
    }

    /// Keeps the candidate with its figures, and serves it if it was promoted.
    fn store(
        &self,
        (memory, files, scope): (&Memory, &LearnedFiles, &LearnedScope),
        (served, read_ms): (&ScopeState, i64),
        (candidate, lesson, engine): (&Candidate, &Lesson, &Engine),
        report: Value,
        is_promoted: bool,
    ) -> Result<LearnedVersion> {
        let bytes = ruvllm_runtime::AdapterFile::open(&candidate.folder)?.file_bytes;
        let (adapter, is_new) = files.install(&candidate.folder)?;
        let new = NewVersion {
            adapter: adapter.clone(),
            bytes,
            model_digest: engine.fingerprint(),
            parent: served.version,
            requests: lesson.requests.clone(),
            users: lesson.users.clone(),
            items: lesson.digests(),
            report,
        };
        let learning = memory.learning();
        let added = learning.add_version(scope, &new, (is_promoted, read_ms), &format!("learn@{read_ms}"));
        if added.is_err() && is_new {
            files.remove(&adapter)?;
        }
        let number = added?;
        let mut versions = learning.versions(scope)?.into_iter();
        versions.find(|version| version.version == number).context("the new version was removed meanwhile")
    }

    /// Returns everything that is known of how a version came to be.
    fn report_of(
        &self,
        candidate: &Candidate,
        lesson: &Lesson,
        general: &GeneralTexts,
        (measured, gate): (&Measured, &Report),
        began: Instant,
    ) -> Value {
        let [training, replay, validation] = candidate.item_counts;
        json!({
            "gate": gate,
            "items": {
                "training": training, "validation": validation, "held_out": lesson.held_out.len(), "replay": replay,
                "left_out": lesson.left_out,
            },
            "pairs": {
                "training": candidate.pair_counts[0],
                "validation": candidate.pair_counts[1],
                "held_out": report::pair_count(&lesson.held_out),
                "left_out": lesson.rejected_left_out,
            },
            "preferences": measured.preferences,
            "activated": lesson.invocation.is_some(),
            "training": {
                "options": candidate.options,
                "losses": candidate.outcome.evaluations,
                "steps": candidate.outcome.steps,
                "tokens": candidate.outcome.tokens,
                "seconds": candidate.seconds,
            },
            "general": {
                "source": general.source, "digest": general.digest, "tokens": general.tokens(),
                "left_out": general.left_out,
            },
            "prompt_examples": measured.prompt_examples,
            "seconds": began.elapsed().as_secs_f64(),
        })
    }
}

/// Returns the files of the adapter that is served now.
fn served_adapter(
    memory: &Memory,
    files: &LearnedFiles,
    scope: &LearnedScope,
    served: &ScopeState,
) -> Result<Option<PathBuf>> {
    if served.version == 0 {
        return Ok(None);
    }
    let versions = memory.learning().versions(scope)?;
    let found = versions.iter().find(|version| version.version == served.version);
    let path = found.and_then(|version| files.find(&version.body.adapter));
    let missing = || {
        format!(
            "the adapter of version {}, which is served now, is not on this machine: copy it here, or begin anew with \
             `ruvllm learn reset`",
            served.version
        )
    };
    path.map(Some).with_context(missing)
}

/// Ends the command if Ctrl-C was pressed.
fn interrupted(stop: &AtomicBool) -> Result<()> {
    if stop.load(Ordering::Relaxed) { Err(Interrupted.into()) } else { Ok(()) }
}

/// A folder that is removed at the end, if it is still there.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed does no harm, and the next run of this process number removes it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Says what there is too little of.
fn too_few(scope: &LearnedScope, told: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "{told}, of {}: nothing that is learned from so few could show that it is more than chance. Feedback is kept of \
         tenants that opted in (--learn), by POST /v1/feedback, `ruvllm feedback` or /fix in a chat",
        describe(scope)
    )
}
