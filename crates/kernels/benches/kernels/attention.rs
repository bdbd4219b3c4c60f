//! Attention (with rotation and the new keys and values written): of one token and of a part of a prompt, at several
//! depths, over pages of several formats.

use half::f16;
use ruvllm_kernels::ops::{
    Activations, Attention, AttentionShape, HeadTransform, Matrix, RopeStyle, RopeTable, SplitResults,
};
use ruvllm_kernels::{Pool, WeightType};
use ruvllm_runner::{Batch, CheckedBatch, KeyFormat, KvShape, PAGE_TOKENS, PageFormat, PageId, Rotation, ValueFormat};

use crate::Shape;
use crate::measure::{Bench, Limit};
use crate::support::page_store::PageStore;
use crate::support::{Random, linear};

/// Tokens of a prompt that are computed together.
const PROMPT: usize = 128;
/// Rows and the tokens before them.
const CASES: [(usize, usize); 5] = [(1, 256), (PROMPT, 256), (1, 2048), (PROMPT, 2048), (1, 4096)];
const DEPTH_MAX: usize = 4096;
const FORMATS: [PageFormat; 5] = [
    PageFormat::F16,
    PageFormat::Q8,
    PageFormat::new(KeyFormat::Q8, ValueFormat::Q4),
    PageFormat::new(KeyFormat::Q6, ValueFormat::Q4),
    PageFormat::new(KeyFormat::Q4, ValueFormat::Q4),
];

pub fn run(bench: &mut Bench<'_>, shape: Shape) {
    for format in FORMATS {
        if CASES.iter().any(|(rows, depth)| bench.wants_any(&name(shape, format, *rows, *depth))) {
            let sequence = Sequence::new(&mut bench.pool, shape, format);
            sequence.time_attention(bench);
        }
    }
}

fn name(shape: Shape, format: PageFormat, rows: usize, depth: usize) -> String {
    format!("attention {} {format} x{rows} at {depth}", shape.name)
}

/// A sequence of one model: its cache, and queries, keys and values of the rows of a batch.
struct Sequence {
    shape: Shape,
    kv: PageStore,
    format: PageFormat,
    /// Pages of that format.
    old: Vec<PageId>,
    /// Pages for the rows, of the same format or the one before it that takes single tokens.
    new: Vec<PageId>,
    rope: RopeTable,
    qkv: Matrix,
    shared: SplitResults,
    out: Activations,
}

impl Sequence {
    fn new(pool: &mut Pool, shape: Shape, format: PageFormat) -> Self {
        let Shape { layers, heads, kv_heads, head_dim, .. } = shape;
        let kv_shape = KvShape::new(layers, kv_heads, head_dim);
        let (old_pages, new_pages) = (DEPTH_MAX / PAGE_TOKENS, PROMPT / PAGE_TOKENS);
        let bytes = 3 * (old_pages + new_pages) * kv_shape.page_bytes(PageFormat::F16);
        let mut kv = PageStore::new(pool, kv_shape, Rotation::None, bytes);
        let mut random = Random(2);
        // Memory that was never touched would be one page of zeros for all.
        let halves = (0..kv_shape.page_bytes(PageFormat::F16) / 2).map(|_| f16::from_f32(random.float()).to_le_bytes());
        let content: Vec<u8> = halves.flatten().collect();
        let mut pages = |count: usize, format| {
            let pages: Vec<PageId> = (0..count).map(|_| kv.allocate(PageFormat::F16)).collect();
            for page in &pages {
                kv.bytes.write(kv.location(*page).offset, &content);
                kv.convert(pool, *page, format);
            }
            pages
        };
        let old = pages(old_pages, format);
        let new = pages(new_pages, if format.is_appendable() { format } else { PageFormat::Q8 });
        let frequencies: Vec<f64> = (0..head_dim / 2).map(|i| 0.5f64.powi(i as i32)).collect();
        let rope = RopeTable::new(DEPTH_MAX + PROMPT, &frequencies, RopeStyle::Interleaved, 1.0);
        let cols = (heads + 2 * kv_heads) * head_dim;
        let mut qkv = Matrix::new(pool, PROMPT, cols);
        (0..PROMPT).for_each(|row| qkv.row_mut(row).copy_from_slice(&random.floats(cols)));
        let shared = SplitResults::new(pool, [(kv_shape.heads, attention_shape(shape))], DEPTH_MAX + PROMPT);
        let consumer = linear(
            WeightType::Q4_0,
            shape.hidden,
            heads * head_dim,
            &random.weights(WeightType::Q4_0, shape.hidden, heads * head_dim),
        );
        let out = Activations::new(pool, PROMPT, [&consumer]);
        let out = if pool.has_bf16() { out.in_bf16(pool, false) } else { out };
        Self { shape, kv, format, old, new, rope, qkv, shared, out }
    }

    fn attention<'a>(&'a self, batch: CheckedBatch<'a>, layer: usize) -> Attention<'a> {
        let Self { qkv, rope, kv, shared, out, .. } = self;
        let transform = HeadTransform { norm: None, rope: Some(rope), temperature: None, value_norm: None };
        Attention {
            qkv,
            batch,
            pages: &kv.bytes,
            layer,
            shape: attention_shape(self.shape),
            transform,
            sinks: None,
            is_reader: false,
            is_gated: false,
            shared,
            out,
        }
    }

    fn time_attention(&self, bench: &mut Bench<'_>) {
        let Shape { layers, heads, head_dim, .. } = self.shape;
        let has_bf16 = bench.pool.has_bf16();
        for (rows, depth) in CASES {
            let pages = [&self.old[..depth / PAGE_TOKENS], &self.new].concat();
            let seen: usize = (depth + 1..=depth + rows).sum();
            let limit = if rows == 1 {
                Limit::Memory { bytes: seen * self.kv.shape().page_bytes(self.format) / PAGE_TOKENS / layers }
            } else {
                Limit::Floats { operations: seen * 4 * heads * head_dim }
            };
            let mut time = |name: String, is_fast: bool, limit: Limit| {
                let mut batch = Batch::default();
                self.kv.push(&mut batch, &pages, depth, rows);
                if is_fast {
                    batch.set_fast();
                }
                let batch = batch.check(self.kv.shape(), self.kv.bytes.bytes()).expect("pages for all tokens");
                // Layer after layer, as in a model: the next layer's cache is not the one that was just read.
                bench.time(name, limit, |worker, round| {
                    self.attention(batch, round % layers).run(worker);
                    worker.barrier();
                });
            };
            let name = name(self.shape, self.format, rows, depth);
            time(name.clone(), false, limit);
            if let (true, Limit::Floats { operations }) = (has_bf16, limit) {
                time(format!("{name} bf16"), true, Limit::Bf16 { operations });
            }
        }
    }
}

fn attention_shape(shape: Shape) -> AttentionShape {
    AttentionShape { heads: shape.heads, scale: 0.125, window: None, softcap: None }
}
