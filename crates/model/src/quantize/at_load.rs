//! Quantizing weights when they are loaded, without writing a file.

use std::num::NonZero;
use std::thread;

use ruvllm_kernels::{QuantizeError, WeightType, dequantize_row, quantize_row};
use thiserror::Error;

use super::plan::Plan;
use super::recipe::Recipe;
use crate::formats::gguf::Gguf;
use crate::formats::gguf::write::WriteError;

/// Why a model is not quantized at load.
#[derive(Debug, Error)]
pub enum AtLoadError {
    #[error("{0} is no quantization: give one such as q4_k_m or q8_0")]
    Float(Recipe),
    #[error("the model has no weights of 16 or 32 bits that {0} would make smaller: it runs as it is")]
    Nothing(Recipe),
    #[error(transparent)]
    Plan(#[from] WriteError),
}

/// Has the matrices of 16 or 32 bits quantized as a recipe says when the model is loaded. What is quantized already stays
/// as it is.
pub fn quantize_at_load(gguf: &mut Gguf, recipe: Recipe) -> Result<(), AtLoadError> {
    if recipe.is_float() {
        return Err(AtLoadError::Float(recipe));
    }
    let plan = Plan::new(gguf, recipe)?;
    let packed = plan.tensors.iter().map(|tensor| {
        let is_smaller = tensor.bytes < tensor.source.bytes_len() as u64;
        (!tensor.was_quantized() && is_smaller).then_some(tensor.to)
    });
    let packed: Vec<Option<WeightType>> = packed.collect();
    if packed.iter().all(Option::is_none) {
        return Err(AtLoadError::Nothing(recipe));
    }
    gguf.pack_as(packed);
    Ok(())
}

/// Quantizes rows of `len` weights on all cores.
pub(crate) fn quantize_rows(
    from: WeightType,
    to: WeightType,
    len: usize,
    bytes: &[u8],
) -> Result<Vec<u8>, QuantizeError> {
    let row_bytes = from.row_bytes(len).expect("the file was checked");
    let cores = thread::available_parallelism().map_or(1, NonZero::get);
    let share = (bytes.len() / row_bytes).div_ceil(cores).max(1) * row_bytes;
    let convert = |rows: &[u8]| {
        let (mut row, mut out) = (vec![0f32; len], Vec::new());
        for stored in rows.chunks_exact(row_bytes) {
            dequantize_row(from, stored, &mut row);
            quantize_row(to, &row, &mut out)?;
        }
        Ok(out)
    };
    let shares = thread::scope(|scope| {
        let workers: Vec<_> = bytes.chunks(share).map(|rows| scope.spawn(move || convert(rows))).collect();
        let done = workers.into_iter().map(|worker| worker.join().expect("converting does not panic"));
        done.collect::<Result<Vec<Vec<u8>>, QuantizeError>>()
    })?;
    Ok(shares.concat())
}
