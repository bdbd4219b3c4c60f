//! Random vectors, and the list that an index is compared with.

use std::collections::BTreeMap;

use ruvllm_memory::vector::{FACETS, Facets, Filter, Hit, IndexOptions, Query, VectorCode, VectorIndex};

/// A small generator (SplitMix64): the same numbers for the same seed everywhere.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Uniform in -1..1.
    pub fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub fn vector(&mut self, dimension: usize) -> Vec<f32> {
        (0..dimension).map(|_| self.float()).collect()
    }

    /// Near one of so many centres, which are the same for all generators.
    pub fn near_centre(&mut self, dimension: usize, centres: u64) -> (u64, Vec<f32>) {
        let centre = self.below(centres);
        (centre, self.near(&Random(centre).vector(dimension), 0.6))
    }

    pub fn near(&mut self, vector: &[f32], distance: f32) -> Vec<f32> {
        vector.iter().map(|x| x + distance * self.float()).collect()
    }

    /// Each facet below 100.
    pub fn facets(&mut self) -> Facets {
        Facets(std::array::from_fn(|_| self.below(100) as u32))
    }
}

/// All entries of an index, one after the other.
#[derive(Clone, Default)]
pub struct List(pub BTreeMap<u64, (VectorCode, Facets)>);

impl List {
    /// The index's answer if nothing escapes it.
    pub fn search(&self, vector: &[f32], k: usize, filter: &Filter) -> Vec<Hit> {
        let Some((code, _)) = self.0.values().next() else { return Vec::new() };
        let code = VectorCode::new(vector, code.dimension()).unwrap();
        let accepted = self.0.iter().filter(|(_, (_, facets))| filter.accepts(facets));
        let mut hits: Vec<Hit> =
            accepted.map(|(id, entry)| Hit { id: *id, similarity: entry.0.similarity(&code) }).collect();
        hits.sort_by(|a, b| b.similarity.total_cmp(&a.similarity).then(a.id.cmp(&b.id)));
        hits.truncate(k);
        hits
    }

    pub fn entries(&self) -> Vec<(u64, VectorCode, Facets)> {
        self.0.iter().map(|(id, (code, facets))| (*id, code.clone(), *facets)).collect()
    }
}

/// An index and the list of what is in it.
pub struct Both {
    pub index: VectorIndex,
    pub list: List,
}

impl Both {
    pub fn new(dimension: usize, options: IndexOptions) -> Self {
        Self { index: VectorIndex::new(dimension, options).unwrap(), list: List::default() }
    }

    pub fn insert(&mut self, id: u64, vector: &[f32], facets: Facets) {
        let code = VectorCode::new(vector, self.index.dimension()).unwrap();
        self.index.insert(id, &code, facets).unwrap();
        self.list.0.insert(id, (code, facets));
    }

    pub fn remove(&mut self, id: u64) {
        assert_eq!(self.index.remove(id), self.list.0.remove(&id).is_some());
    }

    /// The part of the best `k` that the index finds, as good as they are: which of equals it finds is its choice. All that
    /// it finds must be right.
    pub fn recall(&self, vector: &[f32], k: usize, filter: &Filter) -> f32 {
        let hits = self.index.search(&Query { vector, k, filter: filter.clone(), ef: None }).unwrap();
        let code = VectorCode::new(vector, self.index.dimension()).unwrap();
        assert!(hits.is_sorted_by(|a, b| a.similarity >= b.similarity));
        let mut ids: Vec<u64> = hits.iter().map(|hit| hit.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), hits.len(), "an entry was found twice");
        for hit in &hits {
            let (stored, facets) = &self.list.0[&hit.id];
            assert!(filter.accepts(facets), "{} is not accepted", hit.id);
            assert!((hit.similarity - stored.similarity(&code)).abs() < 1e-5);
        }
        let wanted = self.list.search(vector, k, filter);
        let Some(worst) = wanted.last() else { return 1.0 };
        hits.iter().filter(|hit| hit.similarity >= worst.similarity - 1e-6).count() as f32 / wanted.len() as f32
    }
}

pub const EVERY_FACET: std::ops::Range<usize> = 0..FACETS;
