//! Greedy joining of neighbouring symbols, the best pair first: the heart of BPE and of SentencePiece.
//!
//! Long runs use a heap of candidate pairs over a linked list of symbols: O(n log n), so that megabytes without a
//! single space stay affordable.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// A stretch of the text that is one token so far, or that no token is known for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol {
    pub start: usize,
    pub end: usize,
    pub token: Option<u32>,
}

/// What two neighbours would become.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Join {
    /// The lowest goes first; equal priorities go from left to right.
    pub priority: u32,
    pub token: u32,
}

/// Below this, looking at every pair each time is faster than keeping a heap; words are mostly this short.
const SHORT: usize = 24;

/// Joins neighbours for as long as `join` allows; what remains is left in `symbols`, in order.
pub(crate) fn merge_symbols(symbols: &mut Vec<Symbol>, join: impl Fn(&Symbol, &Symbol) -> Option<Join>) {
    if symbols.len() <= SHORT { merge_by_scanning(symbols, join) } else { merge_with_heap(symbols, join) }
}

fn merge_by_scanning(symbols: &mut Vec<Symbol>, join: impl Fn(&Symbol, &Symbol) -> Option<Join>) {
    // `joins[at]` is what symbols `at` and `at + 1` would become.
    let mut joins = [None; SHORT];
    for at in 1..symbols.len() {
        joins[at - 1] = join(&symbols[at - 1], &symbols[at]);
    }
    loop {
        let pairs = symbols.len().saturating_sub(1);
        let candidates =
            joins[..pairs].iter().enumerate().filter_map(|(at, join)| join.map(|join| (join.priority, at)));
        let Some((_, at)) = candidates.min() else { return };
        symbols[at].end = symbols[at + 1].end;
        symbols[at].token = joins[at].map(|join: Join| join.token);
        symbols.remove(at + 1);
        joins.copy_within(at + 1..pairs, at);
        if at > 0 {
            joins[at - 1] = join(&symbols[at - 1], &symbols[at]);
        }
        if at + 1 < symbols.len() {
            joins[at] = join(&symbols[at], &symbols[at + 1]);
        }
    }
}

const NONE: u32 = u32::MAX;

/// Priority above, position of the left side below: one integer per candidate keeps the heap small enough for caches.
fn candidate(priority: u32, left: u32) -> Reverse<u64> {
    Reverse(u64::from(priority) << 32 | u64::from(left))
}

fn merge_with_heap(symbols: &mut Vec<Symbol>, join: impl Fn(&Symbol, &Symbol) -> Option<Join>) {
    // Gigabytes without a word boundary stay in single symbols, which is a valid encoding too.
    let Ok(len) = u32::try_from(symbols.len()) else { return };
    let mut previous: Vec<u32> = (0..len).map(|at| at.checked_sub(1).unwrap_or(NONE)).collect();
    let mut next: Vec<u32> = (1..len).chain([NONE]).collect();
    let join_at = |symbols: &[Symbol], left: u32, right: u32| join(&symbols[left as usize], &symbols[right as usize]);

    // Built in one go: heapify is linear, pushing one by one is not.
    let mut heap: BinaryHeap<Reverse<u64>> = (1..len)
        .filter_map(|right| join_at(symbols, right - 1, right).map(|found| candidate(found.priority, right - 1)))
        .collect::<Vec<_>>()
        .into();
    while let Some(best) = heap.pop() {
        let (priority, left) = ((best.0 >> 32) as u32, best.0 as u32);
        let right = next[left as usize];
        // The pair may have changed since; then it is in the heap again under its own priority. A symbol that was
        // merged away is empty.
        if right == NONE || symbols[left as usize].start == symbols[left as usize].end {
            continue;
        }
        let Some(found) = join_at(symbols, left, right).filter(|found| found.priority == priority) else { continue };
        symbols[left as usize].end = symbols[right as usize].end;
        symbols[left as usize].token = Some(found.token);
        symbols[right as usize].end = symbols[right as usize].start;
        let (before, after) = (previous[left as usize], next[right as usize]);
        next[left as usize] = after;
        if after != NONE {
            previous[after as usize] = left;
            heap.extend(join_at(symbols, left, after).map(|found| candidate(found.priority, left)));
        }
        if before != NONE {
            heap.extend(join_at(symbols, before, left).map(|found| candidate(found.priority, before)));
        }
    }
    symbols.retain(|symbol| symbol.start < symbol.end);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

    type Rules = HashMap<(u32, u32), (u32, u32)>;

    fn start(tokens: &[u32]) -> Vec<Symbol> {
        tokens.iter().enumerate().map(|(at, &token)| Symbol { start: at, end: at + 1, token: Some(token) }).collect()
    }

    fn merge_fast(tokens: &[u32], rules: &Rules) -> Vec<u32> {
        let join = |a: &Symbol, b: &Symbol| {
            rules.get(&(a.token?, b.token?)).map(|&(priority, token)| Join { priority, token })
        };
        let mut symbols = start(tokens);
        merge_symbols(&mut symbols, join);
        symbols.iter().map(|symbol| symbol.token.unwrap()).collect()
    }

    /// The definition: look at all pairs, join the best, start over.
    fn merge_naively(tokens: &[u32], rules: &Rules) -> Vec<u32> {
        let mut tokens = tokens.to_vec();
        loop {
            let best = (1..tokens.len())
                .filter_map(|at| rules.get(&(tokens[at - 1], tokens[at])).map(|&(rank, to)| (rank, at, to)))
                .min();
            let Some((_, at, to)) = best else { return tokens };
            tokens.splice(at - 1..=at, [to]);
        }
    }

    proptest! {
        /// Every rule makes a token of its own, as in a real vocabulary.
        #[test]
        fn merging_agrees_with_the_definition(
            text in prop::collection::vec(0u32..4, 0..60),
            pairs in prop::collection::vec((0u32..12, 0u32..12), 0..20),
        ) {
            let rules = pairs.iter().enumerate().map(|(rank, &pair)| (pair, (rank as u32, 4 + rank as u32))).collect();
            prop_assert_eq!(merge_fast(&text, &rules), merge_naively(&text, &rules));
        }
    }

    #[test]
    fn a_long_run_takes_no_quadratic_time() {
        let rules = HashMap::from([((0, 0), (0, 1)), ((1, 1), (1, 2)), ((2, 2), (2, 3))]);
        // Hours, if every merge looked at all that is left.
        assert_eq!(merge_fast(&vec![0; 1 << 20], &rules), vec![3; 1 << 17]);
    }
}
