//! Which items are learned from, and which the result is judged by.

use crate::Item;
use crate::random::Random;

/// Items on both sides; no document is on both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Split {
    pub training: Vec<Item>,
    pub validation: Vec<Item>,
}

/// Splits items by their documents: about `share` of these, at least one if there are two, are for validation.
pub fn split_documents(items: Vec<Item>, share: f32, seed: u64) -> Split {
    const SPLIT: u64 = 2;
    let mut documents: Vec<usize> = items.iter().map(|item| item.document).collect();
    documents.sort_unstable();
    documents.dedup();
    let count = (documents.len() as f32 * share).round() as usize;
    let count = if share > 0.0 { count.max(1).min(documents.len().saturating_sub(1)) } else { 0 };
    Random::new(seed, SPLIT).shuffle(&mut documents);
    let chosen = &documents[..count];
    let (validation, training) = items.into_iter().partition(|item| chosen.contains(&item.document));
    Split { training, validation }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_is_on_one_side_of_a_split() {
        let items: Vec<Item> = (0..40).map(|number| Item::new(vec![1, 2], 1..2, number / 4)).collect();
        let split = split_documents(items.clone(), 0.2, 3);
        assert_eq!((split.training.len(), split.validation.len()), (32, 8));
        let documents = |items: &[Item]| items.iter().map(|item| item.document).collect::<Vec<_>>();
        let training = documents(&split.training);
        assert!(documents(&split.validation).iter().all(|document| !training.contains(document)));
        assert_eq!(split, split_documents(items.clone(), 0.2, 3));
        assert_ne!(split, split_documents(items.clone(), 0.2, 4));
        assert!(split_documents(items, 0.0, 3).validation.is_empty());
        let one = vec![Item::new(vec![1, 2], 1..2, 0)];
        assert_eq!(split_documents(one, 0.5, 0).training.len(), 1, "something is left to learn from");
    }
}
