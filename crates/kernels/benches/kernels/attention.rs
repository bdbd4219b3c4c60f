//! Attention (with rotation and the new keys and values written): of one token and of a part of a prompt, at several depths.

use ruvllm_kernels::ops::{
    Activations, Attention, AttentionShape, Batch, KvBuffer, KvShape, Matrix, PAGE_TOKENS, RopeStyle, RopeTable,
    SequenceRows, SharedItems,
};
use ruvllm_kernels::{Pool, WeightType};

use crate::Shape;
use crate::measure::{Bench, Limit};
use crate::support::{Random, linear};

const DEPTHS: [usize; 2] = [256, 2048];
const DEPTH_MAX: usize = 2048;
/// Tokens of a prompt that are computed together.
const PROMPT: usize = 128;

pub fn run(bench: &mut Bench<'_>, shape: Shape) {
    let mut sequence = Sequence::new(&bench.pool, shape);
    sequence.fill(&mut bench.pool);
    sequence.time_attention(bench);
}

/// A sequence of one model: its cache, and queries, keys and values of the rows of a batch.
struct Sequence {
    shape: Shape,
    kv: KvBuffer,
    pages: Vec<u32>,
    rope: RopeTable,
    qkv: Matrix,
    shared: SharedItems,
    out: Activations,
}

impl Sequence {
    fn new(pool: &Pool, shape: Shape) -> Self {
        let Shape { layers, heads, kv_heads, head_dim, .. } = shape;
        let kv =
            KvBuffer::new(pool, KvShape { layers, kv_heads, head_dim }, (DEPTH_MAX + PROMPT).div_ceil(PAGE_TOKENS));
        let pages = (0..kv.pages() as u32).collect();
        let frequencies: Vec<f64> = (0..head_dim / 2).map(|i| 0.5f64.powi(i as i32)).collect();
        let rope = RopeTable::new(DEPTH_MAX + PROMPT, &frequencies, RopeStyle::Neighbours);
        let cols = (heads + 2 * kv_heads) * head_dim;
        let mut qkv = Matrix::new(pool, PROMPT, cols);
        let mut random = Random(2);
        (0..PROMPT).for_each(|row| qkv.row_mut(row).copy_from_slice(&random.floats(cols)));
        let shared = SharedItems::new(pool, &kv, attention_shape(shape), DEPTH_MAX + PROMPT);
        let consumer = linear(
            WeightType::Q4_0,
            shape.hidden,
            heads * head_dim,
            &random.weights(WeightType::Q4_0, shape.hidden, heads * head_dim),
        );
        let out = Activations::new(pool, PROMPT, [&consumer]);
        Self { shape, kv, pages, rope, qkv, shared, out }
    }

    fn batch(&self, rows: usize, start: usize) -> Batch<'_> {
        let sequence = SequenceRows { rows: 0..rows, start, pages: &self.pages };
        Batch::new(vec![sequence], &self.kv).expect("pages for all tokens")
    }

    /// Writes all of the cache: memory that was never touched would be one page of zeros for all.
    fn fill(&mut self, pool: &mut Pool) {
        for start in (0..DEPTH_MAX + PROMPT).step_by(PROMPT) {
            let batch = self.batch(PROMPT, start);
            pool.run(|worker| {
                for layer in 0..self.shape.layers {
                    self.attention(&batch, layer).run(worker);
                    worker.barrier();
                }
            });
        }
    }

    fn attention<'a>(&'a self, batch: &'a Batch<'a>, layer: usize) -> Attention<'a> {
        let Self { qkv, rope, kv, shared, out, .. } = self;
        Attention { qkv, batch, rope, kv, layer, shape: attention_shape(self.shape), shared, out }
    }

    fn time_attention(&self, bench: &mut Bench<'_>) {
        let Shape { layers, heads, kv_heads, head_dim, name, .. } = self.shape;
        for (depth, rows) in DEPTHS.into_iter().flat_map(|depth| [(depth, 1), (depth, PROMPT)]) {
            let batch = self.batch(rows, depth);
            let seen: usize = (depth + 1..=depth + rows).sum();
            let limit = if rows == 1 {
                Limit::Memory { bytes: seen * 2 * kv_heads * head_dim * size_of::<u16>() }
            } else {
                Limit::Floats { operations: seen * 4 * heads * head_dim }
            };
            // Layer after layer, as in a model: the next layer's cache is not the one that was just read.
            bench.time(format!("attention {name} x{rows} at {depth}"), limit, |worker, round| {
                self.attention(&batch, round % layers).run(worker);
                worker.barrier();
            });
        }
    }
}

fn attention_shape(shape: Shape) -> AttentionShape {
    AttentionShape { heads: shape.heads, scale: 0.125 }
}
