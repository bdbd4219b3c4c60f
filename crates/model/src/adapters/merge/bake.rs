//! Adds adapters to the weights of a model, into a file that needs no adapter any more.

use std::collections::BTreeMap;
use std::path::Path;

use ruvllm_kernels::{QuantizeError, WeightType, dequantize_row, quantize_row};
use thiserror::Error;

use super::product::Product;
use crate::adapters::pack::{in_model_order, place};
use crate::adapters::{AdapterError, AdapterFile, AdapterTargets};
use crate::formats::gguf::write::{Header, WriteError, Writer};
use crate::formats::gguf::{Gguf, Tensor};

/// Weights that are converted at a time.
const STEP_BYTES: usize = 4 << 20;

/// What the changed weights are written as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BakedType {
    /// The type that each tensor has. Quantizing again loses a little of it.
    Same,
    F32,
}

/// Why adapters cannot be added to a model's file.
#[derive(Debug, Error)]
pub enum BakeError {
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    #[error("tensor {name:?} is not in the file as one matrix: adapters cannot be added to it")]
    NoTensor { name: String },
    #[error("tensor {name:?}, row {row}: {fault}; write it as F32 instead")]
    Weights { name: String, row: usize, fault: QuantizeError },
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Baked {
    pub file_bytes: u64,
    /// Tensors that were changed.
    pub tensors: usize,
}

/// Adds adapters, each multiplied by its weight, to the weights of a model and writes the result to `output`. `targets` are
/// those of the same model; `progress` is told how many bytes of the model's tensors are done.
pub fn bake(
    model: &Gguf,
    targets: &AdapterTargets,
    adapters: &[(&AdapterFile, f32)],
    to: BakedType,
    output: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<Baked, BakeError> {
    let changes = changes(targets, adapters)?;
    if let Some(name) = changes.keys().find(|name| model.tensor(name).is_none_or(|tensor| tensor.dims.len() != 2)) {
        return Err(BakeError::NoTensor { name: name.clone() });
    }
    let kind_of = |tensor: &Tensor<'_>| match to {
        BakedType::F32 if changes.contains_key(tensor.name) => WeightType::F32,
        _ => tensor.kind,
    };
    let mut header = Header::copying(model.metadata());
    model.tensors().for_each(|tensor| header.add_tensor(tensor.name, tensor.dims, kind_of(&tensor)));
    let file_bytes = header.layout()?.file_bytes();
    let mut writer = Writer::create(output, &header)?;
    let mut done = 0;
    for tensor in model.tensors() {
        match changes.get(tensor.name) {
            Some(change) => write_changed(&mut writer, &tensor, change, kind_of(&tensor))?,
            None => tensor.bytes().chunks(STEP_BYTES).try_for_each(|bytes| writer.write(bytes))?,
        }
        tensor.give_back();
        done += tensor.bytes_len() as u64;
        progress(done);
    }
    writer.finish()?;
    Ok(Baked { file_bytes, tensors: changes.len() })
}

/// Returns what is added to each tensor, in the order of its rows.
fn changes(
    targets: &AdapterTargets,
    adapters: &[(&AdapterFile, f32)],
) -> Result<BTreeMap<String, Product>, AdapterError> {
    let placed = place(adapters, targets)?;
    let mut changes: BTreeMap<String, Product> = BTreeMap::new();
    for one in placed.values().flatten() {
        let (product, scale) = in_model_order(one)?;
        let name = format!("blk.{}.{}.weight", one.target.layer, one.target.name);
        let sum = match changes.remove(&name) {
            Some(before) => Product::stack(&[(&before, 1.0), (&product, scale)]),
            None => Product::stack(&[(&product, scale)]),
        };
        changes.insert(name, sum);
    }
    Ok(changes)
}

fn write_changed(writer: &mut Writer, tensor: &Tensor<'_>, change: &Product, to: WeightType) -> Result<(), BakeError> {
    let (bytes, cols) = (tensor.bytes(), tensor.dims[0]);
    let row_bytes = bytes.len() / change.rows;
    let (mut row, mut delta, mut out) = (vec![0.0; cols], vec![0.0; cols], Vec::new());
    for (number, stored) in bytes.chunks_exact(row_bytes).enumerate() {
        dequantize_row(tensor.kind, stored, &mut row);
        change.row(number, &mut delta);
        row.iter_mut().zip(&delta).for_each(|(weight, delta)| *weight += delta);
        out.clear();
        quantize_row(to, &row, &mut out).map_err(|fault| BakeError::Weights {
            name: tensor.name.to_owned(),
            row: number,
            fault,
        })?;
        writer.write(&out)?;
    }
    Ok(())
}
