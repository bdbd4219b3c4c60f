//! Which adapters are in memory, within a budget of bytes. Knows neither files nor weights.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use ruvllm_engine::AdapterId;
use ruvllm_model::adapters::AdapterError;

use super::AdapterStats;

/// Keeps an adapter in memory while a clone of it lives.
pub(super) type Reserved = Arc<()>;

/// Adapters in memory or on their way there, least recently used first to go.
#[derive(Debug, Default)]
pub(super) struct HotAdapters {
    all: HashMap<AdapterId, Hot>,
    /// The same by their last use.
    by_use: BTreeMap<u64, AdapterId>,
    bytes: usize,
    /// Products of a batch with the adapter that has most ranks, of all so far: buffers stay.
    products_bytes: usize,
    budget_bytes: usize,
    /// Counts uses.
    clock: u64,
    loads: u64,
    evictions: u64,
    hits: u64,
}

#[derive(Debug)]
struct Hot {
    reserved: Reserved,
    bytes: usize,
    /// The registered adapters that it is made of.
    made_of: Vec<AdapterId>,
    is_loading: bool,
    used: u64,
}

impl Hot {
    fn is_held(&self) -> bool {
        self.is_loading || Arc::strong_count(&self.reserved) > 1
    }
}

impl HotAdapters {
    /// Returns a hold on an adapter that is in memory.
    pub(super) fn find(&mut self, id: AdapterId) -> Option<Reserved> {
        self.clock += 1;
        let found = self.all.get_mut(&id).filter(|hot| !hot.is_loading)?;
        self.by_use.remove(&found.used);
        self.by_use.insert(self.clock, id);
        found.used = self.clock;
        self.hits += 1;
        Some(Arc::clone(&found.reserved))
    }

    /// The adapters in memory that were used last, latest first.
    pub(super) fn recent(&self) -> impl Iterator<Item = AdapterId> {
        self.by_use.values().rev().copied()
    }

    pub(super) fn is_loading(&self, id: AdapterId) -> bool {
        self.all.get(&id).is_some_and(|hot| hot.is_loading)
    }

    /// Makes room for an adapter that is about to be loaded, and for its products in a batch.
    pub(super) fn reserve(
        &mut self,
        id: AdapterId,
        made_of: Vec<AdapterId>,
        bytes: usize,
        products_bytes: usize,
        dropped: impl FnMut(AdapterId),
    ) -> Result<(), AdapterError> {
        let products_bytes = self.products_bytes.max(products_bytes);
        let held: usize = self.all.values().filter(|hot| hot.is_held()).map(|hot| hot.bytes).sum();
        let available = self.budget_bytes.saturating_sub(held.saturating_add(products_bytes));
        if bytes > available {
            return Err(AdapterError::NoRoom { needed: bytes, available, budget: self.budget_bytes });
        }
        self.products_bytes = products_bytes;
        self.shrink_to(self.budget_bytes - products_bytes - bytes, dropped);
        self.clock += 1;
        self.bytes += bytes;
        let hot = Hot { reserved: Arc::new(()), bytes, made_of, is_loading: true, used: self.clock };
        self.by_use.insert(hot.used, id);
        self.all.insert(id, hot);
        Ok(())
    }

    /// Says that an adapter is in memory now, and how much of it. Returns a hold on it.
    pub(super) fn publish(&mut self, id: AdapterId, bytes: usize) -> Reserved {
        let hot = self.all.get_mut(&id).expect("it was reserved");
        self.bytes = self.bytes - hot.bytes + bytes;
        (hot.bytes, hot.is_loading) = (bytes, false);
        self.loads += 1;
        Arc::clone(&hot.reserved)
    }

    /// Gives back what was reserved if the adapter was not published.
    pub(super) fn end_loading(&mut self, id: AdapterId) {
        if self.is_loading(id) {
            self.remove(id);
        }
    }

    pub(super) fn set_budget(&mut self, bytes: usize, dropped: impl FnMut(AdapterId)) {
        self.budget_bytes = bytes;
        self.shrink_to(bytes.saturating_sub(self.products_bytes), dropped);
    }

    /// Drops what is not held and made of adapters that are not wanted any more. Returns whether some of that is held.
    pub(super) fn drop_unless(
        &mut self,
        is_wanted: impl Fn(&[AdapterId]) -> bool,
        mut dropped: impl FnMut(AdapterId),
    ) -> bool {
        let unwanted = self.all.iter().filter(|(_, hot)| !is_wanted(&hot.made_of));
        let (held, idle): (Vec<_>, Vec<_>) =
            unwanted.map(|(id, hot)| (*id, hot.is_held())).partition(|(_, is_held)| *is_held);
        for (id, _) in idle {
            self.remove(id);
            dropped(id);
        }
        !held.is_empty()
    }

