//! Decides the context and the KV budget.

use ruvllm_engine::{Core, KvOptions, Quota, Tenant};
use ruvllm_kv::KvCache;
use ruvllm_runner::{PAGE_TOKENS, PageFormat};

use super::model_file::{ModelFile, Plan};
use super::{BuildError, EngineBuilder};

/// Longer contexts must be asked for: tables for every position are made at load.
const CONTEXT_DEFAULT_MAX: usize = 131_072;
/// A default context may take a quarter of the free memory for the KV pages of one sequence.
const CONTEXT_MEMORY_DIVISOR: usize = 4;
/// A default KV budget takes half of the free memory or less.
const BUDGET_MEMORY_DIVISOR: usize = 2;
/// Room beyond the longest texts of all sequences, as a fraction: eviction begins when 85 % of the budget are in use.
const KV_SLACK: (usize, usize) = (5, 4);

/// The KV memory of an engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct KvSize {
    pub budget_bytes: usize,
    /// What one text of the whole context fills, and what tenants are guaranteed.
    pub min_bytes: usize,
    /// What all sequences can fill.
    pub max_bytes: usize,
}

impl KvSize {
    /// Sizes the KV memory of an engine in `memory_bytes` of memory.
    pub(super) fn new(
        builder: &EngineBuilder,
        file: &ModelFile,
        context: usize,
        memory_bytes: Option<u64>,
    ) -> Result<Self, BuildError> {
        let bounds = Self::bounds(builder, file, context);
        let Self { min_bytes, max_bytes, .. } = bounds;
        let affordable = memory_bytes.and_then(|bytes| usize::try_from(bytes).ok());
        let affordable = affordable.map_or(max_bytes, |bytes| bytes / BUDGET_MEMORY_DIVISOR);
        let budget_bytes = builder.kv_budget_bytes.unwrap_or_else(|| max_bytes.min(affordable).max(min_bytes));
        let guaranteed = guaranteed_bytes(&builder.quotas);
        if guaranteed > budget_bytes / 2 {
            return Err(BuildError::Guarantees { guaranteed, budget: budget_bytes });
        }
        Ok(Self { budget_bytes, ..bounds })
    }

    /// Sizes the KV memory as if there were enough of it.
    pub(super) fn bounds(builder: &EngineBuilder, file: &ModelFile, context: usize) -> Self {
        let sidecar_bytes = if builder.keeps_hidden_states { Core::state_bytes(file.hidden()) } else { 0 };
        let kv = KvOptions { sidecar_bytes, ..KvOptions::new(builder.kv.tiers()) };
        let pages = KvCache::pages_for(context);
        let all = pages.saturating_mul(builder.sequences).saturating_mul(KV_SLACK.0) / KV_SLACK.1;
        let guaranteed = guaranteed_bytes(&builder.quotas).saturating_mul(2);
        let with_states = |pages: usize, sequences: usize| {
            let paged = kv.budget_for(file.kv_shape(), pages);
            match &file.plan {
                Plan::Native(config) => KvOptions::budget_with_states(paged, config.state_shape().bytes()),
                Plan::Other(_, model) => KvOptions::budget_with_slots(paged, model.state_bytes(context), sequences),
            }
        };
        let min_bytes = with_states(pages + 2, 1).max(guaranteed);
        let max_bytes = with_states(all + 1, builder.sequences).max(min_bytes);
        Self { budget_bytes: builder.kv_budget_bytes.unwrap_or(max_bytes), min_bytes, max_bytes }
    }
}

fn guaranteed_bytes(quotas: &[(Tenant, Quota)]) -> usize {
    quotas.iter().map(|(_, quota)| quota.guaranteed_bytes).sum()
}

/// Returns the context that the model was made for, unless that is very long or its KV pages would fill the memory.
pub(super) fn default_context(file: &ModelFile, memory_bytes: Option<u64>) -> usize {
    let model = file.context().min(CONTEXT_DEFAULT_MAX);
    let token_bytes = (file.kv_shape().page_bytes(PageFormat::F16) / PAGE_TOKENS).max(1);
    let memory_bytes = memory_bytes.and_then(|bytes| usize::try_from(bytes).ok());
    let affordable = memory_bytes.map_or(model, |bytes| bytes / CONTEXT_MEMORY_DIVISOR / token_bytes);
    model.min(affordable).max(1)
}
