//! What followed the hidden states that are nearest to this one (kNN-LM).

use ruvllm_runner::TokenId;

use super::RecallItem;
use super::chain::{Chain, Opinion};
use super::space::{distance, product, widened};

/// Neighbours that are asked.
const COUNT: usize = 16;

/// Difference of distances at which one neighbour counts a third of another.
const SOFTNESS: f32 = 0.1;

/// States with the tokens that followed. All of them are compared: their number is limited, and nothing has to be
/// built.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Neighbours {
    width: usize,
    states: Vec<i8>,
    /// Products of the states with themselves.
    squares: Vec<i32>,
    tokens: Vec<TokenId>,
}

impl Neighbours {
    /// For states of this width; 0 if there are none.
    pub fn new(width: usize) -> Self {
        Self { width, states: Vec::new(), squares: Vec::new(), tokens: Vec::new() }
    }

    pub fn width(&self) -> usize {
        self.width
    }

    pub fn bytes(&self) -> usize {
        self.states.len() + self.tokens.len() * (size_of::<TokenId>() + size_of::<i32>())
    }

    /// Adds the targets of an item.
    pub fn add(&mut self, item: &RecallItem) {
        for target in item.first_target()..item.tokens().len() {
            if let Some(state) = item.state(target) {
                self.states.extend(state);
                self.squares.push(product(&widened(state), state));
                self.tokens.push(item.tokens()[target]);
            }
        }
    }

    /// Collects what followed the nearest states; of those at one distance, the first.
    pub fn ask(&self, state: &[i8], chain: &mut Chain) {
        let mut nearest = [(f32::INFINITY, 0u32); COUNT];
        let wide = widened(state);
        let own = product(&wide, state);
        for (index, (known, square)) in self.states.chunks_exact(self.width).zip(&self.squares).enumerate() {
            let distance = distance((own, *square), product(&wide, known), self.width);
            if distance < nearest[COUNT - 1].0 {
                let at = nearest.partition_point(|(other, _)| *other <= distance);
                nearest[at..].rotate_right(1);
                nearest[at] = (distance, index as u32);
            }
        }
        let closest = nearest[0].0;
        if closest.is_finite() {
            let found = nearest.iter().filter(|(distance, _)| distance.is_finite());
            let weight = |distance: f32| ((closest - distance) / SOFTNESS).exp();
            chain.add(
                Opinion::near(closest),
                found.map(|(distance, at)| (self.tokens[*at as usize], weight(*distance))),
            );
        }
    }
}
