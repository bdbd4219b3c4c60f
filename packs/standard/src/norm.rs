//! `out = x * weight / sqrt(mean(x^2) + epsilon)` for each row of `x` that is as long as `weight`.

use crate::half::{narrow, widen};
use crate::lanes::Lanes;
use crate::memory::{Descriptor, Number};
use crate::{LANES, code};

pub fn f32(d: &mut Descriptor) -> Result<(), i32> {
    rows::<f32>(d, |x| x, |x| x)
}

pub fn f16(d: &mut Descriptor) -> Result<(), i32> {
    rows::<u16>(d, widen, narrow)
}

#[inline(always)]
fn rows<T: Number>(d: &mut Descriptor, widen: fn(T) -> f32, narrow: fn(f32) -> T) -> Result<(), i32> {
    let epsilon = f32::from_bits(d.param(0)?);
    if !(epsilon >= 0.0) {
        return Err(code::INVALID_PARAMETERS);
    }
    let (x, weight, out) = d.all::<T, T, T>()?;
    if weight.is_empty() || x.len() % weight.len() != 0 {
        return Err(code::INVALID_INPUT);
    }
    if out.len() != x.len() {
        return Err(code::INVALID_OUTPUT);
    }
    for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
        let factor = inverse_root(squares(x, widen) / x.len() as f32 + epsilon);
        let (groups, rest) = x.as_chunks::<LANES>();
        let (weight_groups, weight_rest) = weight.as_chunks::<LANES>();
        let (out_groups, out_rest) = out.as_chunks_mut::<LANES>();
        for ((x, weight), out) in groups.iter().zip(weight_groups).zip(out_groups) {
            let ((x, _), (weight, _), (out, _)) =
                (x.as_chunks::<4>(), weight.as_chunks::<4>(), out.as_chunks_mut::<4>());
            for i in 0..LANES / 4 {
                let (x, weight) = (Lanes::of(&x[i].map(widen)), Lanes::of(&weight[i].map(widen)));
                out[i] = x.mul(Lanes::splat(factor)).mul(weight).numbers().map(narrow);
            }
        }
        for ((x, weight), out) in rest.iter().zip(weight_rest).zip(out_rest) {
            *out = narrow(widen(*x) * factor * widen(*weight));
        }
    }
    Ok(())
}

#[inline(always)]
fn squares<T: Number>(x: &[T], widen: fn(T) -> f32) -> f32 {
    const TOGETHER: usize = 2 * LANES;
    let mut parts = [Lanes::splat(0.0); TOGETHER / 4];
    let (groups, rest) = x.as_chunks::<TOGETHER>();
    for group in groups {
        let fours = group.as_chunks::<4>().0;
        for (part, x) in parts.iter_mut().zip(fours) {
            let x = Lanes::of(&x.map(widen));
            *part = part.add(x.mul(x));
        }
    }
    let mut sums = [0f32; TOGETHER];
    for (to, part) in sums.as_chunks_mut::<4>().0.iter_mut().zip(parts) {
        *to = part.numbers();
    }
    for (sum, x) in sums.iter_mut().zip(rest) {
        *sum += widen(*x) * widen(*x);
    }
    sums.iter().sum()
}

/// `1 / sqrt(x)`, by Newton's method: there is no square root without the standard library.
fn inverse_root(x: f32) -> f32 {
    let x = f64::from(x);
    let mut y = f64::from_bits(0x5fe6_eb50_c7b5_37a9 - (x.to_bits() >> 1));
    for _ in 0..4 {
        y *= 1.5 - 0.5 * x * y * y;
    }
    y as f32
}