    /// Drops adapters that nobody holds, those first that were not used for longest, until the rest takes no more than `bytes`.
    fn shrink_to(&mut self, bytes: usize, mut dropped: impl FnMut(AdapterId)) {
        while self.bytes > bytes {
            let Some(id) = self.by_use.values().find(|id| !self.all[*id].is_held()).copied() else { return };
            self.remove(id);
            self.evictions += 1;
            dropped(id);
        }
    }

    fn remove(&mut self, id: AdapterId) {
        if let Some(hot) = self.all.remove(&id) {
            self.by_use.remove(&hot.used);
            self.bytes -= hot.bytes;
        }
    }

    pub(super) fn stats(&self) -> AdapterStats {
        AdapterStats {
            registered: 0,
            hot: self.all.len(),
            hot_bytes: self.bytes,
            buffer_bytes: self.products_bytes,
            budget_bytes: self.budget_bytes,
            loads: self.loads,
            evictions: self.evictions,
            hits: self.hits,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> AdapterId {
        AdapterId([number; 32])
    }

    fn load(hot: &mut HotAdapters, number: u8, dropped: &mut Vec<AdapterId>) -> Result<Reserved, AdapterError> {
        hot.reserve(id(number), vec![id(number)], 10, 0, |id| dropped.push(id))?;
        Ok(hot.publish(id(number), 10))
    }

    #[test]
    fn what_was_not_used_for_longest_makes_room_and_what_is_held_does_not() {
        let (mut hot, mut dropped) = (HotAdapters::default(), Vec::new());
        hot.set_budget(30, |_| {});
        let held = load(&mut hot, 1, &mut dropped).unwrap();
        for number in 2..=3 {
            load(&mut hot, number, &mut dropped).unwrap();
        }
        assert!(hot.find(id(2)).is_some());
        load(&mut hot, 4, &mut dropped).unwrap();
        assert_eq!(hot.recent().collect::<Vec<_>>(), [id(4), id(2), id(1)]);
        assert_eq!(dropped, [id(3)], "1 is held, 2 was used since");
        let (_two, _four) = (hot.find(id(2)), hot.find(id(4)));
        let refused = load(&mut hot, 5, &mut dropped).unwrap_err();
        assert!(matches!(refused, AdapterError::NoRoom { needed: 10, available: 0, budget: 30 }));
        drop(held);
        load(&mut hot, 5, &mut dropped).unwrap();
        assert_eq!(dropped, [id(3), id(1)]);
        assert_eq!((hot.stats().hot, hot.stats().hot_bytes, hot.stats().evictions), (3, 30, 2));
    }

    #[test]
    fn products_of_the_most_ranks_are_within_the_budget() {
        let (mut hot, mut dropped) = (HotAdapters::default(), Vec::new());
        hot.set_budget(30, |_| {});
        load(&mut hot, 1, &mut dropped).unwrap();
        load(&mut hot, 2, &mut dropped).unwrap();
        hot.reserve(id(3), vec![id(3)], 10, 10, |id| dropped.push(id)).unwrap();
        let held = hot.publish(id(3), 10);
        assert_eq!((hot.stats().hot_bytes, hot.stats().buffer_bytes, &dropped[..]), (20, 10, &[id(1)][..]));
        let refused = hot.reserve(id(4), vec![id(4)], 10, 15, |_| {}).unwrap_err();
        assert!(matches!(refused, AdapterError::NoRoom { available: 5, .. }), "{refused}");
        drop(held);
        hot.set_budget(20, |id| dropped.push(id));
        assert_eq!((hot.stats().hot_bytes, dropped), (10, vec![id(1), id(2)]), "buffers stay");
    }

    #[test]
    fn a_load_that_fails_gives_its_room_back() {
        let mut hot = HotAdapters::default();
        hot.set_budget(10, |_| {});
        hot.reserve(id(1), vec![id(1)], 10, 0, |_| {}).unwrap();
        assert!(hot.is_loading(id(1)) && hot.find(id(1)).is_none());
        hot.end_loading(id(1));
        assert_eq!((hot.stats().hot, hot.stats().hot_bytes), (0, 0));
        assert!(load(&mut hot, 2, &mut Vec::new()).is_ok());
    }
}
