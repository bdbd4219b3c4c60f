//! Norm, queries, keys and values, attention over the pages of a sequence, projection.

use std::sync::Arc;

use ruvllm_kernels::Worker;
use ruvllm_kernels::ops::{
    Attention, AttentionShape, BatchRows, HeadTransform, HostPages, Linear, QkNorm, RopeTable, RowOperation,
    Temperature, matmul,
};
use ruvllm_runner::{CheckedBatch, KvHeads, KvShape};

use super::{Projection, linear};
use crate::RunState;
use crate::adapters::{Order, RowPick, Site, Target};
use crate::config::{AttentionConfig, KvSource};
use crate::error::LoadError;
use crate::load::Tensors;

#[derive(Debug)]
pub(crate) struct AttentionBlock {
    pub(crate) norm: Vec<f32>,
    /// Queries, gates of the results if there are any, keys, values. `[(heads + 2 kv_heads) head_dim, hidden]`
    qkv: Linear,
    is_gated: bool,
    /// Of queries and of keys. `[head_dim]` each
    qk_norm: Option<(Vec<f32>, Vec<f32>)>,
    /// Ones, for a norm without weights. `[head_dim]`
    value_norm: Option<Vec<f32>>,
    rope: Option<Arc<RopeTable>>,
    temperature: Option<Temperature>,
    /// `[heads]`
    sinks: Option<Vec<f32>>,
    /// `[hidden, heads head_dim]`
    output: Projection,
    shape: AttentionShape,
    epsilon: f32,
    /// The number of its keys and values in pages, and whether it only reads them.
    number: usize,
    is_reader: bool,
    /// Whether keys and values are one projection.
    keys_only: bool,
    layer: usize,
    kv_heads: usize,
}

