//! The steps from a model file to an engine, in their order.

use std::io;
use std::path::Path;
use std::sync::Arc;

use ruvllm_engine::{Core, CoreOptions, KvOptions};
use ruvllm_kernels::{Cores, KernelSet, Pool};
use ruvllm_model::{CpuRunner, Model, RowLimits};
use ruvllm_runner::Runner;
use ruvllm_text::{GrammarCompiler, Tokenizer};

use super::draft::{DraftFile, LoadedDraft};
use super::expert_place::WeightBytes;
use super::kv_size::KvSize;
use super::model_file::{ModelFile, Plan, TextParts};
use super::model_memory::{ModelMemory, queue_tokens_max, working_bytes};
use super::prefill::FAST_ROWS_MIN;
use super::{BATCH_ROWS, BuildError, BuildProgress, EngineBuilder, FAST_BATCH_ROWS, KvChoice, Prefill, fingerprint};
use crate::adapters::AdapterBase;
use crate::constrain::OutputCompiler;
use crate::encode::PromptEncoder;
use crate::engine::LoadedModel;
use crate::hardware::{self, Hardware};
use crate::kernel_packs::{KernelPackBase, shapes_of};
use crate::kv_calibration::ColdFormat;
use crate::prefill_calibration::{Effort, FastPrefill, machine_name};
use crate::submit::EngineThread;
use crate::{Adapters, Engine, KernelPacks, LoadSizes, SamplingDefaults};

/// Maximum number of requests in the queue. A single tenant fills half of it.
const QUEUE_MAX: usize = 2048;

/// The part of the machine that an engine uses.
struct Machine {
    kernels: KernelSet,
    threads: usize,
    cores: Arc<Cores>,
    /// Memory that defaults are a share of.
    memory_bytes: Option<u64>,
}

/// A model that is loaded and can run batches.
struct Loaded {
    runner: Box<dyn Runner>,
    weights: WeightBytes,
    draft: Option<LoadedDraft>,
    /// `None` if the backend runs no adapters.
    adapters: Option<AdapterBase>,
    /// `None` if the backend takes no kernel packs.
    kernel_packs: Option<KernelPackBase>,
    /// `None` if the backend decides.
    threads: Option<usize>,
    /// Name of what computes.
    kernels: &'static str,
}

impl EngineBuilder {
    pub fn build(self) -> Result<Engine, BuildError> {
        self.build_with_progress(&mut |_| {})
    }

    pub fn build_with_progress(self, progress: &mut dyn FnMut(BuildProgress)) -> Result<Engine, BuildError> {
        self.check()?;
        let (path, unused) = (self.path.clone(), self.unused());
        let (builder, file) = self.open()?;
        if matches!(file.plan, Plan::Other(..)) && !unused.is_empty() {
            let (file, backend) = (path.display(), file.backend());
            tracing::warn!("{file} runs on {backend}: {} has no effect on it", unused.join(", "));
        }
        builder.build_opened(&file, progress)
    }

