//! Norm, then gate and up, activation, down: of one block, or of a few experts.

use ruvllm_kernels::Worker;
use ruvllm_kernels::ops::{
    Activation, BatchRows, Experts, Linear, RowOperation, add_gated, gated_cols, matmul, matmul_gated, matmul_gated_by,
};

use super::dense_and_experts::DenseAndExperts;
use super::experts::load_experts;
use super::{Projection, linear};
use crate::RunState;
use crate::adapters::{Order, RowPick, Site, Target};
use crate::config::{ExpertsConfig, FeedForward, FeedForwardConfig};
use crate::error::LoadError;
use crate::load::Tensors;

#[derive(Debug)]
pub(crate) struct FeedForwardBlock {
    pub(crate) norm: Vec<f32>,
    kind: Kind,
    layer: usize,
}

#[derive(Debug)]
enum Kind {
    Dense {
        /// `[2 width, hidden]`
        gate_up: Linear,
        /// Whether both are one tensor.
        is_fused: bool,
        activation: Activation,
        /// `[hidden, width]`
        down: Projection,
    },
    Experts {
        experts: Experts,
        shared: Option<SharedExpert>,
    },
    DenseAndExperts(DenseAndExperts),
}

/// An expert that every token goes through beside those that are chosen.
#[derive(Debug)]
struct SharedExpert {
    /// `[1, hidden]`
    gate: Linear,
    /// `[2 width, hidden]`
    gate_up: Linear,
    activation: Activation,
    /// `[hidden, width]`
    down: Linear,
}

impl FeedForwardBlock {
    /// `scale` is what the residual stream is multiplied by in the end.
    pub(crate) fn load(
        tensors: &mut Tensors<'_>,
        config: &FeedForward,
        (hidden, epsilon): (usize, f32),
        layer: usize,
        scale: f32,
    ) -> Result<Self, LoadError> {
        // Some files name it by what comes before.
        let names = ["ffn_norm.weight", "post_attention_norm.weight"].map(|part| format!("blk.{layer}.{part}"));
        let name = names.iter().find(|name| tensors.has(name));
        let name = name.ok_or_else(|| LoadError::MissingTensor(names.join("' or '")))?;
        let norm = tensors.floats(name, hidden)?;
        let kind = match config {
            FeedForward::Dense(config) => load_dense(tensors, config, (hidden, epsilon), layer, scale)?,
            FeedForward::Experts(config) => Kind::Experts {
                experts: load_experts(tensors, config, hidden, layer)?,
                shared: load_shared_expert(tensors, config, hidden, layer)?,
            },
            FeedForward::DenseAndExperts(dense, experts) => {
                let common = (hidden, epsilon);
                Kind::DenseAndExperts(DenseAndExperts::load(tensors, (dense, experts), common, layer, scale)?)
            }
        };
        Ok(Self { norm, kind, layer })
    }

    pub(crate) fn run(&self, worker: &mut Worker<'_>, state: &RunState, rows: BatchRows, next_norm: &[f32]) {
        match &self.kind {
            Kind::Dense { gate_up, activation, down, .. } => {
                let gated = state.gated.of(down.weights.cols());
                let gate_up = state.adapted(gate_up, Site::GateUp.number(self.layer));
                match state.row_kernels_for(RowOperation::Gated(*activation)) {
                    None => matmul_gated(worker, gate_up, *activation, &state.normed, rows, gated),
                    Some(kernels) => {
                        matmul_gated_by(worker, kernels, gate_up, *activation, &state.normed, rows, gated);
                    }
                }
                worker.barrier();
                down.run(worker, state, gated, rows, next_norm);
            }
            Kind::Experts { experts, shared } => {
                if let Some(shared) = shared {
                    shared.run(worker, state, rows);
                }
                let buffers = state.experts.as_ref().expect("made for models with experts");
                experts.run(worker, &state.normed, rows, buffers, &state.x, next_norm, &state.normed);
                worker.barrier();
            }
            Kind::DenseAndExperts(both) => both.run(worker, state, rows, next_norm),
        }
    }

    /// Returns how many gates of a row a worker activates at once, if that can be done by kernels from outside.
    pub(crate) fn gated_cols(&self, workers: usize) -> Option<usize> {
        match &self.kind {
            Kind::Dense { gate_up, .. } => Some(gated_cols(gate_up, workers)),
            _ => None,
        }
    }

    /// Returns the matrices that adapters may change: those of dense blocks.
    pub(crate) fn targets(&self) -> Vec<Target> {
        let Kind::Dense { gate_up, is_fused, down, .. } = &self.kind else { return Vec::new() };
        let (width, cols) = (gate_up.rows() / 2, gate_up.cols());
        let target = |name, site, rows, cols, outputs| Target {
            name,
            layer: self.layer,
            site,
            rows,
            cols,
            outputs,
            is_kept: false,
            order: Order::Same,
        };
        let rows = down.weights.rows();
        let mut targets = vec![target("ffn_down", Site::Down, rows, width, vec![(0, RowPick::Range(0..rows))])];
        if *is_fused {
            let both = vec![(0, RowPick::Range(0..width)), (1, RowPick::Range(width..2 * width))];
            targets.push(target("ffn_up", Site::GateUp, 2 * width, cols, both));
        } else {
            for (part, name) in ["ffn_gate", "ffn_up"].into_iter().enumerate() {
                targets.push(target(name, Site::GateUp, width, cols, vec![(part, RowPick::Range(0..width))]));
            }
        }
        targets
    }

