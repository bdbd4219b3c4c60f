//! The tensors that candle's code for an architecture reads: where each comes from, and that there are no others.

use std::collections::HashSet;

use candle_core::quantized::GgmlDType;
use ruvllm_kernels::WeightType;
use ruvllm_model::formats::gguf::{Gguf, Tensor};

use super::error::CandleError;

/// A tensor that candle's code asks for.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    pub name: String,
    /// In GGUF's order: the length of a row comes first.
    pub dims: Vec<usize>,
    /// Tensors of the same number of rows each that it can be joined from.
    pub parts: Vec<String>,
    pub is_optional: bool,
}

impl Expected {
    pub(super) fn new(name: impl Into<String>, dims: &[usize]) -> Self {
        Self { name: name.into(), dims: dims.to_vec(), parts: Vec::new(), is_optional: false }
    }

    pub(super) fn optional(self) -> Self {
        Self { is_optional: true, ..self }
    }

    pub(super) fn or_joined(self, parts: [String; 3]) -> Self {
        Self { parts: parts.into(), ..self }
    }
}

/// A tensor that candle's code asks for, and what it is made of: one of the file's, or several whose rows follow each other.
#[derive(Clone, Debug)]
pub(super) struct Found<'a> {
    pub name: String,
    pub dims: Vec<usize>,
    pub kind: GgmlDType,
    pub parts: Vec<Tensor<'a>>,
}

impl Found<'_> {
    pub(super) fn bytes(&self) -> usize {
        self.parts.iter().map(Tensor::bytes_len).sum()
    }

    fn elements(&self) -> usize {
        self.parts.iter().map(Tensor::element_count).sum()
    }

    /// Returns the bytes in candle's memory, where weights that are not quantized become floats.
    pub(super) fn loaded_bytes(&self) -> usize {
        match self.kind {
            GgmlDType::F32 | GgmlDType::F16 | GgmlDType::BF16 => self.float_bytes(),
            _ => self.bytes(),
        }
    }

    /// Returns the bytes of it as floats.
    pub(super) fn float_bytes(&self) -> usize {
        self.elements().saturating_mul(size_of::<f32>())
    }
}

/// Finds all tensors that candle's code asks for. Refuses a file that has others: they would be left out in silence.
pub(super) fn find<'a>(gguf: &'a Gguf, expected: &[Expected]) -> Result<Vec<Found<'a>>, CandleError> {
    let mut found = Vec::with_capacity(expected.len());
    for one in expected {
        if let Some(tensor) = find_one(gguf, one)? {
            found.push(tensor);
        }
    }
    let used: HashSet<&str> = found.iter().flat_map(|one| &one.parts).map(|tensor| tensor.name).collect();
    match gguf.tensors().find(|tensor| !used.contains(tensor.name)) {
        Some(left) => Err(CandleError::UnknownTensor(left.name.to_owned())),
        None => Ok(found),
    }
}

fn find_one<'a>(gguf: &'a Gguf, expected: &Expected) -> Result<Option<Found<'a>>, CandleError> {
    let Expected { name, dims, parts, is_optional } = expected;
    let whole = gguf.tensor(name).map(|tensor| vec![tensor]);
    let joined = || parts.iter().map(|part| gguf.tensor(part)).collect::<Option<Vec<_>>>();
    let joined = || joined().filter(|parts| !parts.is_empty());
    let Some(parts) = whole.or_else(joined) else {
        return if *is_optional { Ok(None) } else { Err(CandleError::MissingTensor(name.clone())) };
    };
    let mut part_dims = dims.clone();
    if let Some(rows) = part_dims.last_mut() {
        *rows /= parts.len();
    }
    let first = parts[0].kind;
    for part in &parts {
        let name = part.name.to_owned();
        if part.dims != part_dims {
            return Err(CandleError::Shape { name, expected: part_dims, got: part.dims.to_vec() });
        }
        if part.kind != first {
            return Err(CandleError::MixedTypes { name, first, got: part.kind });
        }
    }
    let kind = kind(first).ok_or_else(|| CandleError::WeightType { name: parts[0].name.to_owned(), got: first })?;
    Ok(Some(Found { name: name.clone(), dims: dims.clone(), kind, parts }))
}

/// Returns candle's type for ours, if it has one.
fn kind(kind: WeightType) -> Option<GgmlDType> {
    Some(match kind {
        WeightType::F32 => GgmlDType::F32,
        WeightType::F16 => GgmlDType::F16,
        WeightType::Bf16 => GgmlDType::BF16,
        WeightType::Q4_0 => GgmlDType::Q4_0,
        WeightType::Q4_1 => GgmlDType::Q4_1,
        WeightType::Q5_0 => GgmlDType::Q5_0,
        WeightType::Q5_1 => GgmlDType::Q5_1,
        WeightType::Q8_0 => GgmlDType::Q8_0,
        WeightType::Q2K => GgmlDType::Q2K,
        WeightType::Q3K => GgmlDType::Q3K,
        WeightType::Q4K => GgmlDType::Q4K,
        WeightType::Q5K => GgmlDType::Q5K,
        WeightType::Q6K => GgmlDType::Q6K,
        WeightType::Iq4Nl | WeightType::Iq4Xs | WeightType::Mxfp4 => return None,
    })
}
