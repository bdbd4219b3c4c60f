//! A gated recurrent cell with few weights (FastGRNN), and its gradients.
//!
//! The matrices of input and state are products of two thin ones, and gate and candidate share them. For an input `x`
//! and a state `h`:
//!
//! ```text
//! p  = W1 W2 x + U1 U2 h
//! z  = sigmoid(p + bz)            the gate
//! c  = tanh(p + bc)               the candidate
//! h' = (zeta (1 - z) + nu) c + z h
//! ```

use std::ops::Range;

use crate::random::Random;

/// Sizes of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CellShape {
    pub inputs: usize,
    pub state: usize,
    pub rank: usize,
}

/// Where each weight is in a list of all.
#[derive(Clone, Debug)]
struct Places {
    /// `[state, rank]` and `[rank, inputs]`
    w1: Range<usize>,
    w2: Range<usize>,
    /// `[state, rank]` and `[rank, state]`
    u1: Range<usize>,
    u2: Range<usize>,
    gate_bias: Range<usize>,
    candidate_bias: Range<usize>,
    zeta: usize,
    nu: usize,
}

impl CellShape {
    /// Returns the number of weights.
    pub fn weights(self) -> usize {
        self.places().nu + 1
    }

    fn places(self) -> Places {
        let Self { inputs, state, rank } = self;
        let mut end = 0;
        let mut next = |count: usize| {
            let start = end;
            end += count;
            start..end
        };
        Places {
            w1: next(state * rank),
            w2: next(rank * inputs),
            u1: next(state * rank),
            u2: next(rank * state),
            gate_bias: next(state),
            candidate_bias: next(state),
            zeta: next(1).start,
            nu: next(1).start,
        }
    }

    /// Returns weights to begin with. The gate is mostly open, so that a state survives to the end of the sequence.
    pub fn initial(self, random: &mut Random) -> Vec<f64> {
        let Places { w1, w2, u1, u2, gate_bias, zeta, nu, .. } = self.places();
        let mut weights = vec![0.0; self.weights()];
        for (range, width) in [(w1, self.rank), (w2, self.inputs), (u1, self.rank), (u2, self.state)] {
            weights[range].fill_with(|| random.normal() / (width as f64).sqrt());
        }
        weights[gate_bias].fill(1.0);
        // After the sigmoid 0.95 and 0.05.
        (weights[zeta], weights[nu]) = (3.0, -3.0);
        weights
    }
}

/// What a step computed, for the way back.
#[derive(Clone, Debug, Default)]
struct Step {
    /// `W2 x` and `U2 h`
    input: Vec<f64>,
    state: Vec<f64>,
    gate: Vec<f64>,
    candidate: Vec<f64>,
    before: Vec<f64>,
}

/// A sequence that was read.
#[derive(Clone, Debug)]
pub(crate) struct Pass {
    steps: Vec<Step>,
    /// The state after the last step.
    pub state: Vec<f64>,
}

/// Reads a sequence of inputs.
pub(crate) fn forward(shape: CellShape, weights: &[f64], inputs: &[Vec<f64>]) -> Pass {
    let places = shape.places();
    let (zeta, nu) = (sigmoid(weights[places.zeta]), sigmoid(weights[places.nu]));
    let mut state = vec![0.0; shape.state];
    let mut steps = Vec::with_capacity(inputs.len());
    for x in inputs {
        let input = product(&weights[places.w2.clone()], x);
        let of_state = product(&weights[places.u2.clone()], &state);
        let mut sum = product(&weights[places.w1.clone()], &input);
        sum.iter_mut().zip(product(&weights[places.u1.clone()], &of_state)).for_each(|(sum, more)| *sum += more);
        let biased = |bias: &Range<usize>, activation: fn(f64) -> f64| {
            sum.iter().zip(&weights[bias.clone()]).map(|(sum, bias)| activation(sum + bias)).collect::<Vec<f64>>()
        };
        let (gate, candidate) = (biased(&places.gate_bias, sigmoid), biased(&places.candidate_bias, f64::tanh));
        let next = |index: usize| {
            let (z, c) = (gate[index], candidate[index]);
            (zeta * (1.0 - z) + nu) * c + z * state[index]
        };
        let after = (0..shape.state).map(next).collect();
        let before = std::mem::replace(&mut state, after);
        steps.push(Step { input, state: of_state, gate, candidate, before });
    }
    Pass { steps, state }
}

