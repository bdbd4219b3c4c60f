//! Sets of characters.

/// Ranges of code points: ascending, not touching, without surrogates.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct CharSet(Vec<(u32, u32)>);

const LAST: u32 = char::MAX as u32;
const SURROGATES: (u32, u32) = (0xD800, 0xDFFF);

impl CharSet {
    pub(super) fn of(ranges: impl IntoIterator<Item = (u32, u32)>) -> Self {
        let mut ranges: Vec<(u32, u32)> = ranges.into_iter().flat_map(without_surrogates).collect();
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(before) if first <= before.1 + 1 => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }

    pub(super) fn single(char: char) -> Self {
        Self(vec![(char as u32, char as u32)])
    }

    pub(super) fn everything() -> Self {
        Self::of([(0, LAST)])
    }

    pub(super) fn complement(&self) -> Self {
        let mut gaps = Vec::new();
        let mut from = 0;
        for &(first, last) in &self.0 {
            if from < first {
                gaps.push((from, first - 1));
            }
            from = last + 1;
        }
        if from <= LAST {
            gaps.push((from, LAST));
        }
        Self::of(gaps)
    }

    pub(super) fn union(&self, other: &Self) -> Self {
        Self::of(self.0.iter().chain(&other.0).copied())
    }

    pub(super) fn meets(&self, other: &Self) -> bool {
        let (mut mine, mut theirs) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(a), Some(b)) = (mine.peek(), theirs.peek()) {
            match () {
                () if a.1 < b.0 => drop(mine.next()),
                () if b.1 < a.0 => drop(theirs.next()),
                () => return true,
            }
        }
        false
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The only character, if there is just one.
    pub(super) fn only(&self) -> Option<char> {
        match self.0[..] {
            [(first, last)] if first == last => char::from_u32(first),
            _ => None,
        }
    }

    /// All characters whose UTF-8 begins like that of a member: a lexer that reads bytes cannot distinguish them yet.
    pub(super) fn widened_to_first_bytes(&self) -> Self {
        Self::of(self.0.iter().flat_map(|&(first, last)| first_byte_blocks(first, last)))
    }

    /// As a class of a regular expression.
    pub(super) fn to_class(&self) -> String {
        let ranges = self.0.iter().map(|&(first, last)| format!("\\x{{{first:x}}}-\\x{{{last:x}}}"));
        format!("[{}]", ranges.collect::<String>())
    }
}

fn without_surrogates((first, last): (u32, u32)) -> impl Iterator<Item = (u32, u32)> {
    let below = (first, last.min(SURROGATES.0 - 1));
    let above = (first.max(SURROGATES.1 + 1), last.min(LAST));
    [below, above].into_iter().filter(|(first, last)| first <= last)
}

fn first_byte_blocks(first: u32, last: u32) -> impl Iterator<Item = (u32, u32)> {
    // Code points with one, two, three and four bytes, and how many of them share a first byte.
    let blocks = [(0, 0x7F, 1), (0x80, 0x7FF, 1 << 6), (0x800, 0xFFFF, 1 << 12), (0x1_0000, LAST, 1 << 18)];
    blocks.into_iter().filter_map(move |(from, to, size)| {
        let (first, last) = (first.max(from), last.min(to));
        (first <= last).then(|| ((first / size * size).max(from), (last / size * size + size - 1).min(to)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &[(char, char)]) -> CharSet {
        CharSet::of(ranges.iter().map(|&(first, last)| (first as u32, last as u32)))
    }

    #[test]
    fn ranges_are_merged_and_complemented() {
        assert_eq!(set(&[('c', 'd'), ('a', 'b'), ('d', 'f')]), set(&[('a', 'f')]));
        assert_eq!(set(&[('b', 'y')]).complement().complement(), set(&[('b', 'y')]));
        assert!(CharSet::everything().complement().is_empty());
        assert!(!set(&[('a', 'c')]).meets(&set(&[('d', 'e')])));
        assert!(set(&[('a', 'c'), ('x', 'z')]).meets(&set(&[('d', 'x')])));
        assert_eq!(CharSet::everything().to_class(), "[\\x{0}-\\x{d7ff}\\x{e000}-\\x{10ffff}]");
    }

    #[test]
    fn characters_with_the_same_first_byte_are_one() {
        let widened = set(&[('é', 'é')]).widened_to_first_bytes();
        assert_eq!(widened, set(&[('À', 'ÿ')]));
        assert_eq!(set(&[('a', 'b')]).widened_to_first_bytes(), set(&[('a', 'b')]));
    }
}
