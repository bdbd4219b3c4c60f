//! `out = activation(gate) * up`.

use crate::exp::exp;
use crate::half::{narrow, widen};
use crate::lanes::Lanes;
use crate::memory::{Descriptor, Number};
use crate::{LANES, code};

pub trait Activation {
    fn of(x: Lanes) -> Lanes;
}

/// `x / (1 + e^-x)`: SwiGLU.
pub struct Silu;

impl Activation for Silu {
    #[inline(always)]
    fn of(x: Lanes) -> Lanes {
        let decay = exp(Lanes::splat(0.0).sub(x));
        x.div(Lanes::splat(1.0).add(decay))
    }
}

/// GELU, approximated by a hyperbolic tangent: GeGLU. `x (1 + tanh z) / 2` is `x / (1 + e^(-2 z))`.
pub struct Gelu;

impl Activation for Gelu {
    #[inline(always)]
    fn of(x: Lanes) -> Lanes {
        const LINEAR: f32 = 1.595_769_2;
        const CUBIC: f32 = LINEAR * 0.044_715;
        let slope = x.mul(x).mul(Lanes::splat(CUBIC)).add(Lanes::splat(LINEAR));
        let decay = exp(Lanes::splat(0.0).sub(x.mul(slope)));
        x.div(Lanes::splat(1.0).add(decay))
    }
}

pub fn f32<A: Activation>(d: &mut Descriptor) -> Result<(), i32> {
    numbers::<A, f32>(d, |x| x, |x| x)
}

pub fn f16<A: Activation>(d: &mut Descriptor) -> Result<(), i32> {
    numbers::<A, u16>(d, widen, narrow)
}

#[inline(always)]
fn numbers<A: Activation, T: Number>(d: &mut Descriptor, widen: fn(T) -> f32, narrow: fn(f32) -> T) -> Result<(), i32> {
    let (gate, up, out) = d.all::<T, T, T>()?;
    if gate.len() != up.len() {
        return Err(code::INVALID_INPUT);
    }
    if out.len() != gate.len() {
        return Err(code::INVALID_OUTPUT);
    }
    let ((gates, gate_rest), (ups, up_rest)) = (gate.as_chunks::<LANES>(), up.as_chunks::<LANES>());
    let (outs, out_rest) = out.as_chunks_mut::<LANES>();
    let four = |gate: [T; 4], up: [T; 4]| {
        let (gate, up) = (Lanes::of(&gate.map(widen)), Lanes::of(&up.map(widen)));
        A::of(gate).mul(up).numbers().map(narrow)
    };
    for ((gate, up), out) in gates.iter().zip(ups).zip(outs) {
        let ((gates, _), (ups, _), (outs, _)) = (gate.as_chunks::<4>(), up.as_chunks::<4>(), out.as_chunks_mut::<4>());
        for i in 0..LANES / 4 {
            outs[i] = four(gates[i], ups[i]);
        }
    }
    for ((gate, up), out) in gate_rest.iter().zip(up_rest).zip(out_rest) {
        *out = four([*gate; 4], [*up; 4])[0];
    }
    Ok(())
}
