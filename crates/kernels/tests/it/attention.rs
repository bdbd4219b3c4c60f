//! Rotary positions, paged KV and attention on every kernel set, against plain f64 formulas.

use crate::support::page_store::PageStore;
use crate::support::{Random, floats, matrix, pools, readable};
use ruvllm_kernels::ops::{Attention, AttentionShape, HeadTransform, QkNorm, RopeStyle, RopeTable, SplitResults};
use ruvllm_kernels::{KernelSet, Pool, reference};
use ruvllm_runner::{Batch, KvShape, PAGE_TOKENS, PageFormat, PageId, Rotation};

const SHAPE: KvShape = KvShape::new(2, 2, 32);
const HEADS: usize = 6;
const SCALE: f32 = 0.2;
const EPSILON: f32 = 1e-6;

/// Rows of one sequence in a step: its pages, the position of the first row, the rows.
type SequencePart<'a> = (&'a [PageId], usize, &'a [Vec<f32>]);

/// Feeds `rows` (`[heads + 2 kv_heads, head_dim]` each) of one sequence in chunks and collects attention's results.
struct Harness {
    pool: Pool,
    kv: PageStore,
    rope: RopeTable,
    /// Of queries and of keys.
    norm: Option<[Vec<f32>; 2]>,
    softcap: Option<f32>,
    /// Of each head.
    sinks: Option<Vec<f32>>,
}

impl Harness {
    fn new(pool: Pool, style: RopeStyle) -> Self {
        Self::of(pool, style, PageFormat::F16)
    }

    fn of(pool: Pool, style: RopeStyle, format: PageFormat) -> Self {
        let frequencies: Vec<f64> = (0..16).map(|i| 10000f64.powf(-f64::from(i) / 16.0)).collect();
        let rope = RopeTable::new(600, &frequencies, style, 1.0);
        Self { kv: memory(&pool, format, 64), rope, norm: None, softcap: None, sinks: None, pool }
    }

    fn step(&mut self, sequences: &[SequencePart<'_>]) -> Vec<Vec<f32>> {
        let rows: Vec<Vec<f32>> = sequences.iter().flat_map(|(_, _, rows)| rows.to_vec()).collect();
        let count = rows.len();
        let qkv = matrix(&self.pool, &rows);
        let out = readable(&self.pool, count, HEADS * 32);
        let mut batch = Batch::default();
        for (pages, start, rows) in sequences {
            self.kv.push(&mut batch, pages, *start, rows.len());
        }
        let shape = AttentionShape { heads: HEADS, scale: SCALE, window: None, softcap: self.softcap };
        let norm = self.norm.as_ref().map(|[query, key]| QkNorm { query, key, epsilon: EPSILON });
        let attention = Attention {
            qkv: &qkv,
            batch: batch.check(SHAPE, self.kv.bytes.bytes()).unwrap(),
            pages: &self.kv.bytes,
            layer: 1,
            shape,
            transform: HeadTransform { norm, rope: Some(&self.rope), temperature: None, value_norm: None },
            sinks: self.sinks.as_deref(),
            is_reader: false,
            is_gated: false,
            shared: &SplitResults::new(&self.pool, [(SHAPE.heads, shape)], 600),
            out: &out,
        };
        self.pool.run(|worker| attention.run(worker));
        floats(&mut self.pool, &out, count)
    }
}

/// A memory of this many pages, numbered from 0 on.
fn memory(pool: &Pool, format: PageFormat, pages: usize) -> PageStore {
    let mut kv = PageStore::new(pool, SHAPE, Rotation::None, pages * SHAPE.page_bytes(format));
    for _ in 0..pages {
        kv.allocate(format);
    }
    kv
}

/// Every pool with each format that takes single tokens.
fn pools_and_formats() -> impl Iterator<Item = (PageFormat, (KernelSet, Pool))> {
    [PageFormat::F16, PageFormat::Q8].into_iter().flat_map(|format| pools().map(move |pool| (format, pool)))
}

fn ids<const N: usize>(pages: [u32; N]) -> [PageId; N] {
    pages.map(PageId)
}

fn rotated(head: &[f32], position: usize, style: RopeStyle) -> Vec<f64> {
    let mut out: Vec<f64> = head.iter().map(|v| f64::from(*v)).collect();
    for i in 0..16 {
        let (sine, cosine) = (position as f64 * 10000f64.powf(-(i as f64) / 16.0)).sin_cos();
        let (a, b) = if style == RopeStyle::Interleaved { (2 * i, 2 * i + 1) } else { (i, i + 16) };
        (out[a], out[b]) = (out[a] * cosine - out[b] * sine, out[a] * sine + out[b] * cosine);
    }
    out
}

/// Softmax attention of the last of `rows`, in f64.
fn formula(rows: &[Vec<f32>], style: RopeStyle) -> Vec<f64> {
    formula_with(rows, style, None, None)
}

/// The same with a soft cap, and with a score for each head that takes part without a value.
fn formula_with(rows: &[Vec<f32>], style: RopeStyle, softcap: Option<f32>, sinks: Option<&[f32]>) -> Vec<f64> {
    let capped = |score: f64| softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh());
    let last = rows.len() - 1;
    let part = |row: &[f32], head: usize| row[head * 32..][..32].to_vec();
    (0..HEADS)
        .flat_map(|head| {
            let kv_head = head / 3;
            let query = rotated(&part(&rows[last], head), last, style);
            let scores: Vec<f64> = (0..=last)
                .map(|t| {
                    let key = rotated(&part(&rows[t], HEADS + kv_head), t, style);
                    capped(query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>() * f64::from(SCALE))
                })
                .collect();
            let sink = sinks.map_or(f64::NEG_INFINITY, |sinks| f64::from(sinks[head]));
            let largest = scores.iter().copied().fold(sink, f64::max);
            let total: f64 = scores.iter().map(|s| (s - largest).exp()).sum::<f64>() + (sink - largest).exp();
            (0..32)
                .map(move |d| {
                    scores
                        .iter()
                        .enumerate()
                        .map(|(t, s)| (s - largest).exp() / total * f64::from(rows[t][(HEADS + 2 + kv_head) * 32 + d]))
                        .sum::<f64>()
                })
                .collect::<Vec<_>>()
        })
        .collect()
}

