//! A sequence of one layer in a memory: rows go in, attention comes out.

use std::ops::Range;

use ruvllm_kernels::ops::{
    Activations, Attention, AttentionShape, HeadTransform, Linear, Matrix, RopeStyle, RopeTable, SplitResults, matmul,
};
use ruvllm_kernels::{Pool, WeightType};
use ruvllm_runner::{Batch, KvShape, PAGE_TOKENS, PageFormat, PageId, Rotation};

use super::page_store::PageStore;
use super::pages::{self, CellNumbers};
use super::{Random, linear, matrix};

/// A power of two: queries that are whole numbers stay exact.
pub const SCALE: f32 = 1.0 / 1024.0;
const TOKENS_MAX: usize = 1024;
const BUDGET: usize = 64 << 20;

/// A memory and what attention over it needs.
pub struct Model {
    pub pool: Pool,
    pub kv: PageStore,
    pub heads: usize,
    rope: RopeTable,
    /// Picks some columns of the results: enough to see every head, and less to multiply.
    picked: Linear,
}

/// Every so many columns of a result are looked at.
pub const PICK: usize = 13;

impl Model {
    /// Heads in `group`s that share one of two KV heads. Positions have no effect, so that rows mean what they hold.
    pub fn new(pool: Pool, head_dim: usize, group: usize, rotation: Rotation) -> Self {
        let shape = KvShape::new(2, 2, head_dim);
        let kv = PageStore::new(&pool, shape, rotation, BUDGET);
        let rope = RopeTable::new(TOKENS_MAX, &vec![0.0; head_dim / 2], RopeStyle::Halves, 1.0);
        let cols = 2 * group * head_dim;
        let rows = cols.div_ceil(PICK);
        let one = |i: usize| f32::from(i % cols == i / cols * PICK);
        let picked: Vec<u8> = (0..rows * cols).flat_map(|i| one(i).to_le_bytes()).collect();
        Self { pool, kv, heads: 2 * group, rope, picked: linear(WeightType::F32, rows, cols, &picked) }
    }

    pub fn pages(&mut self, format: PageFormat, tokens: usize) -> Vec<PageId> {
        (0..tokens.div_ceil(PAGE_TOKENS)).map(|_| self.kv.allocate(format)).collect()
    }

    /// Copies of pages.
    pub fn copies(&mut self, pages: &[PageId]) -> Vec<PageId> {
        pages.iter().map(|page| self.kv.copy(*page)).collect()
    }

    /// Stores each page in the next of `formats`, over and over.
    pub fn convert(&mut self, pages: &[PageId], formats: &[PageFormat]) {
        for (page, format) in pages.iter().zip(formats.iter().cycle()) {
            self.kv.convert(&mut self.pool, *page, *format);
            assert_eq!(self.kv.format(*page), *format);
        }
    }

    /// Runs rows (`[heads + 2 kv_heads, head_dim]` each) as the tokens from `start` on, in layer 1, and gives some columns
    /// of what comes out.
    pub fn step(&mut self, pages: &[PageId], start: usize, rows: &[Vec<f32>]) -> Vec<Vec<f32>> {
        self.step_in_window(pages, start, rows, None)
    }

    /// The same, where a row sees no more than a window of tokens.
    pub fn step_in_window(
        &mut self,
        pages: &[PageId],
        start: usize,
        rows: &[Vec<f32>],
        window: Option<usize>,
    ) -> Vec<Vec<f32>> {
        self.run(pages, start, rows, window, false)
    }

    /// The same in bf16.
    pub fn fast_step(
        &mut self,
        pages: &[PageId],
        start: usize,
        rows: &[Vec<f32>],
        window: Option<usize>,
    ) -> Vec<Vec<f32>> {
        self.run(pages, start, rows, window, true)
    }

