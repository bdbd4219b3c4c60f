//! What a gated feed-forward block does between its projections, and the gradient of that.

use ruvllm_kernels::ops::Activation;

/// `sqrt(2 / pi)`, and the factor of the cube, of GELU's approximation.
const GELU: (f32, f32) = (0.797_884_6, 0.044_715);

/// Returns an activation and its derivative at `x`.
fn activate(activation: Activation, x: f32) -> (f32, f32) {
    match activation {
        Activation::Silu => {
            let sigmoid = 1.0 / (1.0 + (-x).exp());
            (x * sigmoid, sigmoid * (1.0 + x * (1.0 - sigmoid)))
        }
        Activation::GeluTanh => {
            let (root, cubic) = GELU;
            let tanh = (root * (x + cubic * x * x * x)).tanh();
            let slope = root * (1.0 + 3.0 * cubic * x * x);
            (0.5 * x * (1.0 + tanh), 0.5 * (1.0 + tanh) + 0.5 * x * (1.0 - tanh * tanh) * slope)
        }
        Activation::SwigluOai => unreachable!("refused when the model was opened"),
    }
}

/// `out = activation(gate) * up`; `gate_up` holds the one, then the other.
pub(crate) fn gate(activation: Activation, gate_up: &[f32], out: &mut [f32]) {
    let (gate, up) = gate_up.split_at(out.len());
    for ((out, gate), up) in out.iter_mut().zip(gate).zip(up) {
        *out = activate(activation, *gate).0 * up;
    }
}

/// Writes the gradient of `gate_up`, given that of the result.
pub(crate) fn gate_gradient(activation: Activation, gate_up: &[f32], of_result: &[f32], out: &mut [f32]) {
    let width = of_result.len();
    let (gate, up) = gate_up.split_at(width);
    let (of_gate, of_up) = out.split_at_mut(width);
    for i in 0..width {
        let (value, slope) = activate(activation, gate[i]);
        of_gate[i] = of_result[i] * up[i] * slope;
        of_up[i] = of_result[i] * value;
    }
}
