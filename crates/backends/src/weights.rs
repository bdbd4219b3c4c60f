//! Tensors of a safetensors file, each taken once and with the shape that the configuration demands.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::path::Path;

use candle_core::safetensors::SliceSafetensors;
use candle_core::{DType, Device, Tensor};
use candle_nn::{LayerNorm, Linear};
use ruvllm_model::formats::map::FileBytes;

use crate::error::LoadError;

/// A tensor that every supported model has. Some files put a prefix before all names.
const KNOWN_TENSOR: &str = "embeddings.word_embeddings.weight";
/// Prefixes of tensors that must all be used: otherwise the model would not be computed as it was trained.
const TRUNK: [&str; 2] = ["embeddings.", "encoder."];
/// A table of 0, 1, 2, … that some files hold.
const POSITION_IDS: &str = "embeddings.position_ids";

pub(crate) struct Weights<'a> {
    file: SliceSafetensors<'a>,
    prefix: String,
    unused: RefCell<BTreeSet<String>>,
}

impl<'a> Weights<'a> {
    pub(crate) fn new(bytes: &'a FileBytes, path: &Path) -> Result<Self, LoadError> {
        let unusable = |why: String| LoadError::Weights { path: path.to_owned(), why };
        let file = SliceSafetensors::new(bytes).map_err(|error| unusable(error.to_string()))?;
        let names: BTreeSet<String> = file.tensors().into_iter().map(|(name, _)| name).collect();
        let prefix = names.iter().find_map(|name| name.strip_suffix(KNOWN_TENSOR));
        let prefix = prefix.ok_or_else(|| LoadError::NoTensor { name: KNOWN_TENSOR.to_owned() })?.to_owned();
        Ok(Self { file, prefix, unused: RefCell::new(names) })
    }

    /// Returns the tensor of this name as floats.
    pub(crate) fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor, LoadError> {
        self.take(format!("{}{name}", self.prefix), shape)
    }

    fn take(&self, full: String, shape: &[usize]) -> Result<Tensor, LoadError> {
        if !self.unused.borrow_mut().remove(&full) {
            return Err(LoadError::NoTensor { name: full });
        }
        let view = self.file.get(&full)?;
        // Before it is copied: nothing is allocated for what a file only claims.
        if view.shape() != shape {
            return Err(LoadError::Shape { name: full, expected: shape.to_vec(), got: view.shape().to_vec() });
        }
        let tensor = self.file.load(&full, &Device::Cpu)?;
        match tensor.dtype() {
            DType::F32 => Ok(tensor),
            DType::F16 | DType::BF16 => Ok(tensor.to_dtype(DType::F32)?),
            other => Err(LoadError::NumberType { name: full, got: other.as_str().to_uppercase() }),
        }
    }

    pub(crate) fn linear(&self, name: &str, inputs: usize, outputs: usize) -> Result<Linear, LoadError> {
        let weight = self.tensor(&format!("{name}.weight"), &[outputs, inputs])?;
        let bias = self.tensor(&format!("{name}.bias"), &[outputs])?;
        Ok(Linear::new(weight, Some(bias)))
    }

    /// Returns a layer of a head, whose names have no prefix.
    pub(crate) fn head(&self, name: &str, inputs: usize, outputs: usize) -> Result<Linear, LoadError> {
        let weight = self.take(format!("{name}.weight"), &[outputs, inputs])?;
        let bias = self.take(format!("{name}.bias"), &[outputs])?;
        Ok(Linear::new(weight, Some(bias)))
    }

    /// Joins several layers with the same inputs into one, which is faster.
    pub(crate) fn joined(&self, names: &[String], inputs: usize, outputs: usize) -> Result<Linear, LoadError> {
        let all = |suffix: &str, shape: &[usize]| {
            let each = names.iter().map(|name| self.tensor(&format!("{name}.{suffix}"), shape));
            Ok::<_, LoadError>(Tensor::cat(&each.collect::<Result<Vec<_>, _>>()?, 0)?)
        };
        Ok(Linear::new(all("weight", &[outputs, inputs])?, Some(all("bias", &[outputs])?)))
    }

    pub(crate) fn norm(&self, name: &str, size: usize, epsilon: f64) -> Result<LayerNorm, LoadError> {
        let weight = self.tensor(&format!("{name}.weight"), &[size])?;
        let bias = self.tensor(&format!("{name}.bias"), &[size])?;
        Ok(LayerNorm::new(weight, bias, epsilon))
    }

    /// Refuses tensors that were not used, except heads for other tasks.
    pub(crate) fn finish(self) -> Result<(), LoadError> {
        let of_trunk = |name: &String| {
            let name = name.strip_prefix(&self.prefix).unwrap_or(name);
            name != POSITION_IDS && TRUNK.iter().any(|part| name.starts_with(part))
        };
        match self.unused.into_inner().into_iter().find(of_trunk) {
            Some(name) => Err(LoadError::LeftOver { name }),
            None => Ok(()),
        }
    }
}
