//! Loads the experts of a layer, as files of all architectures name their tensors.

use ruvllm_kernels::ops::{Experts, Linear, Routing};

use super::linear;
use crate::config::ExpertsConfig;
use crate::error::LoadError;
use crate::load::Tensors;

/// Gate and up are a tensor each, or stand below each other in one. Biases and scales are there or not.
pub(super) fn load_experts(
    tensors: &mut Tensors<'_>,
    config: &ExpertsConfig,
    hidden: usize,
    layer: usize,
) -> Result<Experts, LoadError> {
    let name = |part: &str| format!("blk.{layer}.{part}");
    let ExpertsConfig { experts, active, width, .. } = *config;
    let router = tensors.matrix(&name("ffn_gate_inp.weight"), experts, hidden)?;
    let router_bias = tensors.optional_floats(&name("ffn_gate_inp.bias"), experts)?;
    let choice_bias = tensors.optional_floats(&name("exp_probs_b.bias"), experts)?;
    let gate_up = load_gate_up(tensors, config, hidden, layer)?;
    let downs = tensors.matrices(&name("ffn_down_exps.weight"), experts, hidden, width)?;
    let biases = tensors.optional_float_rows(&name("ffn_down_exps.bias"), experts, hidden)?;
    let down = downs.into_iter().enumerate();
    let down = down.map(|(expert, down)| linear(layer, vec![down], biases.as_ref().map(|all| all[expert].clone())));
    Ok(Experts {
        router: linear(layer, vec![router], router_bias)?,
        gate_up,
        down: down.collect::<Result<_, _>>()?,
        activation: config.activation,
        routing: Routing {
            active,
            scoring: config.scoring,
            renormalize: config.renormalize,
            scale: config.scale,
            choice_bias,
            expert_scales: tensors.optional_floats(&name("ffn_down_exps.scale"), experts)?,
        },
    })
}

fn load_gate_up(
    tensors: &mut Tensors<'_>,
    config: &ExpertsConfig,
    hidden: usize,
    layer: usize,
) -> Result<Vec<Linear>, LoadError> {
    let name = |part: &str| format!("blk.{layer}.{part}");
    let ExpertsConfig { experts, width, .. } = *config;
    let (apart, joined) = (name("ffn_gate_exps.weight"), name("ffn_gate_up_exps.weight"));
    if tensors.has(&joined) {
        let pairs = tensors.matrix_pairs(&joined, experts, width, hidden)?;
        return pairs.into_iter().map(|pair| linear(layer, pair.into(), None)).collect();
    }
    if !tensors.has(&apart) {
        return Err(LoadError::MissingTensor([apart, joined].join("' or '")));
    }
    let gates = tensors.matrices(&apart, experts, width, hidden)?;
    let ups = tensors.matrices(&name("ffn_up_exps.weight"), experts, width, hidden)?;
    let mut biases = |part: &str| tensors.optional_float_rows(&name(part), experts, width);
    let biases = match (biases("ffn_gate_exps.bias")?, biases("ffn_up_exps.bias")?) {
        (Some(gates), Some(ups)) => Some((gates, ups)),
        (None, None) => None,
        (Some(_), None) => return Err(LoadError::MissingTensor(name("ffn_up_exps.bias"))),
        (None, Some(_)) => return Err(LoadError::MissingTensor(name("ffn_gate_exps.bias"))),
    };
    let bias = |expert: usize| {
        let (gates, ups) = biases.as_ref()?;
        Some([&gates[expert][..], &ups[expert][..]].concat())
    };
    let both = gates.into_iter().zip(ups).enumerate();
    both.map(|(expert, (gate, up))| linear(layer, vec![gate, up], bias(expert))).collect()
}
