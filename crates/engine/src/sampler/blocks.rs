//! The largest of many logits, found block by block in one pass.

use super::{Candidate, NotANumber};

/// Logits per block: short, so that few are looked at twice, and a few vectors long.
const BLOCK: usize = 128;
/// What compilers turn into whole vectors on every processor.
const LANES: usize = 16;

/// The largest logit of each block.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    maxima: Vec<f32>,
    /// For selecting among the maxima without changing their order.
    scratch: Vec<f32>,
}

impl Blocks {
    /// Reads all logits once and gives the largest.
    pub(super) fn scan(&mut self, logits: &[f32]) -> Result<f32, NotANumber> {
        self.maxima.clear();
        let mut not_numbers = [0u32; LANES];
        let mut blocks = logits.chunks_exact(BLOCK);
        self.maxima.extend(blocks.by_ref().map(|block| block_maximum(block, &mut not_numbers)));
        let rest = blocks.remainder();
        if !rest.is_empty() {
            let mut last = [f32::NEG_INFINITY; BLOCK];
            last[..rest.len()].copy_from_slice(rest);
            self.maxima.push(block_maximum(&last, &mut not_numbers));
        }
        // Minus infinity if all are.
        let largest = self.maxima.iter().copied().fold(f32::NEG_INFINITY, larger);
        let is_sound = largest.is_finite() && not_numbers.iter().all(|found| *found == 0);
        if is_sound { Ok(largest) } else { Err(NotANumber) }
    }

    /// The first token whose logit is `largest`, after a scan that found it.
    pub(super) fn first(&self, logits: &[f32], largest: f32) -> u32 {
        let position = |values: &[f32]| values.iter().position(|value| *value == largest).unwrap_or(0);
        let start = position(&self.maxima) * BLOCK;
        (start + position(&logits[start..])) as u32
    }

    /// Candidates among which are the `count` likeliest, in any order; few more if there are many blocks.
    pub(super) fn likeliest(&mut self, logits: &[f32], count: usize, candidates: &mut Vec<Candidate>) {
        candidates.clear();
        // The blocks with the `count` largest maxima hold as many logits that are at least the least of them.
        let threshold = if count > 0 && count < self.maxima.len() {
            self.scratch.clone_from(&self.maxima);
            *self.scratch.select_nth_unstable_by(count - 1, |a, b| b.total_cmp(a)).1
        } else {
            f32::NEG_INFINITY
        };
        for (index, _) in self.maxima.iter().enumerate().filter(|(_, maximum)| **maximum >= threshold) {
            let start = index * BLOCK;
            let block = logits[start..].iter().take(BLOCK).enumerate();
            let likely = block.filter(|(_, logit)| **logit >= threshold);
            candidates.extend(likely.map(|(i, logit)| ((start + i) as u32, *logit)));
        }
    }
}

/// Plain `f32::max` takes care of numbers that are none, which costs twice the time.
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

fn block_maximum(block: &[f32], not_numbers: &mut [u32; LANES]) -> f32 {
    let mut largest = [f32::NEG_INFINITY; LANES];
    for lanes in block.chunks_exact(LANES) {
        for i in 0..LANES {
            largest[i] = larger(largest[i], lanes[i]);
            not_numbers[i] |= u32::from(lanes[i].is_nan());
        }
    }
    // Halves onto each other, rather than one after the other: that would wait for each comparison.
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            largest[i] = larger(largest[i], largest[i + width]);
        }
        width /= 2;
    }
    largest[0]
}

#[cfg(test)]
mod tests;