fn rows(random: &mut Random, count: usize) -> Vec<Vec<f32>> {
    (0..count).map(|_| random.floats((HEADS + 4) * 32).iter().map(|v| v * 3.0).collect()).collect()
}

#[test]
fn chunked_prefill_and_decode_over_scattered_pages_equal_the_f64_formula() {
    let mut random = Random(5);
    for style in [RopeStyle::Interleaved, RopeStyle::Halves] {
        for (set, pool) in pools() {
            let mut harness = Harness::new(pool, style);
            let rows = rows(&mut random, 300);
            // Pages in no order, as after a while of serving.
            let pages: Vec<PageId> = (0..19).map(|i| PageId((i * 7 + 3) % 64)).collect();
            let mut got = Vec::new();
            for range in [0..1, 1..18, 18..150, 150..151, 151..299, 299..300] {
                let result = harness.step(&[(&pages, range.start, &rows[range.clone()])]);
                got.extend(result);
            }
            for t in [0, 1, 16, 17, 18, 127, 128, 129, 150, 255, 299] {
                let want = formula(&rows[..=t], style);
                for (i, (got, want)) in got[t].iter().zip(&want).enumerate() {
                    let error = (f64::from(*got) - want).abs();
                    // Keys and values are rounded to half floats: 2^-11 of values up to 3, scores up to some tens.
                    assert!(error < 0.02, "{} {style:?} token {t} element {i}: {got} for {want}", set.name());
                }
            }
        }
    }
}

#[test]
fn sequences_in_one_batch_do_not_see_each_other() {
    let mut random = Random(6);
    for (format, (set, pool)) in pools_and_formats() {
        let mut harness = Harness::of(pool, RopeStyle::Interleaved, format);
        let (a, b) = (rows(&mut random, 40), rows(&mut random, 25));
        let together = harness.step(&[(&ids([5, 6, 7]), 0, &a), (&ids([1, 2]), 0, &b)]);
        let alone_a = harness.step(&[(&ids([10, 11, 12]), 0, &a)]);
        let alone_b = harness.step(&[(&ids([20, 21]), 0, &b)]);
        assert_eq!(together[..40], alone_a, "{}", set.name());
        assert_eq!(together[40..], alone_b, "{}", set.name());
    }
}

