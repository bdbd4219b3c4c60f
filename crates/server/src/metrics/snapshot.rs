//! State of a model's engine at a scrape.

use std::collections::BTreeSet;

use super::{Metrics, names};
use crate::models::LoadedAdapters;

/// State of one loaded model. Counters start when it is loaded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelSnapshot {
    pub name: String,
    pub running: usize,
    pub waiting: usize,
    pub kv_used_bytes: usize,
    /// Of these, cached prefixes that no sequence uses.
    pub kv_idle_bytes: usize,
    /// Of a page in the format that new ones have; 0 for models without a cache.
    pub kv_page_bytes: usize,
    pub kv_budget_bytes: usize,
    pub kv_pages: usize,
    pub kv_cached_pages: usize,
    /// Tokens that were looked up in the prefix cache, and those found.
    pub prefix_queries: u64,
    pub prefix_hits: u64,
    pub preemptions: u64,
    pub evicted_pages: u64,
    pub regretted_pages: u64,
    pub cooled_pages: u64,
    pub trimmed_pages: u64,
    pub state_bytes: usize,
    pub state_snapshots: usize,
    /// Pages by format, if known.
    pub tier_pages: Vec<(String, u64)>,
    /// `None` without a disk tier.
    pub disk: Option<DiskSnapshot>,
    pub adapters: LoadedAdapters,
    /// Names of adapters in memory, those first that were used last.
    pub recent_adapters: Vec<String>,
    pub kernels: Vec<KernelSnapshot>,
    /// Kernel packs that were taken back because they failed or were slow.
    pub kernel_packs_withdrawn: u64,
}

/// A kernel of a pack. Counters start when the pack is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelSnapshot {
    /// With its version.
    pub pack: String,
    pub kernel: String,
    pub calls: u64,
    pub failed: u64,
    pub is_disabled: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskSnapshot {
    pub bytes: u64,
    pub pages: u64,
    pub written_pages: u64,
    pub read_pages: u64,
}

impl Metrics {
    /// Copies the state of the engines. Models that are gone have nothing running.
    pub(super) fn take_over(&self, snapshots: &[ModelSnapshot]) {
        for snapshot in snapshots {
            self.take_over_model(snapshot);
        }
        let now: BTreeSet<String> = snapshots.iter().map(|snapshot| snapshot.name.clone()).collect();
        let mut seen = self.seen.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        for gone in seen.difference(&now) {
            for name in [names::RUNNING, names::WAITING, names::KV_USAGE, names::KV_BYTES, names::KV_PAGES] {
                self.gauge(name, &[("model_name", gone)]).set(0.0);
            }
            for part in ["weights", "working", "kv"] {
                self.gauge(names::MEMORY_MODEL, &[("model_name", gone), ("part", part)]).set(0.0);
            }
        }
        *seen = now;
    }

    fn take_over_model(&self, snapshot: &ModelSnapshot) {
        let model = [("model_name", snapshot.name.as_str())];
        let budget_bytes = snapshot.kv_budget_bytes as f64;
        // Without what goes where room is needed: routers avoid workers that look full.
        let needed_bytes = snapshot.kv_used_bytes.saturating_sub(snapshot.kv_idle_bytes) as f64;
        let usage = if budget_bytes > 0.0 { needed_bytes / budget_bytes } else { 0.0 };
        for (name, value) in [
            (names::RUNNING, snapshot.running as f64),
            (names::WAITING, snapshot.waiting as f64),
            (names::KV_USAGE, usage),
            (names::KV_BYTES, snapshot.kv_used_bytes as f64),
            (names::KV_BUDGET_BYTES, budget_bytes),
            (names::KV_PAGES, snapshot.kv_pages as f64),
            (names::KV_CACHED_PAGES, snapshot.kv_cached_pages as f64),
            (names::STATE_BYTES, snapshot.state_bytes as f64),
            (names::STATE_SNAPSHOTS, snapshot.state_snapshots as f64),
        ] {
            self.gauge(name, &model).set(value);
        }
        for (name, count) in [
            (names::PREFIX_QUERIES, snapshot.prefix_queries),
            (names::PREFIX_HITS, snapshot.prefix_hits),
            (names::PREEMPTIONS, snapshot.preemptions),
            (names::KV_EVICTED, snapshot.evicted_pages),
            (names::KV_REFAULTED, snapshot.regretted_pages),
            (names::KV_DEMOTED, snapshot.cooled_pages),
            (names::KV_TRIMMED, snapshot.trimmed_pages),
        ] {
            self.counter(name, &model).absolute(count);
        }
        let adapters = &snapshot.adapters;
        for (name, value) in [
            (names::ADAPTERS_REGISTERED, adapters.registered),
            (names::ADAPTERS_HOT, adapters.hot),
            (names::ADAPTER_BYTES, adapters.hot_bytes),
            (names::ADAPTER_BUFFER_BYTES, adapters.buffer_bytes),
            (names::ADAPTER_BUDGET_BYTES, adapters.budget_bytes),
        ] {
            self.gauge(name, &model).set(value as f64);
        }
        for (name, count) in [
            (names::ADAPTER_LOADS, adapters.loads),
            (names::ADAPTER_EVICTIONS, adapters.evictions),
            (names::ADAPTER_HITS, adapters.hits),
        ] {
            self.counter(name, &model).absolute(count);
        }
        self.counter(names::KERNEL_PACKS_WITHDRAWN, &model).absolute(snapshot.kernel_packs_withdrawn);
        for kernel in &snapshot.kernels {
            let labels = [model[0], ("pack", kernel.pack.as_str()), ("kernel", kernel.kernel.as_str())];
            self.counter(names::KERNEL_CALLS, &labels).absolute(kernel.calls);
            self.counter(names::KERNEL_FAILED, &labels).absolute(kernel.failed);
            self.gauge(names::KERNEL_DISABLED, &labels).set(f64::from(u8::from(kernel.is_disabled)));
        }
        for (format, pages) in &snapshot.tier_pages {
            self.gauge(names::TIER_PAGES, &[model[0], ("format", format)]).set(*pages as f64);
        }
        if let Some(disk) = &snapshot.disk {
            self.gauge(names::DISK_BYTES, &model).set(disk.bytes as f64);
            self.gauge(names::DISK_PAGES, &model).set(disk.pages as f64);
            self.counter(names::DISK_WRITTEN, &model).absolute(disk.written_pages);
            self.counter(names::DISK_READ, &model).absolute(disk.read_pages);
        }
    }
}