    fn build_opened(self, file: &ModelFile, progress: &mut dyn FnMut(BuildProgress)) -> Result<Engine, BuildError> {
        let text = file.read_text_parts(self.chat_template.as_deref())?;
        let machine = self.machine()?;
        let weights = self.weights(file, machine.memory_bytes)?;
        let context = self.chosen_context(file, weights, machine.memory_bytes);
        self.check_memory(file, context, weights, machine.memory_bytes)?;
        let draft = self.draft_model.as_deref().map(|path| DraftFile::open(path, context)).transpose()?;
        draft.iter().try_for_each(|draft| draft.check_tokens(&text.tokenizer))?;
        let kv = KvSize::new(&self, file, context, machine.memory_bytes)?;
        self.check_disk(file)?;
        let sampling = SamplingDefaults::of_file(&file.gguf);
        if !sampling.is_empty() {
            tracing::info!(
                "{}: the model's own defaults are used where a request says nothing: {sampling}",
                self.path.display()
            );
        }
        // Before the weights are loaded, which releases the file's pages.
        let fingerprint = fingerprint(&file.gguf);
        let loaded = match &file.plan {
            Plan::Native(_) => self.load_native(file, context, weights, draft, &machine, progress)?,
            Plan::Other(other, model) => Loaded {
                runner: file.load_other(&**other, &**model, self.load_sizes(context), progress)?,
                weights,
                draft: None,
                adapters: None,
                kernel_packs: None,
                threads: None,
                kernels: other.name(),
            },
        };
        let Loaded { runner, weights, draft, adapters, kernel_packs, threads, kernels } = loaded;
        let kernel_packs = KernelPacks::new(file.backend(), kernel_packs);
        if matches!(file.plan, Plan::Native(_)) && !self.kernel_packs.is_empty() {
            kernel_packs.set(self.kernel_packs.clone(), self.kernel_choice)?;
        }
        let memory = self.model_memory(file, context, weights, kv);
        let (caches_prefixes, chooses_tokens) = (runner.limits().caches_prefixes, runner.limits().chooses_tokens);
        let mut core = Core::new(runner, self.core_options(context, kv, fingerprint));
        let cold_format = self.calibrate_cold(&mut core, &text.tokenizer, context, &fingerprint, progress)?;
        let on = machine_name(kernels, threads.unwrap_or_default());
        let effort = Effort::for_weights(weights.memory);
        let fast_prefill = self.calibrate_prefill(&mut core, &text.tokenizer, &fingerprint, &on, effort, progress);
        let fast_rows_min = core.fast_rows_min();
        if let Some(draft) = draft {
            draft.add_to(&mut core);
        }
        let disk_folder = self.disk.as_ref().map(|disk| disk.folder().to_owned());
        let (outputs, encoder) = text_steps(text, context, chooses_tokens)?;
        let thread = EngineThread::start(core, self.step_metrics, self.prefix_listener).map_err(BuildError::Thread)?;
        Ok(Engine::new(LoadedModel {
            outputs,
            encoder,
            thread,
            adapters: Adapters::new(file.backend(), adapters),
            kernel_packs,
            fingerprint,
            backend: file.backend(),
            kernels,
            threads,
            hidden: file.hidden(),
            caches_prefixes,
            disk_folder,
            cold_format,
            fast_prefill,
            fast_rows_min,
            memory,
            sampling,
        }))
    }

    /// Loads a model, and one that drafts for it if there is any, for the native backend.
    fn load_native(
        &self,
        file: &ModelFile,
        context: usize,
        weights: WeightBytes,
        draft: Option<DraftFile>,
        machine: &Machine,
        progress: &mut dyn FnMut(BuildProgress),
    ) -> Result<Loaded, BuildError> {
        let model = file.load_weights(context, self.expert_file(weights)?, progress)?;
        let draft_bytes = draft.as_ref().map_or(0, DraftFile::memory_bytes);
        let large_bytes = model.weight_bytes();
        let mut weights = match weights.disk {
            0 => WeightBytes::in_memory(large_bytes),
            _ => WeightBytes::with_experts_on_disk(large_bytes, model.expert_bytes(), file),
        };
        weights.memory = weights.memory.saturating_add(draft_bytes);
        let runner = self.runner(model, machine);
        let draft = draft.map(|draft| draft.load(&runner, large_bytes)).transpose()?;
        let threads = Some(runner.threads());
        let base = AdapterBase {
            targets: runner.adapter_targets(),
            resident: Arc::clone(runner.adapters()),
            buffers: runner.adapter_buffers(),
        };
        let kernel_packs = KernelPackBase {
            slot: Arc::clone(runner.row_kernels()),
            shapes: shapes_of(&runner),
            threads: runner.threads(),
            kernels: machine.kernels,
            memory: self.kernel_memory.clone(),
        };
        let (adapters, kernel_packs) = (Some(base), Some(kernel_packs));
        let kernels = machine.kernels.name();
        Ok(Loaded { runner: Box::new(runner), weights, draft, adapters, kernel_packs, threads, kernels })
    }

