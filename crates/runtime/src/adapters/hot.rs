//! Which adapters are in memory, within a budget of bytes. Knows neither files nor weights.

use std::collections::HashMap;
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
    bytes: usize,
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
        found.used = self.clock;
        self.hits += 1;
        Some(Arc::clone(&found.reserved))
    }

    pub(super) fn is_loading(&self, id: AdapterId) -> bool {
        self.all.get(&id).is_some_and(|hot| hot.is_loading)
    }

    /// Makes room for an adapter that is about to be loaded.
    pub(super) fn reserve(
        &mut self,
        id: AdapterId,
        made_of: Vec<AdapterId>,
        bytes: usize,
        dropped: impl FnMut(AdapterId),
    ) -> Result<(), AdapterError> {
        let held: usize = self.all.values().filter(|hot| hot.is_held()).map(|hot| hot.bytes).sum();
        let available = self.budget_bytes.saturating_sub(held);
        if bytes > available {
            return Err(AdapterError::NoRoom { needed: bytes, available, budget: self.budget_bytes });
        }
        self.shrink_to(self.budget_bytes - bytes, dropped);
        self.clock += 1;
        self.bytes += bytes;
        let hot = Hot { reserved: Arc::new(()), bytes, made_of, is_loading: true, used: self.clock };
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
        if self.is_loading(id)
            && let Some(hot) = self.all.remove(&id)
        {
            self.bytes -= hot.bytes;
        }
    }

    pub(super) fn set_budget(&mut self, bytes: usize, dropped: impl FnMut(AdapterId)) {
        self.budget_bytes = bytes;
        self.shrink_to(bytes, dropped);
    }

    /// Drops what is not held and made of adapters that are not wanted any more.
    pub(super) fn drop_unless(&mut self, is_wanted: impl Fn(&[AdapterId]) -> bool, mut dropped: impl FnMut(AdapterId)) {
        let bytes = &mut self.bytes;
        self.all.retain(|id, hot| {
            let stays = hot.is_held() || is_wanted(&hot.made_of);
            if !stays {
                *bytes -= hot.bytes;
                dropped(*id);
            }
            stays
        });
    }

    /// Drops adapters that nobody holds, those first that were not used for longest, until the rest takes no more than `bytes`.
    fn shrink_to(&mut self, bytes: usize, mut dropped: impl FnMut(AdapterId)) {
        while self.bytes > bytes {
            let idle = self.all.iter().filter(|(_, hot)| !hot.is_held());
            let Some(id) = idle.min_by_key(|(_, hot)| hot.used).map(|(id, _)| *id) else { return };
            self.bytes -= self.all.remove(&id).map_or(0, |hot| hot.bytes);
            self.evictions += 1;
            dropped(id);
        }
    }

    pub(super) fn stats(&self) -> AdapterStats {
        AdapterStats {
            registered: 0,
            hot: self.all.len(),
            hot_bytes: self.bytes,
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
        hot.reserve(id(number), vec![id(number)], 10, |id| dropped.push(id))?;
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
    fn a_load_that_fails_gives_its_room_back() {
        let mut hot = HotAdapters::default();
        hot.set_budget(10, |_| {});
        hot.reserve(id(1), vec![id(1)], 10, |_| {}).unwrap();
        assert!(hot.is_loading(id(1)) && hot.find(id(1)).is_none());
        hot.end_loading(id(1));
        assert_eq!((hot.stats().hot, hot.stats().hot_bytes), (0, 0));
        assert!(load(&mut hot, 2, &mut Vec::new()).is_ok());
    }
}
