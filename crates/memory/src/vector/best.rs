//! The best candidates of a search, by similarity.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A similarity as an integer that sorts like it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank(u32);

impl Rank {
    /// Below that of every similarity.
    pub const LOWEST: Self = Self(0);

    pub fn of(similarity: f32) -> Self {
        let bits = similarity.to_bits();
        Self(if bits >> 31 == 1 { !bits } else { bits | 1 << 31 })
    }

    pub fn similarity(self) -> f32 {
        f32::from_bits(if self.0 >> 31 == 1 { self.0 & !(1 << 31) } else { !self.0 })
    }
}

/// A number and the similarity of what it stands for. Sorts by similarity; of equals, the lower number is the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Scored(u64);

impl Scored {
    pub fn new(similarity: f32, number: u32) -> Self {
        Self(u64::from(Rank::of(similarity).0) << 32 | u64::from(!number))
    }

    pub fn rank(self) -> Rank {
        Rank((self.0 >> 32) as u32)
    }

    pub fn similarity(self) -> f32 {
        self.rank().similarity()
    }

    pub fn number(self) -> u32 {
        !(self.0 as u32)
    }
}

/// The best candidates so far, up to a maximum.
#[derive(Debug)]
pub(super) struct Best {
    most: usize,
    heap: BinaryHeap<Reverse<Scored>>,
}

impl Best {
    pub fn new(most: usize) -> Self {
        Self { most, heap: BinaryHeap::with_capacity(most.min(1024)) }
    }

    pub fn offer(&mut self, scored: Scored) {
        if self.heap.len() < self.most {
            self.heap.push(Reverse(scored));
        } else if let Some(mut worst) = self.heap.peek_mut()
            && scored > worst.0
        {
            worst.0 = scored;
        }
    }

    /// Returns the key that a candidate must exceed to be among the best.
    pub fn bound(&self) -> Rank {
        match self.heap.peek() {
            Some(Reverse(worst)) if self.heap.len() == self.most => worst.rank(),
            _ => Rank::LOWEST,
        }
    }

    /// Returns the candidates, best first.
    pub fn into_sorted(self) -> Vec<Scored> {
        self.heap.into_sorted_vec().into_iter().map(|scored| scored.0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_sort_like_similarities_and_give_them_back() {
        let sorted = [-1.0, -0.5, -1e-20, 0.0, 1e-20, 0.3, 0.999, 1.0];
        for pair in sorted.windows(2) {
            assert!(Rank::LOWEST < Rank::of(pair[0]) && Rank::of(pair[0]) < Rank::of(pair[1]), "{pair:?}");
            assert_eq!(Rank::of(pair[0]).similarity(), pair[0]);
        }
        assert!(Scored::new(0.5, 3) > Scored::new(0.5, 4) && Scored::new(0.5, 3) < Scored::new(0.6, 4));
        assert_eq!(Scored::new(-0.25, 77).number(), 77);
    }

    #[test]
    fn the_best_are_kept_and_the_bound_is_the_worst_of_them() {
        let mut best = Best::new(3);
        for number in [5, 1, 9, 3, 7, 2] {
            best.offer(Scored::new(number as f32, number));
        }
        assert_eq!(best.bound(), Rank::of(5.0));
        assert_eq!(best.into_sorted().iter().map(|scored| scored.number()).collect::<Vec<_>>(), [9, 7, 5]);
    }
}
