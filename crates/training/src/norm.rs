//! RMS norm of a row, and its gradient.

/// Sums that are added side by side, so that the compiler can make vectors of them; their order is always the same.
const SUMS: usize = 16;

/// Returns `a[0] * b[0] + a[1] * b[1] + ...`.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0f32; SUMS];
    let (a, a_rest) = a.as_chunks::<SUMS>();
    let (b, b_rest) = b.as_chunks::<SUMS>();
    for (a, b) in a.iter().zip(b) {
        for i in 0..SUMS {
            sums[i] += a[i] * b[i];
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

/// Returns what a row is multiplied by: one over the root of its mean square.
pub(crate) fn inverse_rms(x: &[f32], epsilon: f32) -> f32 {
    1.0 / (dot(x, x) / x.len() as f32 + epsilon).sqrt()
}

/// `out = x * weight * inverse`.
pub(crate) fn normalize(x: &[f32], weight: &[f32], inverse: f32, out: &mut [f32]) {
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * inverse * weight;
    }
}

/// Turns the gradient of a normalized row, in place, into that of the row before it.
pub(crate) fn normalize_gradient(x: &[f32], weight: &[f32], inverse: f32, gradient: &mut [f32]) {
    gradient.iter_mut().zip(weight).for_each(|(gradient, weight)| *gradient *= weight);
    // All numbers take part in the mean square.
    let common = dot(gradient, x) / x.len() as f32 * inverse * inverse;
    for (gradient, x) in gradient.iter_mut().zip(x) {
        *gradient = inverse * (*gradient - x * common);
    }
}
