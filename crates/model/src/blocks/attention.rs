//! Norm, queries, keys and values, attention over the pages of a sequence, projection.

use std::sync::Arc;

use ruvllm_kernels::Worker;
use ruvllm_kernels::ops::{
    Attention, AttentionShape, BatchRows, HeadTransform, HostPages, Linear, QkNorm, RopeTable, Temperature, matmul,
};
use ruvllm_runner::{CheckedBatch, KvHeads, KvShape};

use super::{Projection, linear};
use crate::RunState;
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
            output: Projection { weights: linear(layer, vec![output], output_bias)?, post_norm, scale: 1.0 },
            shape: AttentionShape { heads, scale: config.scale, window: config.window, softcap: config.softcap },
            epsilon,
            number,
            is_reader,
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
        matmul(worker, &self.qkv, &state.normed, rows, qkv);
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
        attention.run(worker);
        worker.barrier();
        self.output.run(worker, state, attended, rows, next_norm);
    }

    /// Returns its KV heads and its own.
    pub(crate) fn kinds(&self, pages: KvShape) -> (KvHeads, AttentionShape) {
        (pages.heads_of(self.number), self.shape)
    }

    /// Returns the weights that take the normalized residual stream, and those that take the block's own result.
    pub(crate) fn weights(&self) -> [&Linear; 2] {
        [&self.qkv, &self.output.weights]
    }
}
