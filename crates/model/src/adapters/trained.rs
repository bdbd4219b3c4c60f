//! Writes what a trainer has made of a model's matrices as an adapter of PEFT.

use std::path::Path;

use ruvllm_runner::TokenId;

use super::AdapterError;
use super::merge::Product;
use super::write::{About, folder as write_folder};
use crate::hugging_face::{half_of_pair, is_interleaved, layer_tensor};

/// Names of modules in transformers that the matrices of a layer may have.
const MODULES: [&str; 9] = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "self_attn.qkv_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.gate_up_proj",
    "mlp.down_proj",
];

/// Two thin matrices whose product is added to one matrix of a model.
#[derive(Clone, Copy, Debug)]
pub struct TrainedModule<'a> {
    pub layer: usize,
    /// The matrix by its GGUF name without the layer, such as `attn_q`.
    pub tensor: &'a str,
    /// Heads whose rows are rotated, in the matrices of queries and keys.
    pub rotated_heads: Option<usize>,
    /// Whether gate and up are one matrix, which is called as `up` alone is.
    pub is_fused: bool,
    /// Of the model's matrix.
    pub rows: usize,
    pub cols: usize,
    pub rank: usize,
    /// `[rank, cols]`
    pub a: &'a [f32],
    /// `[rows, rank]`
    pub b: &'a [f32],
}

/// A trained adapter.
#[derive(Clone, Debug)]
pub struct TrainedAdapter<'a> {
    pub architecture: &'a str,
    pub base_model: Option<&'a str>,
    /// Tokens that switch an activated adapter on.
    pub invocation: Option<&'a [TokenId]>,
    /// How it was made, as JSON.
    pub recipe: &'a str,
    /// What products are multiplied by: alpha divided by the rank.
    pub scale: f32,
    pub modules: Vec<TrainedModule<'a>>,
}

/// Writes a new folder of PEFT, complete or not at all. Returns the bytes written.
pub fn write_trained(folder: &Path, adapter: &TrainedAdapter<'_>) -> Result<u64, AdapterError> {
    let name = |module: &TrainedModule<'_>| {
        Ok(format!("model.layers.{}.{}", module.layer, module_name(adapter.architecture, module)?))
    };
    let names = adapter.modules.iter().map(name).collect::<Result<Vec<String>, AdapterError>>()?;
    let products = adapter.modules.iter().map(|module| product(adapter, module));
    let modules: Vec<(&str, Product)> = names.iter().map(String::as_str).zip(products).collect();
    let TrainedAdapter { base_model, invocation, recipe, .. } = *adapter;
    write_folder(folder, About { base_model, invocation, recipe }, &modules)
}

/// Finds the module of transformers that a matrix is.
fn module_name(architecture: &str, module: &TrainedModule<'_>) -> Result<&'static str, AdapterError> {
    let is_it = |name: &&&str| {
        let is_fused = name.ends_with("gate_up_proj");
        is_fused == module.is_fused && layer_tensor(architecture, name).as_deref() == Some(module.tensor)
    };
    MODULES.iter().find(is_it).copied().ok_or_else(|| AdapterError::Tensor {
        name: module.tensor.to_owned(),
        problem: format!("has no name in PEFT for the architecture {architecture}"),
    })
}

/// Returns the product with its scale, its rows in the order of transformers.
fn product(adapter: &TrainedAdapter<'_>, module: &TrainedModule<'_>) -> Product {
    let TrainedModule { rows, cols, rank, .. } = *module;
    let mut b = vec![0.0; rows * rank];
    let heads = module.rotated_heads.filter(|_| is_interleaved(adapter.architecture));
    for (row, numbers) in module.b.chunks_exact(rank).enumerate() {
        let row = heads.map_or(row, |heads| {
            let head_dim = rows / heads;
            row / head_dim * head_dim + half_of_pair(row % head_dim, head_dim)
        });
        let to = &mut b[row * rank..][..rank];
        to.iter_mut().zip(numbers).for_each(|(to, number)| *to = number * adapter.scale);
    }
    Product { rows, cols, rank, a: module.a.to_vec(), b }
}
