//! Memory that a server needs besides its models. Each part keeps its own limit; here they are added up.

use anyhow::{Result, bail};
use ruvllm_runtime::DiskStore;
use ruvllm_server::{BodyBudget, MemoryBudget, STORED_RESPONSES_BYTES_MAX};

/// Request bodies may take one part in this many of the whole.
const BODIES_SHARE: usize = 16;

/// The same of adapters, unless `--adapter-memory` says otherwise.
const ADAPTERS_SHARE: usize = 16;
const ADAPTERS_MAX: usize = 256 << 20;

/// Maximum memory of everything that does not depend on models.
pub struct FixedParts {
    /// Request bodies and what is parsed from them.
    pub bodies: usize,
    witness_queue: usize,
    disk_queue: usize,
    /// What was corrected, for those that opted in to learning.
    recall: usize,
    /// Adapters in memory, once there are some.
    pub adapters: usize,
}

impl FixedParts {
    /// Divides `memory_bytes`. The largest body always fits. `witness_queue` is the limit of the recorder, if there is one.
    pub fn new(
        memory_bytes: Option<usize>,
        body_bytes_max: usize,
        witness_queue: Option<usize>,
        has_disk: bool,
        adapters: Option<usize>,
        recall: usize,
    ) -> Self {
        let bodies_max = BodyBudget::default().bytes_max();
        let share = memory_bytes.map_or(bodies_max, |bytes| bytes / BODIES_SHARE);
        let bodies = share.clamp(BodyBudget::bytes_min(body_bytes_max).min(bodies_max), bodies_max);
        let disk_queue = if has_disk { DiskStore::QUEUE_BYTES_MAX } else { 0 };
        let adapters = adapters
            .unwrap_or_else(|| memory_bytes.map_or(ADAPTERS_MAX, |all| (all / ADAPTERS_SHARE).min(ADAPTERS_MAX)));
        Self { bodies, witness_queue: witness_queue.unwrap_or(0), disk_queue, recall, adapters }
    }

    pub fn budget(&self, memory_bytes: Option<usize>) -> Result<MemoryBudget> {
        let parts = [
            ("request bodies", self.bodies),
            ("witness queue", self.witness_queue),
            ("disk queue", self.disk_queue),
            ("corrections", self.recall),
            ("stored responses", STORED_RESPONSES_BYTES_MAX),
        ];
        let budget = MemoryBudget::new(memory_bytes, &parts, self.adapters);
        if budget.for_models() == 0 {
            let needed: usize = budget.report().parts.iter().map(|part| part.max_bytes).sum();
            bail!("--memory leaves nothing for models: the server itself needs up to {} MB", needed >> 20);
        }
        Ok(budget)
    }
}
