//! A memory beside one sequence: mixes its suggestions into the rows that the sequence is sampled from.

use std::sync::Arc;

use ruvllm_runner::{Runner, TokenId};

use super::Recall;
use super::chain::Chain;

/// How fast the memory is doubted, and believed again, as a sequence shows whether it is right.
const DOUBT_RATE: f64 = 0.1;

/// Elements that are summed side by side.
const LANES: usize = 16;

#[derive(Debug)]
pub(crate) struct RowRecall {
    recall: Arc<Recall>,
    /// How often, lately, something else came than what the memory expected; 0 at the start.
    doubt: f64,
    /// What it expects of the row that is being sampled.
    expected: Option<TokenId>,
    // Kept between tokens, so that nothing is allocated for each.
    chain: Chain,
    state: Vec<f32>,
    codes: Vec<i8>,
}

impl RowRecall {
    pub(crate) fn new(recall: Arc<Recall>) -> Self {
        let (chain, state, codes) = (Chain::default(), Vec::new(), Vec::new());
        Self { recall, doubt: 0.0, expected: None, chain, state, codes }
    }

    /// Reads the state of a row, which the next mixture is for.
    pub(crate) fn read_state(&mut self, runner: &mut dyn Runner, row: usize) {
        self.codes.clear();
        if let Some(space) = &self.recall.space {
            self.state.resize(space.width(), 0.0);
            runner.hidden_state(row, &mut self.state);
            space.encode(&self.state, &mut self.codes);
        }
    }

    #[cfg(test)]
    pub(crate) fn set_state(&mut self, codes: &[i8]) {
        self.codes = codes.to_vec();
    }

    /// Mixes what the memory suggests behind `tokens` into the model's logits: `p = (1 - w) model + w memory`, up to a
    /// constant that all logits share. Returns `w`.
    ///
    /// Only logits of suggested tokens change. Where the model's are not numbers, none does, for whoever samples to
    /// notice.
    pub(crate) fn mix(&mut self, tokens: &[TokenId], logits: &mut [f32]) -> f32 {
        let Self { recall, chain, codes, .. } = self;
        recall.ask(tokens, Some(&codes[..]).filter(|codes| !codes.is_empty()), chain);
        let mut weighed = chain.weigh(&recall.shares);
        self.expected = weighed.expected();
        weighed.scale(1.0 - self.doubt);
        let total = weighed.total;
        if total <= 0.0 {
            return 0.0;
        }
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum = sum_of_exponentials(logits, largest);
        if !(largest.is_finite() && sum.is_finite()) {
            return 0.0;
        }
        let unit = f64::from(sum) / (1.0 - total);
        weighed.each(&recall.ngrams, |token, share| {
            let logit = &mut logits[token as usize];
            *logit = largest + ((*logit - largest).exp() + (unit * share) as f32).ln();
        });
        total as f32
    }

    /// The token that came.
    pub(crate) fn accept(&mut self, token: TokenId) {
        if let Some(expected) = self.expected.take() {
            let is_wrong = f64::from(u8::from(expected != token));
            self.doubt += DOUBT_RATE * (is_wrong - self.doubt);
        }
    }
}

/// Returns the sum of `exp(logit - largest)`, to within a millionth.
fn sum_of_exponentials(logits: &[f32], largest: f32) -> f32 {
    let mut sums = [0f32; LANES];
    let mut lanes = logits.chunks_exact(LANES);
    for chunk in lanes.by_ref() {
        for i in 0..LANES {
            sums[i] += exponential(chunk[i] - largest);
        }
    }
    let rest: f32 = lanes.remainder().iter().map(|logit| exponential(logit - largest)).sum();
    sums.iter().sum::<f32>() + rest
}

/// `exp` of a number that is not above 0, in operations that compilers turn into those of whole vectors. NaN stays what
/// it is.
fn exponential(x: f32) -> f32 {
    const SHIFT: f32 = (3 << 22) as f32;
    // Below this, a term is too small to count in any sum.
    let x = if x < -80.0 { -80.0 } else { x };
    let shifted = x * std::f32::consts::LOG2_E + SHIFT;
    let whole = shifted - SHIFT;
    // ln 2 in two parts, the first of which has so few digits that its product is exact.
    let rest = (x - whole * 0.693_359_4) - whole * -2.121_944_4e-4;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    let series = 1.0 / 720.0;
    let series = series * rest + 1.0 / 120.0;
    let series = series * rest + 1.0 / 24.0;
    let series = series * rest + 1.0 / 6.0;
    let series = series * rest + 0.5;
    let series = series * rest + 1.0;
    (series * rest + 1.0) * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponentials_are_those_of_the_library() {
        for x in (0..8000).map(|i| i as f32 * -0.01) {
            let (got, exact) = (f64::from(exponential(x)), f64::from(x).exp());
            assert!((got / exact - 1.0).abs() < 2e-6, "{got} for {exact} at {x}");
        }
        assert!(exponential(f32::NAN).is_nan());
        assert!(exponential(f32::NEG_INFINITY) < 1e-30);
    }
}
