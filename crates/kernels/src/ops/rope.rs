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
    /// `[positions, pairs]` of (cosine, sine)
    rotations: Vec<(f32, f32)>,
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
                    ((cosine * amplitude) as f32, (sine * amplitude) as f32)
                })
            })
            .collect();
        Self { rotations, pairs: frequencies.len(), style }
    }

    /// Elements of a head that are rotated; the rest stay as they are.
    pub(crate) fn dims(&self) -> usize {
        self.pairs * 2
    }

    /// Rotates one head in place.
    pub fn rotate(&self, head: &mut [f32], position: usize) {
        let rotations = &self.rotations[position * self.pairs..][..self.pairs];
        let turn = |a: f32, b: f32, (cosine, sine): (f32, f32)| (a * cosine - b * sine, a * sine + b * cosine);
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
