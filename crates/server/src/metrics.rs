//! Metrics for Prometheus, rendered at `/metrics`.
//!
//! There is no global recorder: code that counts is given [`Metrics`], or the [`ModelMetrics`] of a model. Counters of
//! engines are copied at each scrape ([`ModelSnapshot`]).

mod info;
mod model;
mod names;
mod snapshot;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusRecorder};
use ruvllm_memory::RecorderStats;
use ruvllm_runtime::{RecallStats, hardware};

use crate::log::lost_lines;
use crate::memory_budget::MemoryReport;
use crate::models::unix_s;

pub use model::{Finished, FinishedReason, ModelMetrics};
pub use snapshot::{DiskSnapshot, KernelSnapshot, ModelSnapshot};

/// Returns the state of all loaded models; called at each scrape.
pub type Snapshots = Arc<dyn Fn() -> Vec<ModelSnapshot> + Send + Sync>;

const METADATA: Metadata<'static> = Metadata::new("ruvllm", Level::INFO, None);

/// Maximum number of adapters with a counter of their own.
const ADAPTER_LABELS_MAX: usize = 64;

#[derive(Debug)]
pub struct Metrics {
    recorder: Arc<PrometheusRecorder>,
    http_running: Gauge,
    /// Models at the last scrape.
    seen: Mutex<BTreeSet<String>>,
    /// Models and adapters that have counters of their own.
    adapters: Mutex<BTreeSet<(String, String)>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let builder = names::HISTOGRAMS.iter().fold(PrometheusBuilder::new(), |builder, (name, buckets, _)| {
            let builder = builder.set_buckets_for_metric(Matcher::Full((*name).to_owned()), buckets);
            builder.expect("every histogram has buckets")
        });
        let recorder = Arc::new(builder.build_recorder());
        names::describe(&*recorder);
        let http_running = recorder.register_gauge(&Key::from_static_name(names::HTTP_RUNNING), &METADATA);
        http_running.set(0.0);
        Self { recorder, http_running, seen: Mutex::default(), adapters: Mutex::default() }
    }
}

impl Metrics {
    /// Returns the metrics of a model.
    pub fn model(&self, name: &str) -> ModelMetrics {
        ModelMetrics::new(self, name)
    }

    /// Counts a request that is answered with an adapter. Names come from clients, so only the first have counters of their own.
    pub(crate) fn adapter_requested(&self, model: &str, adapter: &str) {
        let mut known = self.adapters.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let key = (model.to_owned(), adapter.to_owned());
        let is_known = known.contains(&key) || (known.len() < ADAPTER_LABELS_MAX && known.insert(key));
        let adapter = if is_known { adapter } else { "other" };
        self.counter(names::ADAPTER_REQUESTS, &[("model_name", model), ("adapter", adapter)]).increment(1);
    }

    /// Says that learning from feedback begins.
    pub fn learning_begins(&self) {
        self.gauge(names::LEARNING_RUNNING, &[]).set(1.0);
    }

    /// Says that it has ended, and with what; without an outcome nothing was learned.
    pub fn learning_ended(&self, outcome: Option<&'static str>) {
        self.gauge(names::LEARNING_RUNNING, &[]).set(0.0);
        if let Some(outcome) = outcome {
            self.counter(names::LEARNED, &[("outcome", outcome)]).increment(1);
        }
    }

    /// Renders the text for Prometheus.
    pub fn render(&self, snapshots: &[ModelSnapshot]) -> String {
        self.take_over(snapshots);
        let mut text = self.recorder.handle().render();
        info::write(snapshots, unix_s(SystemTime::now()), &mut text);
        text
    }

    /// Copies the counters of the memory's recorder, at each scrape.
    pub fn witness(&self, stats: RecorderStats) {
        self.counter(names::WITNESS_WRITTEN, &[]).absolute(stats.written);
        self.counter(names::WITNESS_OVERFLOWED, &[]).absolute(stats.overflowed);
        self.counter(names::WITNESS_LOST, &[]).absolute(stats.lost);
        self.gauge(names::WITNESS_WAITING, &[]).set(stats.waiting as f64);
        self.gauge(names::WITNESS_WAITING_BYTES, &[]).set(stats.waiting_bytes as f64);
    }

