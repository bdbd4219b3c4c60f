//! Small numbers as bits, with a quick way to the least of them.

/// Numbers below a bound.
#[derive(Clone, Debug)]
pub(super) struct BitSet {
    words: Vec<u64>,
    /// No word before this one has a bit.
    low: usize,
}

impl BitSet {
    /// No numbers, and room for those below `end`.
    pub(super) fn new(end: usize) -> Self {
        Self { words: vec![0; end.div_ceil(64)], low: 0 }
    }

    /// All numbers below `end` and no others.
    pub(super) fn fill(&mut self, end: usize) {
        for (i, word) in self.words.iter_mut().enumerate() {
            let bits = end.saturating_sub(i * 64).min(64);
            *word = if bits == 64 { u64::MAX } else { (1 << bits) - 1 };
        }
        self.low = 0;
    }

    pub(super) fn insert(&mut self, number: usize) {
        self.words[number / 64] |= 1 << (number % 64);
        self.low = self.low.min(number / 64);
    }

    pub(super) fn remove(&mut self, number: usize) {
        self.words[number / 64] &= !(1 << (number % 64));
    }

    pub(super) fn contains(&self, number: usize) -> bool {
        self.words[number / 64] >> (number % 64) & 1 == 1
    }

    /// All numbers, from the least.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        let bits = |word: u64| (0..64).filter(move |bit| word >> bit & 1 == 1);
        self.words.iter().enumerate().flat_map(move |(i, word)| bits(*word).map(move |bit| i * 64 + bit))
    }

    /// The least number.
    pub(super) fn first(&mut self) -> Option<usize> {
        let found = self.words[self.low..].iter().position(|word| *word != 0);
        self.low = found.map_or(self.words.len(), |skipped| self.low + skipped);
        found.map(|_| self.low * 64 + self.words[self.low].trailing_zeros() as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_number_is_found_after_any_change() {
        let mut set = BitSet::new(200);
        assert_eq!(set.first(), None);
        set.insert(130);
        assert_eq!(set.first(), Some(130));
        set.insert(64);
        assert_eq!(set.first(), Some(64));
        set.remove(64);
        assert_eq!(set.first(), Some(130));
        assert!(set.contains(130) && !set.contains(64));
        set.insert(3);
        assert_eq!(set.iter().collect::<Vec<_>>(), [3, 130]);
        set.remove(3);
        set.remove(130);
        assert_eq!(set.first(), None);
        set.fill(65);
        (0..65).for_each(|number| {
            assert_eq!(set.first(), Some(number));
            set.remove(number);
        });
        assert_eq!(set.first(), None);
    }
}
