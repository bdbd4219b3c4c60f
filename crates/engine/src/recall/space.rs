//! The space in which hidden states are compared.
//!
//! Channels of a state differ by orders of magnitude, and the large ones say the same of every text. So each is
//! measured by how much it varies, which also lets eight bits hold all of them.

/// Codes per standard deviation: up to four of these are told apart.
const RESOLUTION: f32 = 32.0;

/// The mean and the variation of each channel, as measured on some text.
#[derive(Clone, Debug, PartialEq)]
pub struct RecallSpace {
    means: Vec<f32>,
    /// Codes per unit.
    scales: Vec<f32>,
}

impl RecallSpace {
    /// Measures channels on states of `width` elements, one after the other.
    pub(crate) fn measured(states: &[f32], width: usize) -> Self {
        let count = (states.len() / width).max(1) as f64;
        let mut sums = vec![(0f64, 0f64); width];
        for state in states.chunks_exact(width) {
            for ((sum, squares), x) in sums.iter_mut().zip(state) {
                *sum += f64::from(*x);
                *squares += f64::from(*x) * f64::from(*x);
            }
        }
        let deviation = |(sum, squares): &(f64, f64)| (squares / count - (sum / count) * (sum / count)).max(0.0).sqrt();
        let scale = |sums| match deviation(sums) {
            deviation if deviation > 1e-9 => RESOLUTION / deviation as f32,
            // A channel that never varies tells nothing apart.
            _ => 0.0,
        };
        Self {
            means: sums.iter().map(|(sum, _)| (sum / count) as f32).collect(),
            scales: sums.iter().map(scale).collect(),
        }
    }

    /// Returns the number of channels.
    pub fn width(&self) -> usize {
        self.means.len()
    }

    /// Writes the codes of a state.
    pub(crate) fn encode(&self, state: &[f32], codes: &mut Vec<i8>) {
        let channels = state.iter().zip(&self.means).zip(&self.scales);
        codes.extend(channels.map(|((x, mean), scale)| ((x - mean) * scale).round().clamp(-127.0, 127.0) as i8));
    }
}

/// Returns how far two states are apart, by the squares of each and their product: the mean square over their channels,
/// in variances. It is 2 for states that have nothing to do with each other.
pub(super) fn distance((one, other): (i32, i32), product: i32, width: usize) -> f32 {
    (one + other - 2 * product) as f32 / (width as f32 * RESOLUTION * RESOLUTION)
}

/// Sums the products of the channels of two states. In 16 bits, which every processor multiplies and adds in pairs; a sum
/// of 2^16 channels would fit.
pub(super) fn product(one: &[i16], other: &[i8]) -> i32 {
    one.iter().zip(other).map(|(a, b)| i32::from(*a) * i32::from(i16::from(*b))).sum()
}

/// Widens the codes of a state, to be multiplied with others.
pub(super) fn widened(codes: &[i8]) -> Vec<i16> {
    codes.iter().map(|code| i16::from(*code)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_of_any_size_count_alike() {
        let states: Vec<f32> = (0..50).flat_map(|i| [i as f32 * 100.0, (i % 5) as f32 * 0.01, 7.0]).collect();
        let space = RecallSpace::measured(&states, 3);
        let encoded = |state: &[f32]| {
            let mut codes = Vec::new();
            space.encode(state, &mut codes);
            codes
        };
        let middle = encoded(&[2450.0, 0.02, 7.0]);
        assert_eq!(middle, [0, 0, 0], "the mean of each is in the middle, and what never varies says nothing");
        let distance = |one: &[i8], other: &[i8]| {
            let squares = [one, other].map(|codes| product(&widened(codes), codes));
            distance(squares.into(), product(&widened(one), other), one.len())
        };
        let (large, small) = (encoded(&[3893.0, 0.02, 7.0]), encoded(&[2450.0, 0.034_142, 7.0]));
        assert_eq!((large[0], small[1]), (32, 32), "one deviation");
        assert!((distance(&middle, &large) - 1.0 / 3.0).abs() < 1e-6 && distance(&large, &large) == 0.0);
    }
}
