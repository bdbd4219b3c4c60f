//! What a candidate is judged by, however it came to be: the feedback of a scope, general texts, and what is served now.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use ruvllm_learning::{GateOptions, Report, Verdict};
use ruvllm_memory::{LearnedScope, LearnedVersion, Memory, NewVersion, ScopeState, now_ms};
use ruvllm_runtime::{AdapterFile, Engine, LearnedFiles};
use ruvllm_store::ModelFile;
use ruvllm_text::{BACKGROUND_NICE, lower_priority_to};
use serde_json::Value;

use super::now::data::{Examples, Lesson};
use super::now::measure::{Measured, Measurement};
use crate::flags::memory::MemoryLocationFlags;
use crate::flags::model::ModelFlags;
use crate::flags::scope::ScopeFlags;
use crate::learning::{GeneralTexts, Meter, interrupted};
use crate::loading::build;
use crate::output::progress::{interrupt_flag, set_at_end_of_input};

/// Context that examples in the prompt may fill, unless --context says otherwise.
const CONTEXT_DEFAULT: usize = 2048;

#[derive(Debug, Args)]
pub struct CaseFlags {
    #[command(flatten)]
    pub model: ModelFlags,
    #[command(flatten)]
    scope: ScopeFlags,
    /// Tokens of a training step, and of an example, at most; longer ones are left out
    #[arg(long, value_name = "TOKENS", default_value_t = 512)]
    pub step_tokens: usize,
    /// A text that must not become harder, instead of the one that comes with the program (57,000 tokens)
    #[arg(long, value_name = "FILE")]
    pub general: Option<PathBuf>,
    /// Examples in the prompt that the candidate has to be better than
    #[arg(long, value_name = "N", default_value_t = 10)]
    prompt_examples: usize,
    /// Everything random follows from it
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Priority beside other processes, as of nice(1): at 0 it takes as much time as any other
    #[arg(long, value_name = "N", default_value_t = BACKGROUND_NICE, value_parser = clap::value_parser!(i32).range(0..=19))]
    nice: i32,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    /// Stop as by Ctrl-C once standard input ends: a server that learns must not leave this behind, however it ends itself
    #[arg(long, hide = true)]
    until_input_ends: bool,
    #[command(flatten)]
    memory: MemoryLocationFlags,
}

/// What is known of a scope.
pub struct Case<'a> {
    flags: &'a CaseFlags,
    pub stop: Arc<AtomicBool>,
    pub began: Instant,
    read_ms: i64,
    pub model: ModelFile,
    pub scope: LearnedScope,
    pub files: LearnedFiles,
    pub memory: Memory,
    served: ScopeState,
    served_adapter: Option<PathBuf>,
}

/// What a candidate has brought, and what the gate says.
pub struct Judged {
    pub measured: Measured,
    pub report: Report,
    model_digest: String,
}

impl CaseFlags {
    fn check(&self) -> Result<()> {
        if self.prompt_examples == 0 {
            bail!("--prompt-examples is 0; the gate compares with at least 1");
        }
        if self.step_tokens < 32 {
            bail!("--step-tokens is {}; at least 32 are needed", self.step_tokens);
        }
        Ok(())
    }

    /// Reads what a scope has said and what it is served with. `is_early` may find that there is nothing to do yet.
    pub fn open(
        &self,
        is_early: impl FnOnce(&Memory, &LearnedScope, &Examples) -> Result<bool>,
    ) -> Result<Option<(Case<'_>, Examples)>> {
        self.check()?;
        let stop = interrupt_flag();
        if self.until_input_ends {
            set_at_end_of_input(&stop)?;
        }
        // Threads that are started from here on have it too: a server on the same machine goes first.
        lower_priority_to(self.nice);
        let (began, read_ms) = (Instant::now(), now_ms());
        let model = self.model.file(Arc::clone(&stop))?;
        let scope = self.scope.of(model.base.as_deref().unwrap_or(&model.name))?;
        let files = self.memory.learned_files()?;
        // A server that has this process stand still while it answers must not do so while it reads or writes.
        let reading = files.uninterrupted()?;
        let memory = self.memory.open()?;
        let served = memory.learning().scope_state(&scope)?;
        let examples = Examples::read(&memory, &scope)?;
        if is_early(&memory, &scope, &examples)? {
            return Ok(None);
        }
        let served_adapter = served_adapter(&memory, &files, &scope, &served)?;
        drop(reading);
        let flags = self;
        let case = Case { flags, stop, began, read_ms, model, scope, files, memory, served, served_adapter };
        Ok(Some((case, examples)))
    }
}

impl Case<'_> {
    /// Loads the model as it is served.
    pub fn engine(&self) -> Result<Engine> {
        let (flags, tokens) = (&self.flags.model.engine, self.flags.step_tokens);
        let context = flags.context.unwrap_or(CONTEXT_DEFAULT.max(tokens));
        let builder = flags.builder(&self.model.path)?.sequences(1).context(Some(context));
        let engine = build(builder, &self.model.path)?;
        if engine.context() < tokens {
            let context = engine.context();
            bail!(
                "--context leaves room for {context} tokens, and --step-tokens lets examples have {tokens}: raise one"
            );
        }
        engine.adapters().set_budget(usize::MAX);
        Ok(engine)
    }

    /// Measures the candidate in a folder, and lets the gate decide.
    pub fn judge(
        &self,
        engine: &Engine,
        (lesson, general): (&Lesson, &GeneralTexts),
        (candidate, beta): (&Path, f32),
    ) -> Result<Judged> {
        let measurement = Measurement {
            meter: Meter { engine, stop: &self.stop },
            items: &lesson.items,
            general,
            candidate,
            served: self.served_adapter.as_deref(),
            prompt_examples: self.flags.prompt_examples,
            beta,
        };
        let measured = measurement.run()?;
        let options = GateOptions { seed: self.flags.seed, ..GateOptions::default() };
        let report = measured.judge(&lesson.items, options)?;
        interrupted(&self.stop)?;
        Ok(Judged { measured, report, model_digest: engine.fingerprint() })
    }

    /// Keeps a candidate with its figures, and serves it if it was promoted.
    pub fn store(&self, folder: &Path, lesson: &Lesson, judged: &Judged, report: Value) -> Result<LearnedVersion> {
        let _writing = self.files.uninterrupted()?;
        let bytes = AdapterFile::open(folder)?.file_bytes;
        let (adapter, is_new) = self.files.install(folder)?;
        let new = NewVersion {
            router: None,
            adapter: adapter.clone(),
            bytes,
            model_digest: judged.model_digest.clone(),
            parent: self.served.version,
            requests: lesson.requests.clone(),
            users: lesson.users.clone(),
            items: lesson.digests(),
            report,
        };
        let is_promoted = judged.report.verdict == Verdict::Promoted;
        let learning = self.memory.learning();
        let by = format!("learn@{}", self.read_ms);
        let added = learning.add_version(&self.scope, &new, (is_promoted, self.read_ms), &by);
        if added.is_err() && is_new {
            self.files.remove(&adapter)?;
        }
        let number = added?;
        let mut versions = learning.versions(&self.scope)?.into_iter();
        versions.find(|version| version.version == number).context("the new version was removed meanwhile")
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
