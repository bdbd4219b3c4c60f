//! How much of two texts is kept if they are too long together.

/// Returns the number of tokens to keep of each text: the end of the longer one goes first, as in `transformers`' truncation
/// `longest_first`, with which cross-encoders are trained. The second keeps the odd token of two that are cut alike.
pub(super) fn longest_first(first: usize, second: usize, tokens_max: usize) -> (usize, usize) {
    if first + second <= tokens_max {
        return (first, second);
    }
    let half = tokens_max / 2;
    match (first <= half, second <= half) {
        (true, _) => (first, tokens_max - first),
        (_, true) => (tokens_max - second, second),
        // Both are longer than half. What is left over goes to the longer one.
        (false, false) if first > second => (tokens_max - half, half),
        (false, false) => (half, tokens_max - half),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longer_text_is_cut_first() {
        assert_eq!(longest_first(3, 4, 7), (3, 4));
        assert_eq!(longest_first(3, 100, 10), (3, 7));
        assert_eq!(longest_first(100, 3, 10), (7, 3));
        assert_eq!(longest_first(100, 90, 10), (5, 5));
        assert_eq!(longest_first(100, 90, 11), (6, 5));
        assert_eq!(longest_first(90, 100, 11), (5, 6));
        assert_eq!(longest_first(0, 100, 10), (0, 10));
    }

    #[test]
    fn nothing_is_cut_that_would_fit() {
        for first in 0..20 {
            for second in 0..20 {
                for tokens_max in 2..24 {
                    let (a, b) = longest_first(first, second, tokens_max);
                    assert!(a <= first && b <= second, "{first} {second} {tokens_max}");
                    assert_eq!(a + b, (first + second).min(tokens_max), "{first} {second} {tokens_max}");
                }
            }
        }
    }
}
