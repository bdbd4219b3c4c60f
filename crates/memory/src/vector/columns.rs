//! The facets of a segment's entries, stored by column, so that a filter reads only the facets it needs.

use ruvllm_kernels::KernelSet;
use ruvllm_kernels::ops::keep_in_range;

use super::bits::BitSet;
use super::facets::{FACETS, Facets, Filter};

#[derive(Debug, Default)]
pub(super) struct Columns {
    columns: [Column; FACETS],
}

#[derive(Debug)]
struct Column {
    values: Vec<u32>,
    /// Bounds of all values. Entries with the extreme values may have been removed.
    least: u32,
    most: u32,
}

impl Default for Column {
    fn default() -> Self {
        Self { values: Vec::new(), least: u32::MAX, most: 0 }
    }
}

impl Column {
    fn widen(&mut self, value: u32) {
        self.least = self.least.min(value);
        self.most = self.most.max(value);
    }
}

impl Columns {
    pub fn push(&mut self, facets: Facets) {
        for (column, value) in self.columns.iter_mut().zip(facets.0) {
            column.values.push(value);
            column.widen(value);
        }
    }

    pub fn set(&mut self, entry: usize, facets: Facets) {
        for (column, value) in self.columns.iter_mut().zip(facets.0) {
            column.values[entry] = value;
            column.widen(value);
        }
    }

    pub fn get(&self, entry: usize) -> Facets {
        Facets(std::array::from_fn(|facet| self.columns[facet].values[entry]))
    }

    /// Removes the entries that a filter does not accept.
    pub fn keep_accepted(&self, filter: &Filter, entries: &mut BitSet) {
        let kernels = KernelSet::best();
        for (column, (least, most)) in self.columns.iter().zip(*filter.ranges()) {
            if column.least < least || column.most > most {
                keep_in_range(kernels, &column.values, least..=most, entries.words_mut());
            }
        }
        if let Some((facet, values)) = filter.one_of() {
            let before = entries.clone();
            entries.words_mut().fill(0);
            for value in values {
                let mut with_value = before.clone();
                keep_in_range(kernels, &self.columns[facet].values, *value..=*value, with_value.words_mut());
                entries.words_mut().iter_mut().zip(with_value.words()).for_each(|(all, some)| *all |= some);
            }
        }
    }

    pub fn memory_bytes(&self) -> usize {
        self.columns.iter().map(|column| column.values.capacity() * size_of::<u32>()).sum()
    }
}
