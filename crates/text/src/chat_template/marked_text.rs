//! Texts of a conversation with the marks of the [`guard`](super::guard) in them, handled as if the marks were not there.
//!
//! Lengths, positions and comparisons are those of the text without marks. Whatever is cut out of it keeps the marks that
//! touch its characters: a text that ends with `<` still says that the `<` begins no special token.

use std::borrow::Cow;
use std::ops::Range;

pub(super) use super::guard::SENTINEL as MARK;

const MARK_BYTES: usize = MARK.len_utf8();

/// Returns the text without its marks.
pub(super) fn plain(text: &str) -> Cow<'_, str> {
    match text.contains(MARK) {
        true => Cow::Owned(text.replace(MARK, "")),
        false => Cow::Borrowed(text),
    }
}

/// Returns the number of characters, marks excepted.
pub(super) fn count_chars(text: &str) -> usize {
    text.chars().filter(|char| *char != MARK).count()
}

/// A text whose parts are named by byte ranges of the text without marks.
#[derive(Debug)]
pub(super) struct MarkedText<'t> {
    marked: &'t str,
    plain: Cow<'t, str>,
    /// Positions of marks in the plain text, ascending.
    marks: Vec<usize>,
}

impl<'t> MarkedText<'t> {
    pub(super) fn new(marked: &'t str) -> Self {
        let found = marked.match_indices(MARK).enumerate();
        let marks = found.map(|(before, (at, _))| at - before * MARK_BYTES).collect();
        Self { marked, plain: plain(marked), marks }
    }

    pub(super) fn plain(&self) -> &str {
        &self.plain
    }

    /// Returns a part with the marks in it and at its ends; an empty one has none.
    pub(super) fn cut(&self, part: Range<usize>) -> &'t str {
        if part.is_empty() {
            return "";
        }
        let before = self.marks.partition_point(|&mark| mark < part.start);
        let inside = self.marks.partition_point(|&mark| mark <= part.end);
        &self.marked[part.start + before * MARK_BYTES..part.end + inside * MARK_BYTES]
    }

    /// Returns each character as a text of its own.
    pub(super) fn chars(&self) -> impl DoubleEndedIterator<Item = &'t str> {
        self.plain.char_indices().map(|(at, char)| self.cut(at..at + char.len_utf8()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marked(text: &str) -> String {
        text.replace('#', &MARK.to_string())
    }

    #[test]
    fn a_part_keeps_the_marks_that_touch_it() {
        let text = marked("a<#b#>c");
        let text = MarkedText::new(&text);
        assert_eq!(text.plain(), "a<b>c");
        for (part, expected) in
            [(0..2, "a<#"), (1..2, "<#"), (2..3, "#b#"), (3..4, "#>"), (3..5, "#>c"), (0..5, "a<#b#>c"), (2..2, "")]
        {
            assert_eq!(text.cut(part), marked(expected));
        }
        assert_eq!(text.chars().collect::<Vec<_>>(), ["a", "<#", "#b#", "#>", "c"].map(marked));
    }

    #[test]
    fn texts_without_marks_are_cut_as_they_are() {
        let text = MarkedText::new("äb");
        assert_eq!((text.plain(), text.cut(2..3), count_chars("äb")), ("äb", "b", 2));
        assert_eq!(count_chars(&marked("<#|#>")), 3);
    }
}
