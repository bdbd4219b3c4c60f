//! State of loaded models, for metrics and operators.

use ruvllm_runtime::{AdapterStats, DiskStats, Engine, KernelStatus};
use serde::Serialize;
use utoipa::ToSchema;

use super::{ModelInUse, Models, Runner, ServedModel, unix_s};
use crate::metrics::{DiskSnapshot, KernelSnapshot, ModelSnapshot};

/// Adapters that metrics name at most: the longest list that a scrape should carry.
const RECENT_ADAPTERS: usize = 64;

/// A loaded model, for operators.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
pub struct LoadedModel {
    pub name: String,
    /// Whether it was named when the server started. Others may be unloaded to make room.
    pub kept: bool,
    /// Unix time.
    pub loaded_at: u64,
    pub context: usize,
    /// What runs it, such as `native`.
    pub backend: String,
    /// What computes: an instruction set, or another backend.
    pub kernels: String,
    /// `null` if the backend decides.
    pub threads: Option<usize>,
    /// From how many tokens on, cached ones aside, prompts are computed in bf16; `null` is never.
    pub fast_prefill_from: Option<usize>,
    pub running: usize,
    pub waiting: usize,
    pub kv_used_bytes: usize,
    pub kv_budget_bytes: usize,
    /// Prompt tokens, and those of them that were cached.
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub adapters: LoadedAdapters,
}

/// The adapters of a model, for operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct LoadedAdapters {
    /// That requests can name.
    pub registered: usize,
    /// In memory, with the bytes that they take and the most that they may.
    pub hot: usize,
    pub hot_bytes: usize,
    /// What batches with adapters take beside them.
    pub buffer_bytes: usize,
    pub budget_bytes: usize,
    /// How often one was read into memory, dropped from it, or found there.
    pub loads: u64,
    pub evictions: u64,
    pub hits: u64,
}

impl LoadedAdapters {
    /// Returns how many fit into memory, if all are as large as those there; of none, how many can be named.
    pub(crate) fn fitting(&self) -> usize {
        let bytes = self.hot_bytes / self.hot.max(1);
        self.budget_bytes.checked_div(bytes).unwrap_or(self.registered)
    }

    fn of(engine: &Engine) -> Self {
        let AdapterStats { registered, hot, hot_bytes, buffer_bytes, budget_bytes, loads, evictions, hits } =
            engine.adapters().stats();
        Self { registered, hot, hot_bytes, buffer_bytes, budget_bytes, loads, evictions, hits }
    }
}

fn kernel_snapshots(engine: &Engine) -> Vec<KernelSnapshot> {
    let kernels = engine.kernel_packs().status().map(|status| status.kernels).unwrap_or_default();
    let snapshot = |status: KernelStatus| KernelSnapshot {
        pack: status.pack,
        kernel: status.kernel,
        calls: status.calls,
        failed: status.failed,
        is_disabled: status.is_disabled,
    };
    kernels.into_iter().map(snapshot).collect()
}

impl ServedModel {
    fn snapshot(&self) -> ModelSnapshot {
        let Some(engine) = self.runner.generator() else {
            let (running, waiting) = (self.embedding.running(), self.embedding.waiting());
            return ModelSnapshot { name: self.name.to_string(), running, waiting, ..ModelSnapshot::default() };
        };
        let status = engine.status();
        let cache = status.cache;
        let disk = |disk: DiskStats| DiskSnapshot {
            bytes: disk.bytes,
            pages: disk.pages as u64,
            written_pages: disk.written,
            read_pages: disk.read,
        };
        ModelSnapshot {
            name: self.name.to_string(),
            running: status.running,
            waiting: status.waiting,
            kv_used_bytes: cache.used_bytes,
            kv_idle_bytes: cache.idle_bytes,
            kv_page_bytes: cache.page_bytes,
            kv_budget_bytes: cache.budget_bytes,
            kv_pages: cache.pages,
            kv_cached_pages: cache.cached_pages,
            prefix_queries: cache.lookups.tokens,
            prefix_hits: cache.lookups.tokens_saved,
            preemptions: status.pauses,
            evicted_pages: cache.evicted_pages,
            regretted_pages: cache.regretted_pages,
            cooled_pages: cache.cooled_pages,
            trimmed_pages: cache.trimmed_pages,
            state_bytes: cache.state_bytes,
            state_snapshots: cache.snapshots,
            tier_pages: status.tier_pages().map(|(format, pages)| (format, pages as u64)).collect(),
            disk: cache.disk.map(disk),
            adapters: LoadedAdapters::of(engine),
            recent_adapters: Vec::new(),
            kernels: kernel_snapshots(engine),
            kernel_packs_withdrawn: engine.kernel_packs().withdrawn(),
        }
    }

    fn describe(&self, kept: bool) -> LoadedModel {
        let (running, waiting) = (self.embedding.running(), self.embedding.waiting());
        let mut described = LoadedModel {
            name: self.name.to_string(),
            kept,
            loaded_at: unix_s(self.loaded_at),
            context: self.runner.context(),
            backend: self.runner.backend().to_owned(),
            running,
            waiting,
            ..LoadedModel::default()
        };
        match &self.runner {
            Runner::Encoder(encoder) => described.kernels = encoder.name().to_owned(),
            Runner::Reranker(reranker) => described.kernels = reranker.name().to_owned(),
            Runner::Generator(engine) => {
                let status = engine.status();
                described.kernels = engine.kernels().to_owned();
                described.threads = engine.threads();
                described.fast_prefill_from = engine.fast_rows_min();
                described.running += status.running;
                described.waiting += status.waiting;
                described.kv_used_bytes = status.cache.used_bytes;
                described.kv_budget_bytes = status.cache.budget_bytes;
                described.prompt_tokens = status.cache.lookups.tokens;
                described.adapters = LoadedAdapters::of(engine);
                described.cached_tokens = status.cache.lookups.tokens_saved;
            }
        }
        described
    }
}

impl Models {
    /// Returns the state for a scrape of metrics.
    pub fn snapshots(&self) -> Vec<ModelSnapshot> {
        let snapshot = |model: &ModelInUse| {
            let recent = model.runner.generator().map(|engine| engine.adapters().recent(RECENT_ADAPTERS));
            let name = |id| Some(self.adapter_name(id)?.to_string());
            let recent_adapters = recent.unwrap_or_default().into_iter().filter_map(name).collect();
            ModelSnapshot { recent_adapters, ..model.snapshot() }
        };
        self.all_loaded().iter().map(snapshot).collect()
    }

    /// Returns whether requests are answered now, or wait for that.
    pub fn is_busy(&self) -> bool {
        let is_busy = |model: &ServedModel| match &model.runner {
            Runner::Generator(engine) => {
                let status = engine.status();
                status.running + status.waiting > 0
            }
            Runner::Encoder(_) | Runner::Reranker(_) => model.embedding.running() + model.embedding.waiting() > 0,
        };
        self.slots().values().filter_map(|slot| slot.model.get()).any(|model| is_busy(model))
    }

    /// Returns the state for operators.
    pub fn describe(&self) -> Vec<LoadedModel> {
        let mut all: Vec<LoadedModel> =
            self.slots().values().filter_map(|slot| Some(slot.model.get()?.describe(slot.is_pinned))).collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }
}