    /// Copies the figures of what answers are drawn with, at each scrape.
    pub fn recall(&self, stats: &RecallStats) {
        let gauges = [
            (names::RECALL_SCOPES, stats.scopes as f64),
            (names::RECALL_ITEMS, stats.items as f64),
            (names::RECALL_BYTES, stats.bytes as f64),
            (names::RECALL_BUDGET_BYTES, stats.bytes_max as f64),
            (names::RECALL_SHARE, stats.share_mean),
        ];
        gauges.into_iter().for_each(|(name, value)| self.gauge(name, &[]).set(value));
        self.counter(names::RECALL_REQUESTS, &[]).absolute(stats.requests);
        self.counter(names::RECALL_TOKENS, &[]).absolute(stats.tokens);
    }

    /// Copies how the memory is divided, and what request bodies use of their part.
    pub fn memory(&self, report: &MemoryReport, bodies_bytes: usize) {
        let sizes = [(names::MEMORY_BUDGET, report.budget_bytes), (names::MEMORY_RESIDENT, report.resident_bytes)];
        for (name, bytes) in sizes.into_iter().filter_map(|(name, bytes)| Some((name, bytes?))) {
            self.gauge(name, &[]).set(bytes as f64);
        }
        self.gauge(names::BODIES_BYTES, &[]).set(bodies_bytes as f64);
        self.counter(names::LOG_LINES_LOST, &[]).absolute(lost_lines());
        if let Some(faults) = hardware::major_page_faults() {
            self.counter(names::MAJOR_PAGE_FAULTS, &[]).absolute(faults);
        }
        for part in &report.parts {
            self.gauge(names::MEMORY_PART, &[("part", part.part)]).set(part.max_bytes as f64);
        }
        for share in &report.models {
            let parts = [
                ("weights", share.weights_bytes),
                ("experts_on_disk", share.experts_on_disk_bytes),
                ("working", share.working_bytes),
                ("adapter_buffers", share.adapter_buffer_bytes),
                ("kv", share.kv_bytes),
            ];
            for (part, bytes) in parts {
                self.gauge(names::MEMORY_MODEL, &[("model_name", &share.model), ("part", part)]).set(bytes as f64);
            }
        }
    }

    /// Sorts recorded times into their buckets. Must be called periodically: until then each one uses memory.
    pub fn maintain(&self) {
        self.recorder.handle().run_upkeep();
    }

    /// Counts an HTTP request; the returned value records how it ended.
    pub(crate) fn http_started(self: &Arc<Self>, method: &str, endpoint: Option<&str>) -> HttpRequest {
        self.http_running.increment(1.0);
        HttpRequest {
            metrics: Arc::clone(self),
            method: known_method(method),
            endpoint: endpoint.unwrap_or("unknown").to_owned(),
            started: Instant::now(),
        }
    }

    pub(crate) fn connections(&self) -> Gauge {
        self.gauge(names::CONNECTIONS, &[])
    }

    fn counter(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Counter {
        self.recorder.register_counter(&key(name, labels), &METADATA)
    }

    fn gauge(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Gauge {
        self.recorder.register_gauge(&key(name, labels), &METADATA)
    }

    fn histogram(&self, name: &'static str, labels: &[(&'static str, &str)]) -> Histogram {
        self.recorder.register_histogram(&key(name, labels), &METADATA)
    }
}

fn key(name: &'static str, labels: &[(&'static str, &str)]) -> Key {
    let labels: Vec<Label> = labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())).collect();
    Key::from_parts(name, labels)
}

/// Clients can invent methods, and each value of a label uses memory forever.
fn known_method(method: &str) -> &'static str {
    const KNOWN: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
    KNOWN.into_iter().find(|known| *known == method).unwrap_or("other")
}

/// A running HTTP request.
#[derive(Debug)]
pub(crate) struct HttpRequest {
    metrics: Arc<Metrics>,
    method: &'static str,
    endpoint: String,
    started: Instant,
}

impl HttpRequest {
    pub(crate) fn took(&self) -> Duration {
        self.started.elapsed()
    }

    pub(crate) fn ended(&self, status: u16, model: Option<&str>) {
        let metrics = &self.metrics;
        metrics.http_running.decrement(1.0);
        let status = status.to_string();
        let labels = [
            ("endpoint", self.endpoint.as_str()),
            ("method", self.method),
            ("status", &status),
            ("model_name", model.unwrap_or_default()),
        ];
        metrics.counter(names::HTTP_REQUESTS, &labels).increment(1);
        metrics.histogram(names::HTTP_DURATION, &labels[..1]).record(self.took());
    }
}

#[cfg(test)]
mod tests;
