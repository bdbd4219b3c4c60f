//! Rotates the first pairs of each head by the cosines and sines in the second input, `[pairs, 2]` floats.

use crate::code;
use crate::half::{narrow, widen};
use crate::memory::{Descriptor, Number};

/// Pairs that go through a loop together.
const PAIRS: usize = 8;

pub fn f32(d: &mut Descriptor) -> Result<(), i32> {
    heads::<f32>(d, |x| x, |x| x)
}

pub fn f16(d: &mut Descriptor) -> Result<(), i32> {
    heads::<u16>(d, widen, narrow)
}

#[inline(always)]
fn heads<T: Number>(d: &mut Descriptor, widen: fn(T) -> f32, narrow: fn(f32) -> T) -> Result<(), i32> {
    let (dim, pairs, are_neighbours) = (d.param(0)? as usize, d.param(1)? as usize, d.param(2)?);
    if dim == 0 || are_neighbours > 1 || pairs > dim / 2 {
        return Err(code::INVALID_PARAMETERS);
    }
    let (x, rotations, out) = d.all::<T, f32, T>()?;
    let rotations = rotations.as_chunks::<2>().0;
    if rotations.len() != pairs || x.len() % dim != 0 {
        return Err(code::INVALID_INPUT);
    }
    if out.len() != x.len() {
        return Err(code::INVALID_OUTPUT);
    }
    let turn = |a: T, b: T, [cosine, sine]: [f32; 2]| {
        let (a, b) = (widen(a), widen(b));
        (narrow(a * cosine - b * sine), narrow(a * sine + b * cosine))
    };
    for (x, out) in x.chunks_exact(dim).zip(out.chunks_exact_mut(dim)) {
        if are_neighbours == 1 {
            neighbours(&x[..2 * pairs], rotations, &mut out[..2 * pairs], turn);
        } else {
            halves(&x[..2 * pairs], rotations, &mut out[..2 * pairs], turn);
        }
        out[2 * pairs..].copy_from_slice(&x[2 * pairs..]);
    }
    Ok(())
}

#[inline(always)]
fn neighbours<T: Number>(x: &[T], rotations: &[[f32; 2]], out: &mut [T], turn: impl Fn(T, T, [f32; 2]) -> (T, T)) {
    let (pairs, pairs_out) = (x.as_chunks::<2>().0, out.as_chunks_mut::<2>().0);
    let (groups, rest) = pairs.as_chunks::<PAIRS>();
    let (rotation_groups, rotation_rest) = rotations.as_chunks::<PAIRS>();
    let (out_groups, out_rest) = pairs_out.as_chunks_mut::<PAIRS>();
    for ((x, rotations), out) in groups.iter().zip(rotation_groups).zip(out_groups) {
        for i in 0..PAIRS {
            (out[i][0], out[i][1]) = turn(x[i][0], x[i][1], rotations[i]);
        }
    }
    for ((x, rotation), out) in rest.iter().zip(rotation_rest).zip(out_rest) {
        (out[0], out[1]) = turn(x[0], x[1], *rotation);
    }
}

#[inline(always)]
fn halves<T: Number>(x: &[T], rotations: &[[f32; 2]], out: &mut [T], turn: impl Fn(T, T, [f32; 2]) -> (T, T)) {
    let pairs = rotations.len();
    let ((first, second), (first_out, second_out)) = (x.split_at(pairs), out.split_at_mut(pairs));
    let ((a_groups, a_rest), (b_groups, b_rest)) = (first.as_chunks::<PAIRS>(), second.as_chunks::<PAIRS>());
    let (rotation_groups, rotation_rest) = rotations.as_chunks::<PAIRS>();
    let (a_out, a_out_rest) = first_out.as_chunks_mut::<PAIRS>();
    let (b_out, b_out_rest) = second_out.as_chunks_mut::<PAIRS>();
    for ((((a, b), rotations), a_out), b_out) in
        a_groups.iter().zip(b_groups).zip(rotation_groups).zip(a_out).zip(b_out)
    {
        for i in 0..PAIRS {
            (a_out[i], b_out[i]) = turn(a[i], b[i], rotations[i]);
        }
    }
    for ((((a, b), rotation), a_out), b_out) in
        a_rest.iter().zip(b_rest).zip(rotation_rest).zip(a_out_rest).zip(b_out_rest)
    {
        (*a_out, *b_out) = turn(*a, *b, *rotation);
    }
}
