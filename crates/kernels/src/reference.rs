//! The operations of a layer in plain code, in double precision where that matters: what the kernels are checked against.

use crate::ops::{Activation, RopeStyle};

/// `x * weight / sqrt(mean(x^2) + epsilon)`.
pub fn rms_norm(x: &[f32], weight: &[f32], epsilon: f32) -> Vec<f32> {
    let squares: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
    let factor = 1.0 / (squares / x.len() as f64 + f64::from(epsilon)).sqrt();
    x.iter().zip(weight).map(|(x, weight)| (f64::from(*x) * factor * f64::from(*weight)) as f32).collect()
}

/// Rotates the first pairs of a head by `position` times their frequencies.
pub fn rotate(head: &[f32], position: usize, frequencies: &[f64], style: RopeStyle) -> Vec<f32> {
    let mut rotated = head.to_vec();
    for (i, frequency) in frequencies.iter().enumerate() {
        let (a, b) = match style {
            RopeStyle::Interleaved => (2 * i, 2 * i + 1),
            RopeStyle::Halves => (i, i + frequencies.len()),
        };
        let (sine, cosine) = (position as f64 * frequency).sin_cos();
        let (x, y) = (f64::from(head[a]), f64::from(head[b]));
        (rotated[a], rotated[b]) = ((x * cosine - y * sine) as f32, (x * sine + y * cosine) as f32);
    }
    rotated
}

/// `activation(gate) * up`.
pub fn gated(activation: Activation, up: &[f32], gate: &[f32]) -> Vec<f32> {
    let activate = |x: f64| match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::SwigluOai => x / (1.0 + (-1.702 * x).exp()),
        Activation::GeluTanh => {
            let z = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            0.5 * x * (1.0 + z.tanh())
        }
    };
    let of_pair = |up: f64, gate: f64| match activation {
        Activation::SwigluOai => (up.clamp(-7.0, 7.0) + 1.0) * activate(gate.min(7.0)),
        _ => up * activate(gate),
    };
    up.iter().zip(gate).map(|(up, gate)| of_pair(f64::from(*up), f64::from(*gate)) as f32).collect()
}
