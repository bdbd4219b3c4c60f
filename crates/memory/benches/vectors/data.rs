//! Entries around centres, queries near them, filters of several kinds, and what a search should find.

use ruvllm_memory::vector::{FACETS, Facets, Filter};

pub const K: usize = 10;
const CENTRES: usize = 1000;
/// Facets that are spread evenly over 0..1000, whatever the vector.
const EVEN: std::ops::Range<usize> = 0..7;
/// The number of the centre.
const CENTRE: usize = 7;
/// How far entries are from their centre, which is at 1.
const SPREAD: f32 = 0.7;
/// A small generator (SplitMix64): the same numbers for the same seed everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// About normally distributed, with variance 1.
    fn normal(&mut self) -> f32 {
        let bits = self.next();
        let sum: f32 = (0..4).map(|i| (bits >> (16 * i) & 0xffff) as f32 / 65_536.0).sum();
        (sum - 2.0) * 3f32.sqrt()
    }
}

/// Entries and queries, made anew whenever they are needed: in floats they would take gigabytes.
pub struct Data {
    dimension: usize,
    centres: Vec<Vec<f32>>,
}

impl Data {
    pub fn new(dimension: usize) -> Self {
        let mut random = Random(1);
        Self { dimension, centres: (0..CENTRES).map(|_| (0..dimension).map(|_| random.normal()).collect()).collect() }
    }

    pub fn vector(&self, number: u64) -> (Vec<f32>, Facets) {
        let mut random = Random(number.wrapping_mul(0x5851_f42d_4c95_7f2d) ^ 0x1234_5678);
        let mut facets = [0; FACETS];
        EVEN.for_each(|facet| facets[facet] = (random.next() % 1000) as u32);
        let centre = (random.next() % CENTRES as u64) as usize;
        facets[CENTRE] = centre as u32;
        let mut vector: Vec<f32> =
            (0..self.dimension).map(|i| self.centres[centre][i] + SPREAD * random.normal()).collect();
        let length = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
        vector.iter_mut().for_each(|x| *x /= length);
        (vector, Facets(facets))
    }
}

/// A kind of filter, which may depend on the centre that a query is near to.
pub struct Kind {
    pub name: &'static str,
    pub filter: fn(u32) -> Filter,
}

fn below(facet: usize, end: u32) -> Filter {
    Filter::default().with_range(facet, 0..=end - 1)
}

pub const KINDS: [Kind; 14] = [
    Kind { name: "everything", filter: |_| Filter::default() },
    Kind { name: "50 %", filter: |_| below(0, 500) },
    Kind { name: "20 %", filter: |_| below(0, 200) },
    Kind { name: "10 %", filter: |_| below(0, 100) },
    Kind { name: "5 %", filter: |_| below(0, 50) },
    Kind { name: "2 %", filter: |_| below(0, 20) },
    Kind { name: "1 %", filter: |_| below(0, 10) },
    Kind { name: "0.1 %", filter: |_| below(0, 1) },
    Kind {
        name: "six facets, 26 %",
        filter: |_| (0..6).fold(Filter::default(), |filter, facet| filter.with_range(facet, 100..=899)),
    },
    Kind {
        name: "six facets, 1.6 %",
        filter: |_| (0..6).fold(Filter::default(), |filter, facet| filter.with_range(facet, 250..=749)),
    },
    Kind { name: "one of 5 values", filter: |_| Filter::default().with_one_of(1, &[3, 141, 592, 653, 5]) },
    Kind { name: "near ones only", filter: |centre| Filter::default().with_value(CENTRE, centre) },
    Kind { name: "20 %, near ones not", filter: |centre| away(centre, 200) },
    Kind { name: "50 %, near ones not", filter: |centre| away(centre, 500) },
];

/// So many centres, of which the given one is none.
fn away(centre: u32, count: u32) -> Filter {
    let first = if centre < 500 { 500 } else { 0 };
    Filter::default().with_range(CENTRE, first..=first + count - 1)
}

pub struct Asked {
    pub vector: Vec<f32>,
    /// For each kind of filter, and the ten nearest that it accepts.
    pub filters: Vec<Filter>,
    pub nearest: Vec<Vec<(f32, u64)>>,
}

pub fn ask(data: &Data, entries: u64, queries: u64) -> Vec<Asked> {
    let mut asked: Vec<Asked> = (0..queries)
        .map(|query| {
            let (vector, facets) = data.vector(1 << 40 | query);
            let filters = KINDS.iter().map(|kind| (kind.filter)(facets.0[CENTRE])).collect();
            Asked { vector, filters, nearest: vec![Vec::new(); KINDS.len()] }
        })
        .collect();
    for id in 0..entries {
        let (vector, facets) = data.vector(id);
        for asked in &mut asked {
            let cosine = dot(&asked.vector, &vector);
            for (nearest, filter) in asked.nearest.iter_mut().zip(&asked.filters) {
                if nearest.last().is_none_or(|last| nearest.len() < K || cosine > last.0) && filter.accepts(&facets) {
                    nearest.insert(nearest.partition_point(|other| other.0 > cosine), (cosine, id));
                    nearest.truncate(K);
                }
            }
        }
    }
    asked
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a, b) = (a.as_chunks::<16>().0, b.as_chunks::<16>().0);
    let mut sums = [0f32; 16];
    for (a, b) in a.iter().zip(b) {
        (0..16).for_each(|i| sums[i] += a[i] * b[i]);
    }
    sums.iter().sum()
}
