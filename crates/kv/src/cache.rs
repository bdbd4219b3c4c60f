//! Pages of 16 tokens, handed out to sequences and taken back.

use ruvllm_kernels::Pool;
use ruvllm_kernels::ops::{KvBuffer, KvShape, PAGE_TOKENS};

/// The pages of one sequence, in the order of its tokens.
#[derive(Debug, Default)]
pub struct PageTable {
    pages: Vec<u32>,
}

impl PageTable {
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Tokens that fit into the pages held.
    pub fn capacity_tokens(&self) -> usize {
        self.pages.len() * PAGE_TOKENS
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("{needed} KV pages are needed and {free} are free")]
pub struct OutOfPages {
    pub needed: usize,
    pub free: usize,
}

/// All pages of a model, and which of them are free.
#[derive(Debug)]
pub struct KvCache {
    buffer: KvBuffer,
    free: Vec<u32>,
}

impl KvCache {
    /// `pages` pages for the threads of `pool`.
    pub fn new(pool: &Pool, shape: KvShape, pages: u32) -> Self {
        // Reversed, so that low pages are handed out first and memory is touched in order.
        Self { buffer: KvBuffer::new(pool, shape, pages as usize), free: (0..pages).rev().collect() }
    }

    pub fn buffer(&self) -> &KvBuffer {
        &self.buffer
    }

    pub fn pages(&self) -> usize {
        self.buffer.pages()
    }

    pub fn free_pages(&self) -> usize {
        self.free.len()
    }

    /// Pages that `tokens` tokens take.
    pub fn pages_for(tokens: usize) -> usize {
        tokens.div_ceil(PAGE_TOKENS)
    }

    /// Gives `table` room for `tokens` tokens in all, or changes nothing.
    pub fn reserve(&mut self, table: &mut PageTable, tokens: usize) -> Result<(), OutOfPages> {
        let needed = Self::pages_for(tokens).saturating_sub(table.pages.len());
        if needed > self.free.len() {
            return Err(OutOfPages { needed, free: self.free.len() });
        }
        table.pages.extend(self.free.drain(self.free.len() - needed..).rev());
        Ok(())
    }

    /// Takes back the pages of a sequence that has ended.
    pub fn release(&mut self, table: PageTable) {
        self.free.extend(table.pages.into_iter().rev());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use ruvllm_kernels::KernelSet;

    use super::*;

    fn cache(pages: u32) -> KvCache {
        let pool = Pool::new(1, KernelSet::Scalar);
        KvCache::new(&pool, KvShape { layers: 1, kv_heads: 1, head_dim: 16 }, pages)
    }

    #[test]
    fn a_refused_reservation_changes_nothing() {
        let mut cache = cache(3);
        let mut table = PageTable::default();
        cache.reserve(&mut table, 17).unwrap();
        assert_eq!(cache.reserve(&mut table, 100), Err(OutOfPages { needed: 5, free: 1 }));
        assert_eq!((table.pages(), cache.free_pages()), (&[0, 1][..], 1));
        cache.reserve(&mut table, 48).unwrap();
        assert_eq!(table.capacity_tokens(), 48);
    }

    proptest! {
        #[test]
        fn every_page_has_one_owner(steps in prop::collection::vec((0usize..6, 0usize..200), 1..100)) {
            let mut cache = cache(24);
            let mut tables: Vec<PageTable> = (0..6).map(|_| PageTable::default()).collect();
            for (who, tokens) in steps {
                if tokens < 40 {
                    cache.release(std::mem::take(&mut tables[who]));
                } else {
                    // Refusals are part of the game; the invariant below must hold after them too.
                    let _ = cache.reserve(&mut tables[who], tokens);
                }
                let owned: Vec<u32> = tables.iter().flat_map(|table| table.pages().to_vec()).collect();
                let distinct: BTreeSet<u32> = owned.iter().copied().collect();
                prop_assert_eq!(distinct.len(), owned.len());
                prop_assert_eq!(owned.len() + cache.free_pages(), 24);
            }
        }
    }
}