impl AttentionBlock {
    pub(crate) fn load(
        tensors: &mut Tensors<'_>,
        config: &AttentionConfig,
        (hidden, epsilon): (usize, f32),
        (layer, number): (usize, usize),
        rope: Option<Arc<RopeTable>>,
    ) -> Result<Self, LoadError> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let AttentionConfig { heads, kv_heads, head_dim, .. } = *config;
        let (queries, keys) = (heads * head_dim, kv_heads * head_dim);
        let is_reader = matches!(config.kv_source, KvSource::Layer(_));
        let norm = tensors.floats(&name("attn_norm.weight"), hidden)?;
        let qkv = if tensors.has(&name("attn_qkv.weight")) {
            vec![tensors.matrix(&name("attn_qkv.weight"), queries + 2 * keys, hidden)?]
        } else {
            let mut parts = if config.output_gate {
                tensors.alternating_matrices(&name("attn_q.weight"), heads, head_dim, hidden)?.into()
            } else {
                vec![tensors.matrix(&name("attn_q.weight"), queries, hidden)?]
            };
            let projections: &[&str] = match config.kv_source {
                KvSource::Own => &["attn_k.weight", "attn_v.weight"],
                KvSource::KeysOnly => &["attn_k.weight"; 2],
                KvSource::Layer(_) => &[],
            };
            for projection in projections {
                parts.push(tensors.matrix(&name(projection), keys, hidden)?);
            }
            parts
        };
        let mut bias = None;
        if ["attn_q.bias", "attn_k.bias", "attn_v.bias"].iter().any(|part| tensors.has(&name(part))) {
            let mut all = tensors.floats(&name("attn_q.bias"), queries)?;
            all.extend(tensors.floats(&name("attn_k.bias"), keys)?);
            all.extend(tensors.floats(&name("attn_v.bias"), keys)?);
            bias = Some(all);
        }
        let mut qk_norm = None;
        if config.qk_norm {
            let queries = tensors.floats(&name("attn_q_norm.weight"), head_dim)?;
            let keys =
                if is_reader { queries.clone() } else { tensors.floats(&name("attn_k_norm.weight"), head_dim)? };
            qk_norm = Some((queries, keys));
        }
        let mut sinks = None;
        if config.sinks {
            sinks = Some(tensors.floats(&name("attn_sinks.weight"), heads)?);
        }
        let output = tensors.matrix(&name("attn_output.weight"), hidden, queries)?;
        let output_bias = tensors.optional_floats(&name("attn_output.bias"), hidden)?;
        let mut post_norm = None;
        if config.post_norm {
            post_norm = Some((tensors.floats(&name("post_attention_norm.weight"), hidden)?, epsilon));
        }
        Ok(Self {
            norm,
            qkv: linear(layer, qkv, bias)?,
            is_gated: config.output_gate,
            qk_norm,
            value_norm: config.value_norm.then(|| vec![1.0; head_dim]),
            rope,
            temperature: config.temperature,
            sinks,
            output: Projection {
                weights: linear(layer, vec![output], output_bias)?,
                post_norm,
                scale: 1.0,
                number: Site::MixerOutput.number(layer),
            },
            shape: AttentionShape { heads, scale: config.scale, window: config.window, softcap: config.softcap },
            epsilon,
            number,
            is_reader,
            keys_only: config.kv_source == KvSource::KeysOnly,
            layer,
            kv_heads,
        })
    }

    pub(crate) fn run(
        &self,
        worker: &mut Worker<'_>,
        state: &RunState,
        pages: &HostPages,
        batch: CheckedBatch<'_>,
        next_norm: &[f32],
    ) {
        let rows = BatchRows::of(&batch);
        let (qkv, attended) = (state.qkv.of(self.qkv.rows()), state.attended.of(self.output.weights.cols()));
        let weights = state.adapted(&self.qkv, Site::MixerInput.number(self.layer));
        matmul(worker, weights, &state.normed, rows, qkv);
        worker.barrier();
        let norm = self.qk_norm.as_ref().map(|(query, key)| QkNorm { query, key, epsilon: self.epsilon });
        let attention = Attention {
            qkv,
            batch,
            pages,
            layer: self.number,
            shape: self.shape,
            transform: HeadTransform {
                norm,
                rope: self.rope.as_deref(),
                temperature: self.temperature,
                value_norm: self.value_norm.as_deref().map(|ones| (ones, self.epsilon)),
            },
            is_reader: self.is_reader,
            sinks: self.sinks.as_deref(),
            is_gated: self.is_gated,
            shared: &state.split_results,
            out: attended,
        };
        let outside = state.row_kernels_for(RowOperation::Rope).filter(|_| self.rope.is_some());
        let attention = match outside {
            None => attention,
            Some(kernels) => attention.rotated_by(worker, kernels),
        };
        attention.run(worker);
        worker.barrier();
        self.output.run(worker, state, attended, rows, next_norm);
    }

    /// Returns its KV heads and its own.
    pub(crate) fn kinds(&self, pages: KvShape) -> (KvHeads, AttentionShape) {
        (pages.heads_of(self.number), self.shape)
    }

    /// Returns the matrices that adapters may change. `is_interleaved` is whether rotated pairs are neighbours in GGUF and
    /// halves of a head elsewhere.
    pub(crate) fn targets(&self, is_interleaved: bool) -> Vec<Target> {
        let rows = self.qkv.part_rows();
        let order = |heads| if is_interleaved { Order::HalvesOfHeads { heads } } else { Order::Same };
        let input = |name, rows, outputs, is_kept, order| Target {
            name,
            layer: self.layer,
            site: Site::MixerInput,
            rows,
            cols: self.qkv.cols(),
            outputs,
            is_kept,
            order,
        };
        let whole = |rows: usize| RowPick::Range(0..rows);
        let mut targets = vec![Target {
            name: "attn_output",
            layer: self.layer,
            site: Site::MixerOutput,
            rows: self.output.weights.rows(),
            cols: self.output.weights.cols(),
            outputs: vec![(0, whole(self.output.weights.rows()))],
            is_kept: false,
            order: Order::Same,
        }];
        if let [all] = rows[..]
            && !self.is_reader
        {
            targets.push(input("attn_qkv", all, vec![(0, whole(all))], true, Order::Same));
            return targets;
        }
        let (queries, others) = if self.is_gated {
            let run = rows[0] / self.shape.heads;
            let turns = (0..2).map(|which| (which, RowPick::Alternating { run, which })).collect();
            targets.push(input("attn_q", 2 * rows[0], turns, false, Order::Same));
            (2, &rows[2..])
        } else {
            targets.push(input("attn_q", rows[0], vec![(0, whole(rows[0]))], false, order(self.shape.heads)));
            (1, &rows[1..])
        };
        if let [keys, values] = *others {
            let mut outputs = vec![(queries, whole(keys))];
            if self.keys_only {
                outputs.push((queries + 1, whole(values)));
            } else {
                targets.push(input("attn_v", values, vec![(queries + 1, whole(values))], true, Order::Same));
            }
            targets.push(input("attn_k", keys, outputs, true, order(self.kv_heads)));
        }
        targets
    }

    /// Returns the weights that take the normalized residual stream, and those that take the block's own result.
    pub(crate) fn weights(&self) -> [&Linear; 2] {
        [&self.qkv, &self.output.weights]
    }
}
