//! All metrics: names, descriptions, and buckets of histograms.
//!
//! Where vLLM has a metric with the same meaning, ours has its name and labels, so that existing dashboards work.
//! Others start with `ruvllm_`.

use metrics::{KeyName, Recorder, Unit};

pub(crate) const RUNNING: &str = "vllm:num_requests_running";
pub(crate) const WAITING: &str = "vllm:num_requests_waiting";
pub(crate) const KV_USAGE: &str = "vllm:kv_cache_usage_perc";
pub(crate) const PREFIX_QUERIES: &str = "vllm:prefix_cache_queries_total";
pub(crate) const PREFIX_HITS: &str = "vllm:prefix_cache_hits_total";
pub(crate) const PREEMPTIONS: &str = "vllm:num_preemptions_total";
pub(crate) const PROMPT_TOKENS: &str = "vllm:prompt_tokens_total";
pub(crate) const CACHED_TOKENS: &str = "vllm:prompt_tokens_cached_total";
pub(crate) const GENERATION_TOKENS: &str = "vllm:generation_tokens_total";
pub(crate) const SUCCESS: &str = "vllm:request_success_total";
pub(crate) const TTFT: &str = "vllm:time_to_first_token_seconds";
pub(crate) const INTER_TOKEN: &str = "vllm:inter_token_latency_seconds";
pub(crate) const E2E: &str = "vllm:e2e_request_latency_seconds";
pub(crate) const QUEUE_TIME: &str = "vllm:request_queue_time_seconds";
pub(crate) const REQUEST_PROMPT_TOKENS: &str = "vllm:request_prompt_tokens";
pub(crate) const REQUEST_GENERATION_TOKENS: &str = "vllm:request_generation_tokens";
pub(crate) const STEP_ROWS: &str = "vllm:iteration_tokens_total";
pub(crate) const STEP_SEQUENCES: &str = "ruvllm_step_sequences";

pub(crate) const KV_BYTES: &str = "ruvllm_kv_bytes";
pub(crate) const KV_BUDGET_BYTES: &str = "ruvllm_kv_budget_bytes";
pub(crate) const KV_PAGES: &str = "ruvllm_kv_pages";
pub(crate) const KV_CACHED_PAGES: &str = "ruvllm_kv_cached_pages";
pub(crate) const KV_EVICTED: &str = "ruvllm_kv_evicted_pages_total";
pub(crate) const KV_REFAULTED: &str = "ruvllm_kv_regretted_pages_total";
pub(crate) const KV_DEMOTED: &str = "ruvllm_kv_cooled_pages_total";
pub(crate) const KV_TRIMMED: &str = "ruvllm_kv_trimmed_pages_total";
pub(crate) const STATE_BYTES: &str = "ruvllm_state_bytes";
pub(crate) const STATE_SNAPSHOTS: &str = "ruvllm_state_snapshots";
pub(crate) const TIER_PAGES: &str = "ruvllm_kv_tier_pages";
pub(crate) const DISK_BYTES: &str = "ruvllm_kv_disk_bytes";
pub(crate) const DISK_PAGES: &str = "ruvllm_kv_disk_pages";
pub(crate) const DISK_WRITTEN: &str = "ruvllm_kv_disk_written_pages_total";
pub(crate) const DISK_READ: &str = "ruvllm_kv_disk_read_pages_total";
pub(crate) const ADAPTERS_REGISTERED: &str = "ruvllm_adapters_registered";
pub(crate) const ADAPTERS_HOT: &str = "ruvllm_adapters_hot";
pub(crate) const ADAPTER_BYTES: &str = "ruvllm_adapter_bytes";
pub(crate) const ADAPTER_BUFFER_BYTES: &str = "ruvllm_adapter_buffer_bytes";
pub(crate) const ADAPTER_BUDGET_BYTES: &str = "ruvllm_adapter_budget_bytes";
pub(crate) const ADAPTER_LOADS: &str = "ruvllm_adapter_loads_total";
pub(crate) const ADAPTER_EVICTIONS: &str = "ruvllm_adapter_evictions_total";
pub(crate) const ADAPTER_HITS: &str = "ruvllm_adapter_hits_total";
pub(crate) const ADAPTER_REQUESTS: &str = "ruvllm_adapter_requests_total";
pub(crate) const KERNEL_CALLS: &str = "ruvllm_kernel_calls_total";
pub(crate) const KERNEL_FAILED: &str = "ruvllm_kernel_failed_total";
pub(crate) const KERNEL_DISABLED: &str = "ruvllm_kernel_disabled";
pub(crate) const KERNEL_PACKS_WITHDRAWN: &str = "ruvllm_kernel_packs_withdrawn_total";
pub(crate) const WITNESS_WRITTEN: &str = "ruvllm_witness_written_total";
pub(crate) const WITNESS_OVERFLOWED: &str = "ruvllm_witness_overflowed_total";
pub(crate) const WITNESS_LOST: &str = "ruvllm_witness_lost_total";
pub(crate) const WITNESS_WAITING: &str = "ruvllm_witness_waiting";
pub(crate) const WITNESS_WAITING_BYTES: &str = "ruvllm_witness_waiting_bytes";
pub(crate) const RECALL_SCOPES: &str = "ruvllm_recall_scopes";
pub(crate) const RECALL_ITEMS: &str = "ruvllm_recall_items";
pub(crate) const RECALL_BYTES: &str = "ruvllm_recall_bytes";
pub(crate) const RECALL_BUDGET_BYTES: &str = "ruvllm_recall_budget_bytes";
pub(crate) const RECALL_SHARE: &str = "ruvllm_recall_share_mean";
pub(crate) const RECALL_REQUESTS: &str = "ruvllm_recall_requests_total";
pub(crate) const RECALL_TOKENS: &str = "ruvllm_recall_tokens_total";
pub(crate) const LEARNING_RUNNING: &str = "ruvllm_learning_running";
pub(crate) const LEARNED: &str = "ruvllm_learned_total";
pub(crate) const MEMORY_BUDGET: &str = "ruvllm_memory_budget_bytes";
pub(crate) const MEMORY_RESIDENT: &str = "ruvllm_memory_resident_bytes";
pub(crate) const MAJOR_PAGE_FAULTS: &str = "ruvllm_major_page_faults_total";
pub(crate) const LOG_LINES_LOST: &str = "ruvllm_log_lines_lost_total";
pub(crate) const MEMORY_PART: &str = "ruvllm_memory_part_bytes";
pub(crate) const MEMORY_MODEL: &str = "ruvllm_memory_model_bytes";
pub(crate) const BODIES_BYTES: &str = "ruvllm_http_bodies_bytes";
pub(crate) const HTTP_REQUESTS: &str = "ruvllm_http_requests_total";
pub(crate) const HTTP_DURATION: &str = "ruvllm_http_request_duration_seconds";
pub(crate) const HTTP_RUNNING: &str = "ruvllm_http_requests_running";
pub(crate) const CONNECTIONS: &str = "ruvllm_connections";