    /// Returns the weights of a dense block: gate and up, down.
    pub(crate) fn dense_weights(&self) -> Option<[&Linear; 2]> {
        match &self.kind {
            Kind::Dense { gate_up, down, .. } => Some([gate_up, &down.weights]),
            _ => None,
        }
    }

    /// Returns the weights that take the normalized residual stream.
    pub(crate) fn takes_normed(&self) -> Vec<&Linear> {
        match &self.kind {
            Kind::Dense { gate_up, .. } => vec![gate_up],
            Kind::Experts { experts, shared } => {
                let shared = shared.iter().flat_map(|shared| [&shared.gate, &shared.gate_up]);
                [&experts.router].into_iter().chain(&experts.gate_up).chain(shared).collect()
            }
            Kind::DenseAndExperts(both) => both.takes_normed(),
        }
    }

    /// Returns the weights that take the gated result of a dense block, or of a shared expert.
    pub(crate) fn takes_gated(&self) -> Option<&Linear> {
        match &self.kind {
            Kind::Dense { down, .. } => Some(&down.weights),
            Kind::Experts { shared, .. } => shared.as_ref().map(|shared| &shared.down),
            Kind::DenseAndExperts(both) => Some(both.takes_gated()),
        }
    }

    /// Returns the router of experts beside a dense block, whose input is another norm of the residual stream.
    pub(crate) fn router_apart(&self) -> Option<&Linear> {
        match &self.kind {
            Kind::DenseAndExperts(both) => Some(&both.experts().router),
            _ => None,
        }
    }

    pub(crate) fn has_shared_expert(&self) -> bool {
        matches!(&self.kind, Kind::Experts { shared: Some(_), .. })
    }

    pub(crate) fn experts(&self) -> Option<&Experts> {
        match &self.kind {
            Kind::Dense { .. } => None,
            Kind::Experts { experts, .. } => Some(experts),
            Kind::DenseAndExperts(both) => Some(both.experts()),
        }
    }

    /// Returns all weights.
    pub(crate) fn weights(&self) -> Vec<&Linear> {
        let mut weights = self.takes_normed();
        match &self.kind {
            Kind::Dense { down, .. } => weights.push(&down.weights),
            Kind::Experts { experts, shared } => {
                weights.extend(&experts.down);
                weights.extend(shared.as_ref().map(|shared| &shared.down));
            }
            Kind::DenseAndExperts(both) => {
                weights.extend([both.takes_gated(), &both.experts().router]);
                weights.extend(&both.experts().down);
            }
        }
        weights
    }
}

impl SharedExpert {
    /// Adds its result to the residual stream, which is left as the chosen experts want it.
    fn run(&self, worker: &mut Worker<'_>, state: &RunState, rows: BatchRows) {
        let gated = state.gated.of(self.down.cols());
        matmul_gated(worker, &self.gate_up, self.activation, &state.normed, rows, gated);
        worker.barrier();
        matmul(worker, &self.gate, &state.normed, rows, &state.shared_gate);
        worker.barrier();
        matmul(worker, &self.down, gated, rows, &state.projected);
        worker.barrier();
        add_gated(worker, &state.shared_gate, &state.projected, rows.count(), &state.x);
        worker.barrier();
    }
}

fn load_shared_expert(
    tensors: &mut Tensors<'_>,
    config: &ExpertsConfig,
    hidden: usize,
    layer: usize,
) -> Result<Option<SharedExpert>, LoadError> {
    let name = |part: &str| format!("blk.{layer}.{part}");
    let Some(width) = config.shared_width else { return Ok(None) };
    let gate = tensors.row_matrix(&name("ffn_gate_inp_shexp.weight"), hidden)?;
    let gate_up = vec![
        tensors.matrix(&name("ffn_gate_shexp.weight"), width, hidden)?,
        tensors.matrix(&name("ffn_up_shexp.weight"), width, hidden)?,
    ];
    let down = tensors.matrix(&name("ffn_down_shexp.weight"), hidden, width)?;
    Ok(Some(SharedExpert {
        gate: linear(layer, vec![gate], None)?,
        gate_up: linear(layer, gate_up, None)?,
        activation: config.activation,
        down: linear(layer, vec![down], None)?,
    }))
}

fn load_dense(
    tensors: &mut Tensors<'_>,
    config: &FeedForwardConfig,
    (hidden, epsilon): (usize, f32),
    layer: usize,
    scale: f32,
) -> Result<Kind, LoadError> {
    let name = |part: &str| format!("blk.{layer}.{part}");
    let width = config.width;
    let is_alone = tensors.rows_of(&name("ffn_up.weight")) == Some(width);
    let is_fused = !tensors.has(&name("ffn_gate.weight")) && !is_alone;
    let gate_up = if !is_fused {
        vec![
            tensors.matrix(&name("ffn_gate.weight"), width, hidden)?,
            tensors.matrix(&name("ffn_up.weight"), width, hidden)?,
        ]
    } else {
        // Both in one tensor, the gate first.
        tensors.split_matrix(&name("ffn_up.weight"), &[width, width], hidden)?
    };
    let down = tensors.matrix(&name("ffn_down.weight"), hidden, width)?;
    let mut post_norm = None;
    if config.post_norm {
        post_norm = Some((tensors.floats(&name("post_ffw_norm.weight"), hidden)?, epsilon));
    }
    Ok(Kind::Dense {
        gate_up: linear(layer, gate_up, None)?,
        is_fused,
        activation: config.activation,
        down: Projection {
            weights: linear(layer, vec![down], None)?,
            post_norm,
            scale,
            number: Site::Down.number(layer),
        },
    })
}
