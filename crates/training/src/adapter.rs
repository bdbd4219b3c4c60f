//! The result of a run as an adapter of PEFT.

use std::path::Path;

use ruvllm_model::adapters::{TrainedAdapter, TrainedModule, write_trained};
use ruvllm_runner::TokenId;
use serde_json::json;

use crate::{TrainError, Trainer};

/// What is said of an adapter beside its factors.
#[derive(Clone, Copy, Debug, Default)]
pub struct AdapterLabel<'a> {
    /// Name of the base model.
    pub base_model: Option<&'a str>,
    /// Tokens that switch it on, if it is an activated one.
    pub invocation: Option<&'a [TokenId]>,
}

impl Trainer {
    /// Writes the factors to a new folder, with what they were made of. Returns the bytes written.
    pub fn write(&self, folder: &Path, label: AdapterLabel<'_>) -> Result<u64, TrainError> {
        let (weights, base) = (self.factors(), self.base());
        let recipe = self.recipe();
        let modules = weights.modules.iter().map(|module| {
            let part = &base.layers[module.layer].sites[module.site].parts[module.part];
            TrainedModule {
                layer: module.layer,
                tensor: module.tensor,
                rotated_heads: part.rotated_heads,
                is_fused: part.is_fused,
                rows: module.rows,
                cols: module.cols,
                rank: weights.rank,
                a: &weights.numbers[module.a.clone()],
                b: &weights.numbers[module.b.clone()],
            }
        });
        let adapter = TrainedAdapter {
            architecture: &base.config().architecture,
            base_model: label.base_model,
            invocation: label.invocation,
            recipe: &recipe,
            scale: weights.scale,
            modules: modules.collect(),
        };
        Ok(write_trained(folder, &adapter)?)
    }

    /// Says how the adapter was made, as JSON.
    fn recipe(&self) -> String {
        let ((base, data), [training, replay, validation]) = (self.digests(), self.item_counts());
        json!({
            "method": "trained",
            "base": base,
            "data": data,
            "items": { "training": training, "replay": replay, "validation": validation },
            "options": self.options(),
            "steps": self.progress.step,
            "tokens": self.progress.tokens,
            "losses": self.progress.evaluations,
        })
        .to_string()
    }
}
