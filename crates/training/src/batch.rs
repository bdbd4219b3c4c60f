//! Items that are computed together: their rows stand one behind the other, and none attends to another's.

use std::ops::Range;

use ruvllm_runner::TokenId;

use crate::Item;
use crate::random::Random;

/// The rows of a step.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) tokens: Vec<TokenId>,
    pub(crate) positions: Vec<usize>,
    /// Whether the adapter applies to each row.
    pub(crate) active: Vec<bool>,
    /// The rows of each item, and of what is rejected behind those of what is chosen.
    pub(crate) items: Vec<Range<usize>>,
    pub(crate) targets: Vec<Target>,
    pub(crate) pairs: Vec<Pair>,
}

/// A prediction that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub row: usize,
    pub token: TokenId,
    /// Whether it is of an answer that is not to be given.
    pub is_rejected: bool,
}

/// The targets of an answer, and of the one that it is preferred to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    pub chosen: Range<usize>,
    pub rejected: Range<usize>,
}

impl Batch {
    /// Puts items together.
    pub fn new<'i>(items: impl IntoIterator<Item = &'i Item>) -> Self {
        let mut batch = Self::default();
        for item in items {
            let chosen = batch.push(item, false);
            if let Some(rejected) = &item.rejected {
                let rejected = batch.push(rejected, true);
                batch.pairs.push(Pair { chosen, rejected });
            }
        }
        batch
    }

    /// Returns where the targets of the item are.
    fn push(&mut self, item: &Item, is_rejected: bool) -> Range<usize> {
        let (first, first_target) = (self.tokens.len(), self.targets.len());
        let rows = item.tokens.len().saturating_sub(1);
        self.tokens.extend(&item.tokens[..rows]);
        self.positions.extend(0..rows);
        self.active.extend((0..rows).map(|row| row >= item.active_from));
        self.items.push(first..first + rows);
        let targets = (1..item.tokens.len()).filter(|index| item.targets[*index]);
        self.targets.extend(targets.map(|index| Target {
            row: first + index - 1,
            token: item.tokens[index],
            is_rejected,
        }));
        first_target..self.targets.len()
    }

    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Returns how many predictions count, those of rejected answers among them.
    pub fn target_count(&self) -> usize {
        self.targets.len()
    }
}

/// Puts items into steps of at most `rows_max` rows, in their order.
pub(crate) fn packed(items: &[Item], order: &[usize], rows_max: usize) -> Vec<Vec<usize>> {
    let mut steps: Vec<Vec<usize>> = Vec::new();
    let mut rows = usize::MAX;
    for index in order {
        let more = items[*index].rows();
        if rows.saturating_add(more) > rows_max {
            steps.push(Vec::new());
            rows = 0;
        }
        rows += more;
        steps.last_mut().expect("one was begun").push(*index);
    }
    steps
}

/// Returns the steps of an epoch: all items of the first `own`, and of those behind them, which are replayed, as many as make up
/// `replay_share` of all; in an order that follows from the seed.
pub(crate) fn epoch_steps(
    items: &[Item],
    own: usize,
    replay_share: f32,
    rows_max: usize,
    (seed, epoch): (u64, usize),
) -> Vec<Vec<usize>> {
    const ORDER: u64 = 1 << 32;
    let mut random = Random::new(seed, ORDER + epoch as u64);
    let mut order: Vec<usize> = (0..own).collect();
    let others = items.len() - own;
    if others > 0 {
        let wanted = (own as f32 * replay_share / (1.0 - replay_share)).round() as usize;
        let mut replayed: Vec<usize> = (own..items.len()).collect();
        random.shuffle(&mut replayed);
        order.extend(replayed.into_iter().cycle().take(wanted));
    }
    random.shuffle(&mut order);
    packed(items, &order, rows_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(len: usize) -> Item {
        Item::new((0..len as u32).collect(), 1..len, 0)
    }

    #[test]
    fn steps_hold_whole_items_and_no_more_rows_than_they_may() {
        let items: Vec<Item> = [5, 4, 8, 3, 3, 9].map(item).into();
        let steps = packed(&items, &[0, 1, 2, 3, 4, 5], 8);
        assert_eq!(steps, [vec![0, 1], vec![2], vec![3, 4], vec![5]]);
    }

    #[test]
    fn rows_of_a_batch_know_their_position_and_target() {
        let (one, mut two) = (item(3), item(4));
        two.targets[1] = false;
        two.active_from = 2;
        let batch = Batch::new([&one, &two]);
        assert_eq!(batch.tokens, [0, 1, 0, 1, 2]);
        assert_eq!(batch.positions, [0, 1, 0, 1, 2]);
        assert_eq!(batch.active, [true, true, false, false, true]);
        assert_eq!(batch.items, [0..2, 2..5]);
        let targets: Vec<(usize, u32)> = batch.targets.iter().map(|target| (target.row, target.token)).collect();
        assert_eq!(targets, [(0, 1), (1, 2), (3, 2), (4, 3)]);
        assert!(batch.pairs.is_empty());
    }

    #[test]
    fn a_rejected_answer_is_in_the_step_of_the_chosen_one() {
        let mut pair = item(3);
        pair.rejected = Some(Box::new(item(4)));
        let items = [item(2), pair, item(2)];
        assert_eq!(packed(&items, &[0, 1, 2], 6), [vec![0, 1], vec![2]]);
        let batch = Batch::new(&items);
        assert_eq!(batch.items, [0..1, 1..3, 3..6, 6..7]);
        assert_eq!(batch.pairs, [Pair { chosen: 1..3, rejected: 3..6 }]);
        let rejected: Vec<bool> = batch.targets.iter().map(|target| target.is_rejected).collect();
        assert_eq!(rejected, [false, false, false, true, true, true, false]);
    }

    #[test]
    fn an_epoch_has_every_item_once_and_its_share_of_replayed_ones() {
        let items: Vec<Item> = (0..20).map(|_| item(4)).collect();
        let steps = epoch_steps(&items, 12, 0.25, 9, (7, 0));
        let all: Vec<usize> = steps.concat();
        assert_eq!((0..12).filter(|own| all.iter().filter(|index| *index == own).count() == 1).count(), 12);
        assert_eq!(all.len(), 16, "a quarter is replayed");
        assert_eq!(steps, epoch_steps(&items, 12, 0.25, 9, (7, 0)));
        assert_ne!(steps, epoch_steps(&items, 12, 0.25, 9, (7, 1)));
    }
}
