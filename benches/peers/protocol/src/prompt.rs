//! Prompts of token ids: the same for every engine, and different for each sequence.

use crate::{TURN_CHANGED, TURN_NEW};

/// `count` token ids below `vocabulary`, of text number `sequence`. The first tokens of a vocabulary are control tokens
/// and single bytes, so they are left out. A longer prompt of the same sequence begins with the shorter.
pub fn prompt(vocabulary: usize, sequence: usize, count: usize) -> Vec<u32> {
    let first = 300.min(vocabulary / 2);
    (0..count).map(|position| (first + mix(sequence, position) % (vocabulary - first)) as u32).collect()
}

/// The prompt of a chat's second turn, after a first of `depth` tokens of text 0. Turns of different numbers differ in what is new.
pub fn next_turn(vocabulary: usize, depth: usize, number: usize) -> Vec<u32> {
    let mut tokens = prompt(vocabulary, 0, depth - TURN_CHANGED);
    tokens.extend(prompt(vocabulary, number + 1, TURN_NEW));
    tokens
}

/// A fixed number that looks random, for each sequence and position (the finalizer of SplitMix64).
fn mix(sequence: usize, position: usize) -> usize {
    let mut bits = ((sequence as u64) << 32 | position as u64).wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((bits ^ (bits >> 31)) >> 1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_extend_each_other_and_differ_between_sequences() {
        let long = prompt(49_152, 0, 512);
        assert_eq!(prompt(49_152, 0, 128), long[..128]);
        assert_ne!(prompt(49_152, 1, 512), long);
        assert!(long.iter().all(|token| (300..49_152).contains(token)));
    }
}