    fn run(
        &mut self,
        pages: &[PageId],
        start: usize,
        rows: &[Vec<f32>],
        window: Option<usize>,
        is_fast: bool,
    ) -> Vec<Vec<f32>> {
        let shape = AttentionShape { heads: self.heads, scale: SCALE, window, softcap: None };
        let mut batch = Batch::default();
        self.kv.push(&mut batch, pages, start, rows.len());
        if is_fast {
            batch.set_fast();
        }
        let batch = batch.check(self.kv.shape(), self.kv.bytes.bytes()).unwrap();
        let qkv = matrix(&self.pool, rows);
        let out = Activations::new(&self.pool, rows.len(), [&self.picked]);
        let shared = SplitResults::new(&self.pool, [(self.kv.shape().heads, shape)], TOKENS_MAX);
        let attention = Attention {
            qkv: &qkv,
            batch,
            pages: &self.kv.bytes,
            layer: 1,
            shape,
            transform: HeadTransform { norm: None, rope: Some(&self.rope), temperature: None, value_norm: None },
            sinks: None,
            is_reader: false,
            is_gated: false,
            shared: &shared,
            out: &out,
        };
        let mut results = Matrix::new(&self.pool, rows.len(), self.picked.rows());
        self.pool.run(|worker| {
            attention.run(worker);
            worker.barrier();
            matmul(worker, &self.picked, &out, rows.len(), &results);
        });
        (0..rows.len()).map(|row| results.row_mut(row).to_vec()).collect()
    }

    /// Random rows. Queries are whole numbers with a 127 in each group of 32: rounding them to bytes changes nothing.
    pub fn rows(&self, random: &mut Random, count: usize) -> Vec<Vec<f32>> {
        let dim = self.kv.shape().heads.dim;
        let row = |_| {
            let mut row = random.floats((self.heads + 4) * dim);
            for head in row[..self.heads * dim].chunks_exact_mut(dim) {
                for group in head.chunks_mut(32) {
                    group.iter_mut().for_each(|query| *query = (*query * 127.0).round());
                    group[0] = 127.0;
                }
            }
            row
        };
        (0..count).map(row).collect()
    }

    /// What a page holds for a KV head in layer 1.
    pub fn read(&mut self, page: PageId, head: usize) -> CellNumbers {
        let (format, shape) = (self.kv.format(page), self.kv.shape());
        pages::read(&self.kv.read(page), format, shape, 1, head)
    }

    /// Attention of a row's queries over the first `tokens` tokens of the pages as they are stored, in f64; the same columns.
    pub fn formula(&mut self, pages: &[PageId], tokens: usize, row: &[f32]) -> Vec<f64> {
        self.formula_in_window(pages, 0..tokens, row)
    }

    /// The same over some tokens.
    pub fn formula_in_window(&mut self, pages: &[PageId], tokens: Range<usize>, row: &[f32]) -> Vec<f64> {
        let dim = self.kv.shape().heads.dim;
        let group = self.heads / 2;
        let mut out = Vec::new();
        for kv_head in 0..2 {
            let cells: Vec<CellNumbers> = pages.iter().map(|page| self.read(*page, kv_head)).collect();
            let at = |t: usize| (&cells[t / PAGE_TOKENS], t % PAGE_TOKENS);
            for query in row[kv_head * group * dim..][..group * dim].chunks_exact(dim) {
                let score = |t: usize| {
                    let (cell, slot) = at(t);
                    let products = query.iter().zip(&cell.keys[slot]).map(|(q, k)| f64::from(*q * SCALE) * k);
                    products.sum::<f64>()
                };
                let scores: Vec<f64> = tokens.clone().map(score).collect();
                let largest = scores.iter().copied().fold(f64::MIN, f64::max);
                let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
                let total: f64 = weights.iter().sum();
                out.extend((0..dim).map(|d| {
                    let value = |t: usize| at(t).0.values[at(t).1][d];
                    weights.iter().zip(tokens.clone()).map(|(weight, t)| weight * value(t)).sum::<f64>() / total
                }));
            }
        }
        out.into_iter().step_by(PICK).collect()
    }
}

/// Panics unless all numbers are as they should be, up to `tolerance`.
pub fn assert_close(got: &[f32], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(error <= tolerance, "{what}, element {i}: {got} for {want}");
    }
}
