//! Puts texts of similar length into batches, since shorter ones are padded.

/// Maximum number of tokens in a batch, including padding: enough to keep matrices large, while attention scores fit the caches.
const PADDED_TOKENS_MAX: usize = 1024;

/// Returns the indices of the texts in each batch, the longest texts first.
pub(crate) fn batches(lengths: &[usize]) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|&text| std::cmp::Reverse(lengths[text]));
    let mut batches: Vec<Vec<usize>> = Vec::new();
    for text in order {
        match batches.last_mut() {
            Some(batch) if (batch.len() + 1) * lengths[batch[0]] <= PADDED_TOKENS_MAX => batch.push(text),
            _ => batches.push(vec![text]),
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_is_in_one_batch_that_is_not_too_large() {
        let lengths: Vec<usize> = (0..500).map(|text| 1 + text * 37 % 300).collect();
        let batches = batches(&lengths);
        let mut all: Vec<usize> = batches.iter().flatten().copied().collect();
        all.sort_unstable();
        assert_eq!(all, (0..500).collect::<Vec<_>>());
        for batch in &batches {
            assert!(batch.len() * lengths[batch[0]] <= PADDED_TOKENS_MAX);
            assert!(batch.is_sorted_by_key(|&text| std::cmp::Reverse(lengths[text])));
        }
        assert!(batches.len() < 500 * 150 / PADDED_TOKENS_MAX * 2, "{} batches", batches.len());
    }

    #[test]
    fn a_text_that_is_longer_than_a_batch_is_computed_alone() {
        assert_eq!(batches(&[1, 5000, 1]), [vec![1], vec![0, 2]]);
        assert!(batches(&[]).is_empty());
    }
}