/// Adds the gradients of the weights, from that of the last state.
pub(crate) fn backward(
    shape: CellShape,
    weights: &[f64],
    (inputs, pass): (&[Vec<f64>], &Pass),
    mut of_state: Vec<f64>,
    gradients: &mut [f64],
) {
    let places = shape.places();
    let (zeta, nu) = (sigmoid(weights[places.zeta]), sigmoid(weights[places.nu]));
    for (x, step) in inputs.iter().zip(&pass.steps).rev() {
        let mut of_sum = vec![0.0; shape.state];
        let mut before = vec![0.0; shape.state];
        for index in 0..shape.state {
            let (z, c, upper) = (step.gate[index], step.candidate[index], of_state[index]);
            let of_gate = upper * (step.before[index] - zeta * c) * z * (1.0 - z);
            let of_candidate = upper * (zeta * (1.0 - z) + nu) * (1.0 - c * c);
            gradients[places.gate_bias.start + index] += of_gate;
            gradients[places.candidate_bias.start + index] += of_candidate;
            gradients[places.zeta] += upper * (1.0 - z) * c * zeta * (1.0 - zeta);
            gradients[places.nu] += upper * c * nu * (1.0 - nu);
            of_sum[index] = of_gate + of_candidate;
            before[index] = upper * z;
        }
        let of_input = transposed(&weights[places.w1.clone()], &of_sum, shape.rank);
        let of_thin_state = transposed(&weights[places.u1.clone()], &of_sum, shape.rank);
        add_outer(&mut gradients[places.w1.clone()], &of_sum, &step.input);
        add_outer(&mut gradients[places.w2.clone()], &of_input, x);
        add_outer(&mut gradients[places.u1.clone()], &of_sum, &step.state);
        add_outer(&mut gradients[places.u2.clone()], &of_thin_state, &step.before);
        let through = transposed(&weights[places.u2.clone()], &of_thin_state, shape.state);
        before.iter_mut().zip(through).for_each(|(before, through)| *before += through);
        of_state = before;
    }
}

/// Returns a matrix times a vector.
pub(crate) fn product(matrix: &[f64], vector: &[f64]) -> Vec<f64> {
    let dot = |row: &[f64]| row.iter().zip(vector).map(|(one, other)| one * other).sum();
    matrix.chunks_exact(vector.len()).map(dot).collect()
}

/// Returns a matrix with `width` columns, transposed, times a vector.
pub(crate) fn transposed(matrix: &[f64], vector: &[f64], width: usize) -> Vec<f64> {
    let mut sums = vec![0.0; width];
    for (row, factor) in matrix.chunks_exact(width).zip(vector) {
        sums.iter_mut().zip(row).for_each(|(sum, entry)| *sum += factor * entry);
    }
    sums
}

/// Adds the product of a column and a row to a matrix.
pub(crate) fn add_outer(matrix: &mut [f64], column: &[f64], row: &[f64]) {
    for (of_row, factor) in matrix.chunks_exact_mut(row.len()).zip(column) {
        of_row.iter_mut().zip(row).for_each(|(entry, other)| *entry += factor * other);
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gradients_are_those_of_small_changes() {
        let shape = CellShape { inputs: 5, state: 4, rank: 2 };
        let mut random = Random::new(3);
        let weights = shape.initial(&mut random);
        let inputs: Vec<Vec<f64>> = (0..3).map(|_| (0..5).map(|_| random.normal()).collect()).collect();
        let of_state: Vec<f64> = (0..4).map(|_| random.normal()).collect();
        let loss = |weights: &[f64]| {
            let state = forward(shape, weights, &inputs).state;
            state.iter().zip(&of_state).map(|(state, factor)| state * factor).sum::<f64>()
        };
        let mut gradients = vec![0.0; shape.weights()];
        backward(shape, &weights, (&inputs, &forward(shape, &weights, &inputs)), of_state.clone(), &mut gradients);
        for index in 0..weights.len() {
            let changed = |step: f64| {
                let mut changed = weights.clone();
                changed[index] += step;
                loss(&changed)
            };
            let expected = (changed(1e-5) - changed(-1e-5)) / 2e-5;
            assert!((gradients[index] - expected).abs() < 1e-7, "{index}: {} {expected}", gradients[index]);
        }
    }
}
