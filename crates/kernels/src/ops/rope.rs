//! Rotary positions.

/// Which elements of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Neighbours `2i` and `2i + 1`, as in GPT-J.
    Interleaved,
    /// `i` and `i + rotated / 2`, as in GPT-NeoX.
    Halves,
}

/// Sines and cosines of every position.
#[derive(Debug)]
pub struct RopeTable {
    /// `[positions, pairs]` of cosine and sine
    rotations: Vec<[f32; 2]>,
    pairs: usize,
    style: RopeStyle,
}

impl RopeTable {
    /// For `positions` positions; pair `i` turns by `frequencies[i]` for each, and is multiplied by `amplitude`.
    pub fn new(positions: usize, frequencies: &[f64], style: RopeStyle, amplitude: f64) -> Self {
        let rotations = (0..positions)
            .flat_map(|position| {
                frequencies.iter().map(move |frequency| {
                    let (sine, cosine) = (position as f64 * frequency).sin_cos();
                    [(cosine * amplitude) as f32, (sine * amplitude) as f32]
                })
            })
            .collect();
        Self { rotations, pairs: frequencies.len(), style }
    }

    /// Elements of a head that are rotated; the rest stay as they are.
    pub(crate) fn dims(&self) -> usize {
        self.pairs * 2
    }

    pub(crate) fn style(&self) -> RopeStyle {
        self.style
    }

    /// Returns the cosine and sine of each pair at a position.
    pub(crate) fn rotations(&self, position: usize) -> &[[f32; 2]] {
        &self.rotations[position * self.pairs..][..self.pairs]
    }

    /// Rotates one head in place.
    pub fn rotate(&self, head: &mut [f32], position: usize) {
        self.turn(head, position, |a, b, [cosine, sine]| (a * cosine - b * sine, a * sine + b * cosine));
    }

    /// Takes the gradient of a rotated head, in place, to that of the head before: the transposed rotation.
    pub fn rotate_gradient(&self, head: &mut [f32], position: usize) {
        self.turn(head, position, |a, b, [cosine, sine]| (a * cosine + b * sine, b * cosine - a * sine));
    }

    fn turn(&self, head: &mut [f32], position: usize, turn: impl Fn(f32, f32, [f32; 2]) -> (f32, f32)) {
        let rotations = self.rotations(position);
        let rotated = &mut head[..self.pairs * 2];
        match self.style {
            RopeStyle::Interleaved => {
                for (pair, rotation) in rotated.chunks_exact_mut(2).zip(rotations) {
                    (pair[0], pair[1]) = turn(pair[0], pair[1], *rotation);
                }
            }
            RopeStyle::Halves => {
                let (first, second) = rotated.split_at_mut(self.pairs);
                for ((a, b), rotation) in first.iter_mut().zip(second).zip(rotations) {
                    (*a, *b) = turn(*a, *b, *rotation);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gradient_of_a_rotation_is_its_transpose() {
        for style in [RopeStyle::Interleaved, RopeStyle::Halves] {
            let table = RopeTable::new(8, &[1.0, 0.1, 0.01], style, 1.25);
            let (mut x, mut gradient) =
                ([0.5, -1.0, 2.0, 0.25, -0.75, 1.5, 3.0, 4.0], [1.0, 2.0, -1.0, 0.5, 0.25, -2.0, 1.0, 0.0]);
            let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
            let (x_before, gradient_before) = (x, gradient);
            table.rotate(&mut x, 5);
            table.rotate_gradient(&mut gradient, 5);
            // (R x) . g = x . (R' g)
            assert!((dot(&x, &gradient_before) - dot(&x_before, &gradient)).abs() < 1e-5, "{style:?}");
        }
    }
}
