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
    pub(crate) items: Vec<Range<usize>>,
    pub(crate) targets: Vec<Target>,
}

/// A prediction that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub row: usize,
    pub token: TokenId,
    /// Number of its item in the batch.
    pub item: usize,
}

impl Batch {
    /// Puts items together.
    pub fn new<'i>(items: impl IntoIterator<Item = &'i Item>) -> Self {
        let mut batch = Self::default();
        items.into_iter().for_each(|item| batch.push(item));
        batch
    }

    fn push(&mut self, item: &Item) {
        let (first, number) = (self.tokens.len(), self.items.len());
        let rows = item.rows();
        self.tokens.extend(&item.tokens[..rows]);
        self.positions.extend(0..rows);
        self.active.extend((0..rows).map(|row| row >= item.active_from));
        self.items.push(first..first + rows);
        let targets = (1..item.tokens.len()).filter(|index| item.targets[*index]);
        self.targets.extend(targets.map(|index| Target {
            row: first + index - 1,
            token: item.tokens[index],
            item: number,
        }));
    }

    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Returns how many predictions count.
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
    fn rows_of_a_batch_know_their_item_position_and_target() {
        let (one, mut two) = (item(3), item(4));
        two.targets[1] = false;
        two.active_from = 2;
        let batch = Batch::new([&one, &two]);
        assert_eq!(batch.tokens, [0, 1, 0, 1, 2]);
        assert_eq!(batch.positions, [0, 1, 0, 1, 2]);
        assert_eq!(batch.active, [true, true, false, false, true]);
        assert_eq!(batch.items, [0..2, 2..5]);
        let targets: Vec<(usize, u32, usize)> =
            batch.targets.iter().map(|target| (target.row, target.token, target.item)).collect();
        assert_eq!(targets, [(0, 1, 0), (1, 2, 0), (3, 2, 1), (4, 3, 1)]);
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
