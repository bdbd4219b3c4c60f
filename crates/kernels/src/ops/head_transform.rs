//! What is done to a head of a query or key before the two meet: QK norm, then RoPE, then temperature. And the norm of values.

use super::{HEAD_DIM_MAX, RopeTable, slices};
use crate::Worker;

/// Dimensions that heads of most models have at most.
const USUAL_DIM_MAX: usize = 128;

/// The weights of an RMS norm over each head. `[head_dim]` each.
#[derive(Clone, Copy, Debug)]
pub struct QkNorm<'a> {
    pub query: &'a [f32],
    pub key: &'a [f32],
    pub epsilon: f32,
}

/// Makes attention sharper with growing positions: queries are multiplied by `1 + scale * ln(1 + floor(position / length))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Temperature {
    pub scale: f32,
    pub length: usize,
}

impl Temperature {
    fn factor(self, position: usize) -> f32 {
        1.0 + self.scale * ((1 + position / self.length) as f32).ln()
    }
}

/// The transformation of the heads of one layer.
#[derive(Clone, Copy, Debug)]
pub struct HeadTransform<'a> {
    pub norm: Option<QkNorm<'a>>,
    /// None for layers without positions.
    pub rope: Option<&'a RopeTable>,
    pub temperature: Option<Temperature>,
    /// The weights and epsilon of an RMS norm over each head of the values. `[head_dim]`
    pub value_norm: Option<(&'a [f32], f32)>,
}

impl HeadTransform<'_> {
    /// Panics if it is not for heads of this dimension.
    pub(super) fn check(&self, head_dim: usize) {
        assert!(self.rope.is_none_or(|rope| rope.dims() <= head_dim));
        assert!(self.norm.is_none_or(|norm| norm.query.len() == head_dim && norm.key.len() == head_dim));
        assert!(self.value_norm.is_none_or(|(weight, _)| weight.len() == head_dim));
    }

    pub(super) fn query(&self, worker: &Worker<'_>, head: &mut [f32], position: usize) {
        self.apply(worker, self.norm.map(|norm| (norm.query, norm.epsilon)), head, position);
        if let Some(temperature) = self.temperature {
            let factor = temperature.factor(position);
            head.iter_mut().for_each(|x| *x *= factor);
        }
    }

    pub(super) fn key(&self, worker: &Worker<'_>, head: &mut [f32], position: usize) {
        self.apply(worker, self.norm.map(|norm| (norm.key, norm.epsilon)), head, position);
    }

    pub(super) fn value(&self, worker: &Worker<'_>, head: &mut [f32]) {
        if let Some((weight, epsilon)) = self.value_norm {
            normalize(worker, weight, epsilon, head);
        }
    }

    fn apply(&self, worker: &Worker<'_>, norm: Option<(&[f32], f32)>, head: &mut [f32], position: usize) {
        if let Some((weight, epsilon)) = norm {
            normalize(worker, weight, epsilon, head);
        }
        if let Some(rope) = self.rope {
            rope.rotate(head, position);
        }
    }
}

pub(super) fn normalize(worker: &Worker<'_>, weight: &[f32], epsilon: f32, head: &mut [f32]) {
    // Zeroing a buffer for the longest would take as long as the norm of most.
    if head.len() <= USUAL_DIM_MAX {
        normalize_in(&mut [0f32; USUAL_DIM_MAX], worker, weight, epsilon, head);
    } else {
        normalize_in(&mut [0f32; HEAD_DIM_MAX], worker, weight, epsilon, head);
    }
}

fn normalize_in(buffer: &mut [f32], worker: &Worker<'_>, weight: &[f32], epsilon: f32, head: &mut [f32]) {
    let input = &mut buffer[..head.len()];
    input.copy_from_slice(head);
    slices::rms_norm_with(worker.kernels(), input, weight, epsilon, head);
}
