//! A bit set.

/// A set of numbers below a limit, one bit for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct BitSet {
    words: Vec<u64>,
}

impl BitSet {
    /// Empties the set and makes room for numbers below `len`.
    pub fn reset(&mut self, len: usize) {
        self.words.clear();
        self.words.resize(len.div_ceil(64), 0);
    }

    /// Makes room for numbers below `len`.
    pub fn grow(&mut self, len: usize) {
        self.words.resize(len.div_ceil(64).max(self.words.len()), 0);
    }

    pub fn contains(&self, number: usize) -> bool {
        self.words[number / 64] >> (number % 64) & 1 == 1
    }

    /// Adds a number. Returns whether it is new.
    pub fn insert(&mut self, number: usize) -> bool {
        let (word, bit) = (&mut self.words[number / 64], 1 << (number % 64));
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }

    /// Removes a number. Returns whether it was in the set.
    pub fn remove(&mut self, number: usize) -> bool {
        let (word, bit) = (&mut self.words[number / 64], 1 << (number % 64));
        let there = *word & bit != 0;
        *word &= !bit;
        there
    }

    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Returns the numbers from `first` on, in ascending order.
    pub fn iter_from(&self, first: usize) -> impl Iterator<Item = usize> + '_ {
        let skipped = first / 64;
        self.words.iter().enumerate().skip(skipped).flat_map(move |(i, word)| {
            let mut left = if i == skipped { word & u64::MAX << (first % 64) } else { *word };
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(i * 64 + bit)
            })
        })
    }

    pub fn words(&self) -> &[u64] {
        &self.words
    }

    pub fn words_mut(&mut self) -> &mut [u64] {
        &mut self.words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holds_what_was_put_in_and_tells_it_in_order() {
        for len in [0, 1, 63, 64, 65, 200] {
            let mut some = BitSet::default();
            some.reset(len);
            for number in (0..len).step_by(3) {
                assert!(some.insert(number) && !some.insert(number) && some.contains(number));
            }
            assert_eq!((some.count(), some.iter_from(0).eq((0..len).step_by(3))), (len.div_ceil(3), true));
            assert!(some.iter_from(len / 2).eq((0..len).step_by(3).filter(|number| *number >= len / 2)));
            assert!((0..len).all(|number| some.remove(number) == (number % 3 == 0)));
            assert_eq!(some.count(), 0);
        }
    }
}