/// From a cached prompt on a small model to a long one that waited in a queue.
const LATENCY_S: &[f64] =
    &[0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 12.0, 25.0, 50.0, 100.0, 300.0, 900.0];
/// From draft tokens of one step to a step with a long prompt.
const TOKEN_S: &[f64] = &[0.001, 0.002, 0.004, 0.007, 0.01, 0.015, 0.025, 0.04, 0.07, 0.1, 0.2, 0.5, 1.0, 3.0, 10.0];
const TOKENS: &[f64] =
    &[1.0, 4.0, 16.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131072.0];

const SEQUENCES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 24.0, 32.0, 64.0, 128.0, 256.0];

pub(crate) const HISTOGRAMS: &[(&str, &[f64], &str)] = &[
    (TTFT, LATENCY_S, "Time from the arrival of a request to its first token."),
    (INTER_TOKEN, TOKEN_S, "Time between two tokens of an answer."),
    (E2E, LATENCY_S, "Time from the arrival of a request to the end of its answer."),
    (QUEUE_TIME, LATENCY_S, "Time from the arrival of a request to the start of its computation."),
    (HTTP_DURATION, LATENCY_S, "Time from the headers of an HTTP request to the end of its response."),
    (REQUEST_PROMPT_TOKENS, TOKENS, "Prompt tokens per request."),
    (REQUEST_GENERATION_TOKENS, TOKENS, "Generated tokens per request."),
    (STEP_ROWS, TOKENS, "Rows per step."),
    (STEP_SEQUENCES, SEQUENCES, "Sequences per step."),
];

