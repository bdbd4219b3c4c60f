//! The change of basis in which keys and values are stored, so that no dimension is much larger than the others.

use ruvllm_runner::Rotation;

/// Turns every head of `heads` there or back.
pub(super) fn apply_rotation(rotation: Rotation, heads: &mut [f32], head_dim: usize) {
    if rotation == Rotation::Hadamard {
        heads.chunks_exact_mut(1 << head_dim.trailing_zeros()).for_each(hadamard);
    }
}

/// The orthonormal Walsh-Hadamard transform, which is its own inverse. The length is a power of two.
fn hadamard(x: &mut [f32]) {
    let mut half = 1;
    while half < x.len() {
        for pair in x.chunks_exact_mut(2 * half) {
            let (first, second) = pair.split_at_mut(half);
            for (a, b) in first.iter_mut().zip(second) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    let scale = 1.0 / (x.len() as f32).sqrt();
    x.iter_mut().for_each(|v| *v *= scale);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotation_is_its_own_inverse_and_keeps_lengths() {
        for head_dim in [16, 64, 80, 96, 128] {
            let before: Vec<f32> = (0..2 * head_dim).map(|i| ((i * 37 % 101) as f32 - 50.0) / 7.0).collect();
            let mut x = before.clone();
            apply_rotation(Rotation::Hadamard, &mut x, head_dim);
            let squares = |x: &[f32]| x.iter().map(|v| v * v).sum::<f32>();
            assert!((squares(&x) / squares(&before) - 1.0).abs() < 1e-5);
            assert!(x.iter().zip(&before).any(|(a, b)| (a - b).abs() > 0.1));
            apply_rotation(Rotation::Hadamard, &mut x, head_dim);
            assert!(x.iter().zip(&before).all(|(a, b)| (a - b).abs() < 1e-5));
        }
    }

    #[test]
    fn one_large_dimension_is_spread_over_its_block() {
        let mut x = [0.0; 80];
        x[20] = 4.0;
        apply_rotation(Rotation::Hadamard, &mut x, 80);
        assert!(x.iter().enumerate().all(|(i, v)| v.abs() == if i / 16 == 1 { 1.0 } else { 0.0 }));
    }
}