    /// Returns the memory that the model will need, without loading it.
    pub fn memory(&self) -> Result<ModelMemory, BuildError> {
        let (builder, file) = self.clone().open()?;
        let memory_bytes = self.memory_bytes.or_else(|| Hardware::detect().memory_available_bytes);
        let weights = builder.weights(&file, memory_bytes)?;
        let context = builder.chosen_context(&file, weights, memory_bytes);
        Ok(builder.memory_for(&file, context, weights))
    }

    pub(super) fn model_memory(
        &self,
        file: &ModelFile,
        context: usize,
        weights: WeightBytes,
        kv: KvSize,
    ) -> ModelMemory {
        ModelMemory {
            weights_bytes: weights.memory,
            disk_bytes: weights.disk,
            working_bytes: working_bytes(file, context, self.row_limits()),
            kv_min_bytes: kv.min_bytes.min(kv.budget_bytes),
            kv_max_bytes: kv.budget_bytes,
        }
    }

    /// Chooses kernels, threads and the memory to share.
    fn machine(&self) -> Result<Machine, BuildError> {
        let hardware = Hardware::detect();
        Ok(Machine {
            kernels: self.kernels.map_or_else(hardware::chosen_kernels, Ok)?,
            threads: self.threads.unwrap_or(hardware.cores),
            cores: self.cores.clone().unwrap_or_else(|| Arc::new(Cores::new(hardware.cores))),
            memory_bytes: self.memory_bytes.or(hardware.memory_available_bytes),
        })
    }

    /// Refuses a model that would take more memory than there is, before any is taken.
    fn check_memory(
        &self,
        file: &ModelFile,
        context: usize,
        weights: WeightBytes,
        memory_bytes: Option<u64>,
    ) -> Result<(), BuildError> {
        let needed = self.memory_for(file, context, weights);
        match memory_bytes.and_then(|bytes| usize::try_from(bytes).ok()) {
            Some(available) if needed.min_bytes() > available => {
                let remedy = self.fit_of(file)?.remedy();
                Err(BuildError::DoesNotFit { needed: Box::new(needed), available, context, remedy })
            }
            _ => Ok(()),
        }
    }

    /// Refuses a disk tier that cannot hold a page.
    fn check_disk(&self, file: &ModelFile) -> Result<(), BuildError> {
        let page = file.kv_shape().page_bytes(self.kv.tiers().hot);
        match self.disk.as_ref().map(|disk| disk.budget_bytes()) {
            Some(budget) if budget <= page as u64 => Err(BuildError::DiskTooSmall { budget, page }),
            _ => Ok(()),
        }
    }

    /// Joins a model with the threads that run it.
    fn runner(&self, model: Model, machine: &Machine) -> CpuRunner {
        let pool = Pool::sharing(Arc::clone(&machine.cores), machine.threads, machine.kernels);
        CpuRunner::with_rows(Arc::new(model), pool, self.row_limits())
    }

    /// Returns the rows of the largest batch. Fast rows pay more the more there are; logits of all of them would take much memory.
    fn row_limits(&self) -> RowLimits {
        let kernels = self.kernels.map_or_else(hardware::chosen_kernels, Ok);
        let has_fast = self.prefill != Prefill::Exact && kernels.is_ok_and(KernelSet::has_bf16);
        let rows = self.batch_rows.unwrap_or(if has_fast { FAST_BATCH_ROWS } else { BATCH_ROWS });
        let all = rows.max(self.sequences);
        RowLimits { all, logits: all.min(BATCH_ROWS.max(self.sequences)), has_fast }
    }

    fn load_sizes(&self, context: usize) -> LoadSizes {
        LoadSizes { context, sequences: self.sequences, rows_max: self.row_limits().all }
    }

    fn core_options(&self, context: usize, kv: KvSize, fingerprint: [u8; 32]) -> CoreOptions {
        let kv =
            KvOptions { budget_bytes: kv.budget_bytes, disk: self.disk.clone(), ..KvOptions::new(self.kv.tiers()) };
        CoreOptions {
            sequences_max: self.sequences,
            queue_max: QUEUE_MAX,
            queue_tokens_max: queue_tokens_max(context),
            kv,
            fingerprint,
            quotas: self.quotas.clone(),
            shares_prefixes: self.shares_prefixes,
            keeps_states: self.keeps_hidden_states,
            ..CoreOptions::new(0)
        }
    }

