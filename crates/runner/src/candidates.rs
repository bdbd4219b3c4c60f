//! The likeliest of many tokens, found block by block in one pass over their logits.

use crate::TokenId;

/// A token with its logit, later its probability.
pub type Candidate = (TokenId, f32);

/// A logit is NaN, or the largest is infinite: no token is the likeliest.
#[derive(Debug, PartialEq, Eq)]
pub struct NotFinite;

/// Logits per block: short, so that few are looked at twice, and a few vectors long.
const BLOCK: usize = 128;
/// What compilers turn into whole vectors on every processor.
const LANES: usize = 16;

/// The largest logit of each block. Kept between rows, so that nothing is allocated for each.
#[derive(Debug, Default)]
pub struct CandidateScan {
    maxima: Vec<f32>,
    /// For selecting among the maxima without changing their order.
    scratch: Vec<f32>,
}
impl CandidateScan {
    /// Finds the `count` likeliest tokens (0 finds all), the likeliest first, ties by token.
    pub fn find(&mut self, logits: &[f32], count: usize, out: &mut Vec<Candidate>) -> Result<(), NotFinite> {
        let largest = self.scan(logits)?;
        if count == 1 {
            out.clear();
            out.push((self.first(logits, largest), largest));
        } else {
            self.likeliest(logits, count, out);
            keep_likeliest(out, count);
        }
        Ok(())
    }

    /// Reads all logits once and gives the largest.
    pub fn scan(&mut self, logits: &[f32]) -> Result<f32, NotFinite> {
        self.maxima.clear();
        let mut nans = [0u32; LANES];
        let mut blocks = logits.chunks_exact(BLOCK);
        self.maxima.extend(blocks.by_ref().map(|block| block_maximum(block, &mut nans)));
        let rest = blocks.remainder();
        if !rest.is_empty() {
            let mut last = [f32::NEG_INFINITY; BLOCK];
            last[..rest.len()].copy_from_slice(rest);
            self.maxima.push(block_maximum(&last, &mut nans));
        }
        // Minus infinity if all are.
        let largest = self.maxima.iter().copied().fold(f32::NEG_INFINITY, larger);
        let is_finite = largest.is_finite() && nans.iter().all(|found| *found == 0);
        if is_finite { Ok(largest) } else { Err(NotFinite) }
    }

    /// The first token whose logit is `largest`, after a scan that found it.
    pub fn first(&self, logits: &[f32], largest: f32) -> TokenId {
        let position = |values: &[f32]| values.iter().position(|value| *value == largest).unwrap_or(0);
        let start = position(&self.maxima) * BLOCK;
        (start + position(&logits[start..])) as TokenId
    }

    /// Candidates among which are the `count` likeliest, in any order; few more if there are many blocks.
    pub fn likeliest(&mut self, logits: &[f32], count: usize, candidates: &mut Vec<Candidate>) {
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
            candidates.extend(likely.map(|(i, logit)| ((start + i) as TokenId, *logit)));
        }
    }
}

/// Sorts by falling value, ties by token, and keeps the first `count` (0 keeps all).
pub fn keep_likeliest(candidates: &mut Vec<Candidate>, count: usize) {
    let order = |a: &Candidate, b: &Candidate| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if count > 0 && count < candidates.len() {
        candidates.select_nth_unstable_by(count - 1, order);
        candidates.truncate(count);
    }
    candidates.sort_unstable_by(order);
}

/// Plain `f32::max` handles NaN, which costs twice the time.
fn larger(a: f32, b: f32) -> f32 {
    if b > a { b } else { a }
}

fn block_maximum(block: &[f32], nans: &mut [u32; LANES]) -> f32 {
    let mut largest = [f32::NEG_INFINITY; LANES];
    for lanes in block.chunks_exact(LANES) {
        for i in 0..LANES {
            largest[i] = larger(largest[i], lanes[i]);
            nans[i] |= u32::from(lanes[i].is_nan());
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
