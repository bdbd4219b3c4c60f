//! What the cache has done.

use ruvllm_runner::PageFormat;

use crate::disk::DiskStats;

/// Look-ups of prefixes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookupStats {
    pub lookups: u64,
    /// Nothing but the last page was left to compute.
    pub full: u64,
    pub partial: u64,
    pub misses: u64,
    /// Tokens of all texts looked up, and those that needed not be computed.
    pub tokens: u64,
    pub tokens_saved: u64,
}

impl LookupStats {
    pub(crate) fn count(&mut self, tokens: usize, saved: usize, is_full: bool) {
        self.lookups += 1;
        self.tokens += tokens as u64;
        self.tokens_saved += saved as u64;
        *match (saved, is_full) {
            (0, _) => &mut self.misses,
            (_, true) => &mut self.full,
            (_, false) => &mut self.partial,
        } += 1;
    }
}

impl std::iter::Sum for LookupStats {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            lookups: sum.lookups + one.lookups,
            full: sum.full + one.full,
            partial: sum.partial + one.partial,
            misses: sum.misses + one.misses,
            tokens: sum.tokens + one.tokens,
            tokens_saved: sum.tokens_saved + one.tokens_saved,
        })
    }
}

/// The state of the cache and its counts since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    pub lookups: LookupStats,
    pub budget_bytes: usize,
    pub used_bytes: usize,
    /// Of these, bytes of cached prefixes that no sequence uses: they go where room is needed.
    pub idle_bytes: usize,
    /// Of a page in the format that new ones have.
    pub page_bytes: usize,
    /// With what lies between pages of different formats.
    pub held_bytes: usize,
    /// Of the tree of prefixes itself.
    pub bookkeeping_bytes: usize,
    /// Of the notes on tokens. Their share of the budget that was asked for is not part of `budget_bytes`.
    pub sidecar_bytes: usize,
    /// Recurrent states, of models that have them: bytes of those in use, and how many of them are snapshots.
    pub state_bytes: usize,
    pub snapshots: usize,
    /// Pages that hold something, and those of them that are cached prefixes.
    pub pages: usize,
    pub cached_pages: usize,
    /// Of these, the filled ones, which listeners are told of.
    pub whole_pages: usize,
    /// Pages that hold something, in the order of `PageFormat::every`.
    pub pages_by_format: [usize; PageFormat::COUNT],
    pub evicted_pages: u64,
    /// Evicted pages that had to be computed again: many of them mean that the budget is too small.
    pub regretted_pages: u64,
    /// Pages that went to a colder format.
    pub cooled_pages: u64,
    /// Pages that lost what layers with a window no longer need.
    pub trimmed_pages: u64,
    pub disk: Option<DiskStats>,
}
