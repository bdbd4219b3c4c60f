//! What a server takes of its memory beside models.

use anyhow::{Result, bail};
use ruvllm_server::{BodyBudget, MemoryBudget};

/// Parsed JSON takes up to 16 times its bytes, in three quarters of the budget for bodies.
const BODY_FACTOR: usize = 22;
/// The share of the whole that bodies of requests may take.
const BODIES_SHARE: usize = 16;

/// The largest that these may become; each holds its own limit.
const WITNESS_QUEUE: usize = 64 << 20;
const DISK_QUEUE: usize = 64 << 20;
const STORED_RESPONSES: usize = 64 << 20;

/// Memory for what does not depend on models, at most.
pub struct Parts {
    /// Bodies of requests and what they become.
    pub bodies: usize,
    witness_queue: usize,
    disk_queue: usize,
}

impl Parts {
    /// The largest body fits whatever the memory is.
    pub fn new(memory_bytes: Option<usize>, body_bytes_max: usize, remembers: bool, has_disk: bool) -> Self {
        let most = BodyBudget::default().bytes_max();
        let share = memory_bytes.map_or(most, |bytes| bytes / BODIES_SHARE);
        let bodies = share.clamp(body_bytes_max.saturating_mul(BODY_FACTOR).min(most), most);
        let queue = |is_there: bool, bytes: usize| if is_there { bytes } else { 0 };
        Self { bodies, witness_queue: queue(remembers, WITNESS_QUEUE), disk_queue: queue(has_disk, DISK_QUEUE) }
    }

    pub fn budget(&self, memory_bytes: Option<usize>) -> Result<MemoryBudget> {
        let parts = [
            ("request bodies", self.bodies),
            ("witness queue", self.witness_queue),
            ("disk queue", self.disk_queue),
            ("stored responses", STORED_RESPONSES),
        ];
        let budget = MemoryBudget::new(memory_bytes, &parts);
        if budget.for_models() == 0 {
            let needed: usize = budget.report().parts.iter().map(|part| part.max_bytes).sum();
            bail!("--memory leaves nothing for models: the server itself may need {} MB", needed >> 20);
        }
        Ok(budget)
    }
}
