//! Compares the kernels of a pack with the reference on the shapes of a model, before anything depends on them.

use ruvllm_kernels::ops::{Activation, RopeStyle, RowKernels, RowOperation};
use ruvllm_kernels::reference;

use crate::manifest::Category;
use crate::row_kernels::{PackKernels, compare, rotate_native};
use crate::sandbox::Fault;
use crate::shapes::ModelShapes;

#[derive(Debug, thiserror::Error)]
#[error("{category} differs from the reference on {len} numbers ({input}): {what}")]
pub struct ShadowError {
    pub category: Category,
    pub len: usize,
    pub input: &'static str,
    pub what: String,
}

/// A number for each place.
pub(crate) type Series = fn(u32) -> f32;

/// Numbers that activations look like, and ones that find mistakes.
const INPUTS: [(&str, Series); 5] = [
    ("usual numbers", |seed| unit(seed) * 2.0),
    ("large numbers", |seed| unit(seed) * 3000.0),
    ("small numbers", |seed| unit(seed) * 1e-4),
    ("a few far from the rest", |seed| if seed % 97 == 5 { 800.0 } else { unit(seed) }),
    ("zeros", |_| 0.0),
];

/// A number between -1 and 1 that looks random.
pub(crate) fn unit(seed: u32) -> f32 {
    let mixed = seed.wrapping_mul(0x9e37_79b9) ^ (seed.wrapping_mul(0x85eb_ca6b) >> 13);
    (mixed.wrapping_mul(0xc2b2_ae35) >> 8) as f32 / (1 << 23) as f32 - 1.0
}

pub(crate) fn numbers(len: usize, from: u32, number: Series) -> Vec<f32> {
    (0..len as u32).map(|i| number(from + i)).collect()
}

/// Compares each kernel with the reference, on all shapes and inputs.
pub fn shadow_check(kernels: &PackKernels, shapes: ModelShapes) -> Result<(), ShadowError> {
    const EPSILON: f32 = 1e-5;
    for (input, number) in INPUTS {
        // Also lengths that leave a rest behind whole vectors.
        for len in [shapes.hidden, 1, 17, 33] {
            let (x, weight) = (numbers(len, 1, number), numbers(len, 7_000, unit));
            let mut out = vec![0.0; len];
            let expected = reference::rms_norm(&x, &weight, EPSILON);
            let computed =
                kernels.has(RowOperation::RmsNorm).then(|| kernels.rms_norm(0, &x, &weight, EPSILON, &mut out));
            judge(kernels, Category::RmsNorm, input, computed, &out, &expected)?;
        }
        // A model without positions rotates nothing.
        let styles = [shapes.rope_style, RopeStyle::Interleaved, RopeStyle::Halves];
        for style in styles.into_iter().filter(|_| shapes.pairs > 0) {
            let mut heads = numbers(shapes.heads * shapes.head_dim, 2, number);
            let rotations = rotations(shapes.pairs);
            let mut expected = heads.clone();
            rotate_native(&mut expected, shapes.head_dim, &rotations, style);
            let has = kernels.has(RowOperation::Rope);
            let computed = has.then(|| kernels.rotate(0, &mut heads, shapes.head_dim, &rotations, style));
            judge(kernels, Category::Rope, input, computed, &heads, &expected)?;
        }
        for (activation, category) in [(Activation::Silu, Category::Swiglu), (Activation::GeluTanh, Category::Geglu)] {
            for len in [shapes.feed_forward, shapes.gated, 32, 47].into_iter().filter(|len| *len > 0) {
                let (mut gate, up) = (numbers(len, 3, number), numbers(len, 9_000, unit));
                let expected = reference::gated(activation, &up, &gate);
                let has = kernels.has(RowOperation::Gated(activation));
                let computed = has.then(|| kernels.gated(0, activation, &up, &mut gate));
                judge(kernels, category, input, computed, &gate, &expected)?;
            }
        }
    }
    Ok(())
}

pub(crate) fn rotations(pairs: usize) -> Vec<[f32; 2]> {
    (0..pairs).map(|i| (i as f32 * 0.7).sin_cos()).map(|(sine, cosine)| [cosine, sine]).collect()
}

/// `computed` is whether the kernel did; `None` if there is none.
fn judge(
    kernels: &PackKernels,
    category: Category,
    input: &'static str,
    computed: Option<bool>,
    got: &[f32],
    expected: &[f32],
) -> Result<(), ShadowError> {
    let error = |what| Err(ShadowError { category, len: got.len(), input, what });
    match computed {
        None => Ok(()),
        Some(false) => {
            let status = kernels.status().into_iter().find(|status| status.category == category);
            let fault =
                status.and_then(|status| status.last_fault).map_or_else(String::new, |fault: Fault| fault.to_string());
            error(fault)
        }
        Some(true) => compare(got, expected).or_else(|fault| error(fault.to_string())),
    }
}