const COUNTERS: &[(&str, &str)] = &[
    (PREFIX_QUERIES, "Prompt tokens that were looked up in the prefix cache."),
    (PREFIX_HITS, "Prompt tokens that were found in the prefix cache."),
    (PREEMPTIONS, "Sequences that were preempted for lack of KV memory."),
    (PROMPT_TOKENS, "Prompt tokens."),
    (CACHED_TOKENS, "Prompt tokens that were cached."),
    (GENERATION_TOKENS, "Generated tokens."),
    (SUCCESS, "Finished requests, by reason."),
    (KV_EVICTED, "Evicted pages."),
    (KV_REFAULTED, "Evicted pages that had to be computed again."),
    (KV_DEMOTED, "Pages that were demoted to a smaller format."),
    (KV_TRIMMED, "Pages that lost what layers with a window no longer need."),
    (DISK_WRITTEN, "KV pages written to disk."),
    (DISK_READ, "KV pages read from disk."),
    (ADAPTER_LOADS, "Adapters read into memory."),
    (ADAPTER_EVICTIONS, "Adapters dropped from memory."),
    (ADAPTER_HITS, "Requests whose adapter was in memory."),
    (ADAPTER_REQUESTS, "Requests by adapter; from the 65th adapter on as other."),
    (KERNEL_CALLS, "Calls of a kernel of a pack."),
    (KERNEL_FAILED, "Calls of a kernel of a pack that failed and were computed natively."),
    (KERNEL_PACKS_WITHDRAWN, "Kernel packs that were taken back because they failed or were slow."),
    (WITNESS_WRITTEN, "Entries of the witness log that were written."),
    (WITNESS_OVERFLOWED, "Entries of the witness log that were dropped because the queue was full."),
    (WITNESS_LOST, "Entries of the witness log that the store refused."),
    (RECALL_REQUESTS, "Requests that were answered with a memory of corrections."),
    (RECALL_TOKENS, "Tokens of these answers."),
    (LEARNED, "Runs of learning from feedback beside the server, by outcome."),
    (HTTP_REQUESTS, "Finished HTTP requests."),
    (LOG_LINES_LOST, "Lines of the log for which there was no room, because nobody read standard error."),
    (MAJOR_PAGE_FAULTS, "How often the process waited for the disk, as for experts that are not in memory."),
];

const GAUGES: &[(&str, &str)] = &[
    (RUNNING, "Running sequences."),
    (WAITING, "Waiting requests."),
    (KV_USAGE, "Fraction of the KV memory that running sequences use; 1 is all."),
    (KV_BYTES, "KV memory in use, with cached prefixes."),
    (KV_BUDGET_BYTES, "Maximum KV memory."),
    (KV_PAGES, "KV pages in use."),
    (KV_CACHED_PAGES, "KV pages of cached prefixes."),
    (STATE_BYTES, "Memory of recurrent states in use, with their snapshots."),
    (STATE_SNAPSHOTS, "Snapshots of recurrent states in memory."),
    (TIER_PAGES, "KV pages by format."),
    (ADAPTERS_REGISTERED, "Adapters that requests can name."),
    (ADAPTERS_HOT, "Adapters in memory."),
    (ADAPTER_BYTES, "Memory of adapters in use."),
    (ADAPTER_BUFFER_BYTES, "Buffers of batches with adapters."),
    (ADAPTER_BUDGET_BYTES, "Maximum memory of adapters."),
    (KERNEL_DISABLED, "Whether a kernel of a pack failed so often that it is not used (1)."),
    (DISK_BYTES, "Bytes of KV pages on disk."),
    (DISK_PAGES, "KV pages on disk."),
    (WITNESS_WAITING, "Entries of the witness log that wait to be written."),
    (WITNESS_WAITING_BYTES, "Memory of entries of the witness log that wait to be written."),
    (RECALL_SCOPES, "Sessions, users and tenants whose corrections are in memory."),
    (RECALL_ITEMS, "Corrections in memory."),
    (RECALL_BYTES, "Memory of corrections in use."),
    (RECALL_BUDGET_BYTES, "Maximum memory of corrections."),
    (RECALL_SHARE, "Mean share of corrections in the distributions that tokens were drawn from."),
    (LEARNING_RUNNING, "Whether feedback is being learned from (1), also while that stands still for requests."),
    (MEMORY_BUDGET, "Maximum memory of the process."),
    (MEMORY_RESIDENT, "Memory of the process in use."),
    (MEMORY_PART, "Maximum memory of parts that do not depend on models."),
    (MEMORY_MODEL, "Maximum memory of each model, by purpose."),
    (BODIES_BYTES, "Memory reserved for request bodies in flight."),
    (HTTP_RUNNING, "Running HTTP requests."),
    (CONNECTIONS, "Open connections."),
];

pub(crate) fn describe(recorder: &impl Recorder) {
    for (name, _, what) in HISTOGRAMS {
        let unit = if name.ends_with("_seconds") { Unit::Seconds } else { Unit::Count };
        recorder.describe_histogram(KeyName::from_const_str(name), Some(unit), (*what).into());
    }
    for (name, what) in COUNTERS {
        recorder.describe_counter(KeyName::from_const_str(name), None, (*what).into());
    }
    for (name, what) in GAUGES {
        recorder.describe_gauge(KeyName::from_const_str(name), None, (*what).into());
    }
}
