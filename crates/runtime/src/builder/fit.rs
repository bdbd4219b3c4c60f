//! Whether a model fits into memory, before anything of it is loaded, and what would.

use ruvllm_kernels::WeightType;
use ruvllm_model::quantize::{self, Recipe};

use super::build::padded;
use super::expert_place::WeightBytes;
use super::kv_size::{KvSize, default_context};
use super::model_file::{ModelFile, Plan};
use super::{BuildError, EngineBuilder, ModelMemory};
use crate::hardware::Hardware;

/// What a file is recommended to be quantized to, the best first.
const RECIPES: [Recipe; 5] = [
    Recipe::Uniform(WeightType::Q8_0),
    Recipe::Uniform(WeightType::Q6K),
    Recipe::Uniform(WeightType::Q5K),
    Recipe::Q4KM,
    Recipe::Uniform(WeightType::Q4_0),
];
/// Shorter contexts are of little use: a model that has no room for one had better be smaller.
pub(super) const CONTEXT_USEFUL: usize = 4096;

/// Keys and values of a context of use, at most and as a share of the file: small models have more of them for their size.
const KV_BYTES_MAX: u64 = 640 << 20;
/// Buffers of a step, tokenizer and queue.
const BUFFER_BYTES: u64 = 256 << 20;

/// Returns about what a model file of this size takes in memory with a context of use, if nothing else is known of it:
/// weights and their padding, keys and values, buffers.
pub fn memory_of_file(file_bytes: u64) -> u64 {
    let parts = [file_bytes, file_bytes / 16, file_bytes.min(KV_BYTES_MAX), BUFFER_BYTES];
    parts.into_iter().fold(0, u64::saturating_add)
}

/// Returns the size of the largest model file that fits into so much memory.
pub fn largest_file(memory_bytes: u64) -> u64 {
    let (mut fits, mut too_large) = (0, memory_bytes);
    while fits + 1 < too_large {
        let middle = fits + (too_large - fits) / 2;
        *(if memory_of_file(middle) <= memory_bytes { &mut fits } else { &mut too_large }) = middle;
    }
    fits
}

/// What a model would take, and what there is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fit {
    /// The context that was asked for, or that would be chosen.
    pub context: usize,
    /// Of the model.
    pub context_max: usize,
    /// For one sequence of that context.
    pub memory: ModelMemory,
    /// Memory that can be had, where the system tells.
    pub memory_bytes: Option<usize>,
    /// The longest context that fits.
    pub context_fits: Option<usize>,
    pub threads: usize,
    pub quantizations: Vec<Quantization>,
}

/// What `ruvllm quantize` would make of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quantization {
    pub recipe: Recipe,
    pub file_bytes: u64,
    /// The longest context that would fit.
    pub context_fits: Option<usize>,
}

impl Fit {
    pub fn fits(&self) -> bool {
        self.memory_bytes.is_none_or(|bytes| self.memory.min_bytes() <= bytes)
    }

    /// Returns the best quantization that leaves room for a context of use.
    pub fn recommended(&self) -> Option<&Quantization> {
        let useful = self.context_max.min(CONTEXT_USEFUL);
        self.quantizations.iter().find(|one| one.context_fits.is_some_and(|context| context >= useful))
    }

    /// Says what can be done about a model that does not fit.
    pub fn remedy(&self) -> String {
        let useful = self.context_max.min(CONTEXT_USEFUL);
        match (self.context_fits, self.recommended()) {
            (Some(context), _) if context >= useful => format!("a context of {context} fits (--context {context})"),
            (_, Some(one)) => {
                let context = one.context_fits.unwrap_or(0).min(self.context);
                format!("quantized to {}, it fits with a context of {context} (ruvllm quantize)", one.recipe)
            }
            (Some(context), None) => format!("at most a context of {context} fits (--context {context})"),
            (None, None) => "no quantization of it fits either; choose a smaller model".to_owned(),
        }
    }
}

impl EngineBuilder {
    /// Works out what the model would take, without loading it.
    pub fn fit(&self) -> Result<Fit, BuildError> {
        let (builder, file) = self.clone().open()?;
        builder.fit_of(&file)
    }

    pub(super) fn fit_of(&self, file: &ModelFile) -> Result<Fit, BuildError> {
        let hardware = Hardware::detect();
        let memory_bytes = self.memory_bytes.or(hardware.memory_available_bytes);
        let weights = self.weights(file, memory_bytes)?;
        let context = self.chosen_context(file, weights, memory_bytes);
        let memory_bytes = memory_bytes.and_then(|bytes| usize::try_from(bytes).ok());
        // Only the native backend runs all that `ruvllm quantize` writes.
        let recipes = RECIPES.into_iter().filter(|_| matches!(file.plan, Plan::Native(_)));
        let smaller = recipes.filter_map(|recipe| {
            let plan = quantize::Plan::new(&file.gguf, recipe).ok()?;
            let bytes: u64 = plan.tensors.iter().map(|tensor| tensor.bytes).sum();
            let in_memory = WeightBytes::in_memory(padded(bytes));
            (bytes < file.weights_bytes()).then(|| Quantization {
                recipe,
                file_bytes: plan.file_bytes,
                context_fits: self.longest_context(file, in_memory, memory_bytes),
            })
        });
        Ok(Fit {
            context,
            context_max: file.context(),
            memory: self.memory_for(file, context, weights),
            memory_bytes,
            context_fits: self.longest_context(file, weights, memory_bytes),
            threads: self.threads.unwrap_or(hardware.cores),
            quantizations: smaller.collect(),
        })
    }

    pub(super) fn memory_for(&self, file: &ModelFile, context: usize, weights: WeightBytes) -> ModelMemory {
        let kv = KvSize::bounds(self, file, context);
        self.model_memory(file, context, weights, kv)
    }

    /// Returns the context that was asked for, or what suits the model and the memory.
    pub(super) fn chosen_context(&self, file: &ModelFile, weights: WeightBytes, memory_bytes: Option<u64>) -> usize {
        self.context.unwrap_or_else(|| {
            let affordable = memory_bytes.and_then(|bytes| usize::try_from(bytes).ok());
            let fitting = self.longest_context(file, weights, affordable);
            default_context(file, memory_bytes).min(fitting.unwrap_or(usize::MAX))
        })
    }

    /// Returns the longest context for which there is memory, up to the model's own.
    fn longest_context(&self, file: &ModelFile, weights: WeightBytes, memory_bytes: Option<usize>) -> Option<usize> {
        let Some(memory_bytes) = memory_bytes else { return Some(file.context()) };
        let fits = |context: usize| self.memory_for(file, context, weights).min_bytes() <= memory_bytes;
        if fits(file.context()) {
            return Some(file.context());
        }
        // What fits is found by halves: more context never takes less.
        let (mut fitting, mut too_long) = (0, file.context());
        while fitting + 1 < too_long {
            let middle = fitting + (too_long - fitting) / 2;
            *(if fits(middle) { &mut fitting } else { &mut too_long }) = middle;
        }
        // Round figures, where there are any.
        let round = if fitting >= 2048 { fitting / 1024 * 1024 } else { fitting };
        (round > 0).then_some(round)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_file_is_one_that_just_fits() {
        for memory in [0, 1, BUFFER_BYTES, 1 << 30, 16 << 30, 1 << 45] {
            let largest = largest_file(memory);
            assert!(largest == 0 || memory_of_file(largest) <= memory, "{memory}");
            assert!(memory_of_file(largest + 1) > memory, "{memory}");
        }
    }
}
