//! What a recipe makes of one file, before anything is computed.

use ruvllm_kernels::WeightType;

use super::recipe::{Fate, ModelShape, Recipe, is_float, layer};
use crate::formats::gguf::write::{Header, WriteError};
use crate::formats::gguf::{Gguf, Tensor, Value};

/// The present version of the block formats, which quantized files state.
const QUANTIZATION_VERSION: u32 = 2;

/// A new file, planned: all metadata of the source, and every tensor in the type it will have.
#[derive(Debug)]
pub struct Plan<'a> {
    pub tensors: Vec<PlannedTensor<'a>>,
    /// The size of the file to be.
    pub file_bytes: u64,
    pub(super) source: &'a Gguf,
    pub(super) header: Header,
}

#[derive(Clone, Debug)]
pub struct PlannedTensor<'a> {
    pub source: Tensor<'a>,
    pub to: WeightType,
    /// The type that the recipe wanted, if the tensor's rows are no whole number of its blocks.
    pub instead_of: Option<WeightType>,
    /// As it will be stored.
    pub bytes: u64,
}

impl PlannedTensor<'_> {
    pub fn is_copied(&self) -> bool {
        self.to == self.source.kind
    }

    /// Precision is lost already, before anything is done here.
    pub fn was_quantized(&self) -> bool {
        !is_float(self.source.kind)
    }
}

impl<'a> Plan<'a> {
    pub fn new(source: &'a Gguf, recipe: Recipe) -> Result<Self, WriteError> {
        let model = model_shape(source);
        let mut header = Header::copying(source.metadata());
        header.set("general.file_type", Value::U32(recipe.file_type()));
        if !recipe.is_float() {
            header.set("general.quantization_version", Value::U32(QUANTIZATION_VERSION));
        }
        let tensors: Vec<_> = source.tensors().map(|tensor| planned(tensor, recipe, model)).collect();
        for tensor in &tensors {
            header.add_tensor(tensor.source.name, tensor.source.dims, tensor.to);
        }
        let file_bytes = header.layout()?.file_bytes();
        Ok(Self { tensors, file_bytes, source, header })
    }

    /// The size of the source.
    pub fn source_bytes(&self) -> u64 {
        self.source.size_bytes()
    }

    /// Weights of all tensors.
    pub fn weights(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.source.element_count() as u64).sum()
    }
}

fn planned(source: Tensor<'_>, recipe: Recipe, model: ModelShape) -> PlannedTensor<'_> {
    let (to, instead_of) = match recipe.fate(source.name, source.dims, model) {
        Fate::Kept => (source.kind, None),
        Fate::Becomes(kind) => (kind, None),
        Fate::FallsBack { wanted, to } => (to, Some(wanted)),
    };
    let row_bytes = to.row_bytes(source.dims[0]).expect("recipes choose types that fit");
    let bytes = row_bytes as u64 * source.dims[1..].iter().product::<usize>() as u64;
    PlannedTensor { source, to, instead_of, bytes }
}

fn model_shape(source: &Gguf) -> ModelShape {
    let layers = source.tensors().filter_map(|tensor| layer(tensor.name)).max().map_or(0, |last| last + 1);
    ModelShape { layers, tied_output: source.tensor("output.weight").is_none() }
}