    /// Sets the smallest cold format that the model tolerates, as measured now or before.
    fn calibrate_cold(
        &self,
        core: &mut Core,
        tokenizer: &Tokenizer,
        context: usize,
        fingerprint: &[u8; 32],
        progress: &mut dyn FnMut(BuildProgress),
    ) -> Result<Option<ColdFormat>, BuildError> {
        // Where no text grows that long, there are no cold pages.
        if self.kv != KvChoice::Auto || context <= self.kv.tiers().warm_tokens {
            return Ok(None);
        }
        let folder = self.calibration_folder.as_deref();
        let found = match folder.and_then(|folder| ColdFormat::read(folder, fingerprint)) {
            Some(found) => found,
            None => {
                progress(BuildProgress::MeasuringKv);
                let found = ColdFormat::measure(core, tokenizer).map_err(BuildError::Calibration)?;
                store(folder, |folder| found.write(folder, fingerprint));
                found
            }
        };
        core.set_cold(found.format, found.rotation);
        Ok(Some(found))
    }

    /// Lets prompts be computed in bf16 from where that pays, as measured now or before.
    fn calibrate_prefill(
        &self,
        core: &mut Core,
        tokenizer: &Tokenizer,
        fingerprint: &[u8; 32],
        machine: &str,
        effort: Effort,
        progress: &mut dyn FnMut(BuildProgress),
    ) -> Option<FastPrefill> {
        if !core.limits().has_fast_rows {
            if self.prefill == Prefill::Fast {
                let path = self.path.display();
                tracing::warn!(
                    "{path}: --prefill fast has no effect: it needs AMX or AVX-512 BF16, and matrices of whole groups of 32 columns"
                );
            }
            return None;
        }
        if self.prefill == Prefill::Fast {
            core.set_fast_rows_min(Some(FAST_ROWS_MIN));
            return None;
        }
        // What could be measured would not hold for a larger context.
        if core.limits().context <= effort.tokens_max {
            return None;
        }
        let folder = self.calibration_folder.as_deref();
        let found = match folder.and_then(|folder| FastPrefill::read(folder, fingerprint, machine)) {
            Some(found) => found,
            None => {
                progress(BuildProgress::MeasuringPrefill);
                match FastPrefill::measure(core, tokenizer, effort) {
                    Ok(found) => {
                        store(folder, |folder| found.write(folder, fingerprint, machine));
                        found
                    }
                    Err(error) => {
                        core.set_fast_rows_min(None);
                        tracing::warn!("prompts are computed exactly, because no other way can be measured: {error}");
                        return None;
                    }
                }
            }
        };
        core.set_fast_rows_min(found.rows_min);
        Some(found)
    }
}

/// Stores what was measured for the next load. If that fails, the model is measured again then.
fn store(folder: Option<&Path>, write: impl Fn(&Path) -> io::Result<()>) {
    if let Some(Err(error)) = folder.map(write) {
        tracing::warn!("what was measured of the model cannot be kept: {error}");
    }
}

/// Makes the steps of a request that know text.
fn text_steps(
    text: TextParts,
    context: usize,
    chooses_tokens: bool,
) -> Result<(OutputCompiler, PromptEncoder), BuildError> {
    let TextParts { tokenizer, template, tool_format, reasoning_format } = text;
    let tokenizer = Arc::new(tokenizer);
    let grammars = GrammarCompiler::new(&tokenizer).map_err(BuildError::Grammars)?;
    let outputs = OutputCompiler::new(grammars, tool_format, chooses_tokens);
    Ok((outputs, PromptEncoder::new(tokenizer, template, tool_format, reasoning_format, context)))
}

/// Returns about what weights take in memory, whose tiles are padded to whole ones.
pub(super) fn padded(weights_bytes: u64) -> usize {
    usize::try_from(weights_bytes / 32 * 33).unwrap_or(usize::MAX)
}