#[test]
fn what_stands_in_a_page_beyond_the_last_token_has_no_effect() {
    let mut random = Random(7);
    for (format, (set, pool)) in pools_and_formats() {
        let mut harness = Harness::of(pool, RopeStyle::Interleaved, format);
        let short = rows(&mut random, 3);
        let clean = harness.step(&[(&ids([1]), 0, &short)]);
        // Too large for a half float: infinities are left in the page.
        let huge: Vec<Vec<f32>> = vec![vec![1e6; (HEADS + 4) * 32]; PAGE_TOKENS];
        harness.step(&[(&ids([2]), 0, &huge)]);
        let dirty = harness.step(&[(&ids([2]), 0, &short)]);
        assert_eq!(clean, dirty, "{}", set.name());
    }
}

#[test]
fn a_sequence_of_nans_and_infinities_does_not_spoil_its_neighbour() {
    let mut random = Random(8);
    for (format, (set, pool)) in pools_and_formats() {
        let mut harness = Harness::of(pool, RopeStyle::Halves, format);
        let (sound, mut broken) = (rows(&mut random, 20), rows(&mut random, 20));
        for (t, value) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].into_iter().enumerate() {
            broken[t * 7].iter_mut().skip(t).step_by(3).for_each(|v| *v = value);
        }
        let together = harness.step(&[(&ids([1, 2]), 0, &broken), (&ids([3, 4]), 0, &sound)]);
        assert_eq!(together[20..], harness.step(&[(&ids([5, 6]), 0, &sound)]), "{}", set.name());
    }
}

#[test]
fn queries_and_keys_are_normalized_before_they_are_rotated() {
    let mut random = Random(9);
    for (set, pool) in pools() {
        let mut harness = Harness::new(pool, RopeStyle::Halves);
        let norm = [random.floats(32), random.floats(32)];
        harness.norm = Some(norm.clone());
        let rows = rows(&mut random, 40);
        let got = harness.step(&[(&ids([5, 6, 7]), 0, &rows)]);
        let normalized: Vec<Vec<f32>> = rows
            .iter()
            .map(|row| {
                let heads = row.chunks_exact(32).enumerate().map(|(head, values)| match head {
                    0..HEADS => reference::rms_norm(values, &norm[0], EPSILON),
                    _ if head < HEADS + 2 => reference::rms_norm(values, &norm[1], EPSILON),
                    _ => values.to_vec(),
                });
                heads.flatten().collect()
            })
            .collect();
        for t in [0, 17, 39] {
            let want = formula(&normalized[..=t], RopeStyle::Halves);
            for (got, want) in got[t].iter().zip(&want) {
                assert!((f64::from(*got) - want).abs() < 0.02, "{} token {t}: {got} for {want}", set.name());
            }
        }
    }
}

#[test]
fn scores_are_capped_and_sinks_take_their_share() {
    let mut random = Random(10);
    let style = RopeStyle::Halves;
    for (set, pool) in pools() {
        let mut harness = Harness::new(pool, style);
        let rows = rows(&mut random, 300);
        let pages: Vec<PageId> = (0..19).map(PageId).collect();
        // One that nothing reaches, one that takes nearly all, and some between.
        let sinks = vec![-90.0, 90.0, 0.0, 5.0, -3.0, 1.5];
        for (softcap, sinks) in [(Some(4.0), None), (None, Some(sinks.clone())), (Some(30.0), Some(sinks))] {
            harness.softcap = softcap;
            harness.sinks = sinks.clone();
            let mut got = harness.step(&[(&pages, 0, &rows[..200])]);
            got.extend((200..300).flat_map(|t| harness.step(&[(&pages, t, &rows[t..=t])])));
            for t in [0, 1, 17, 128, 199, 200, 299] {
                let want = formula_with(&rows[..=t], style, softcap, sinks.as_deref());
                for (i, (got, want)) in got[t].iter().zip(&want).enumerate() {
                    assert!((f64::from(*got) - want).abs() < 0.02, "{} token {t} {i}: {got} for {want}", set.name());
                }
            }
        }
    }
}
