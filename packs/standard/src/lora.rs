//! What a LoRA adds to the result of a matrix: `out = scale * B (A x)`. The second input is `A`, `[rank, columns]`, and behind it
//! `B`, `[rows, rank]`.

use crate::half::{narrow, widen};
use crate::memory::{Descriptor, Number};
use crate::{LANES, code};

/// What fits on the stack between the two products.
const RANK_MAX: usize = 256;

pub fn f32(d: &mut Descriptor) -> Result<(), i32> {
    apply::<f32>(d, |x| x, |x| x)
}

pub fn f16(d: &mut Descriptor) -> Result<(), i32> {
    apply::<u16>(d, widen, narrow)
}

#[inline(always)]
fn apply<T: Number>(d: &mut Descriptor, widen: fn(T) -> f32, narrow: fn(f32) -> T) -> Result<(), i32> {
    let (rank, scale) = (d.param(0)? as usize, f32::from_bits(d.param(1)?));
    if rank == 0 || rank > RANK_MAX {
        return Err(code::INVALID_PARAMETERS);
    }
    let (x, factors, out) = d.all::<T, T, T>()?;
    if x.is_empty() || factors.len() != rank * (x.len() + out.len()) {
        return Err(code::INVALID_INPUT);
    }
    let (down, up) = factors.split_at(rank * x.len());
    let mut between = [0f32; RANK_MAX];
    for (to, row) in between.iter_mut().zip(down.chunks_exact(x.len())) {
        *to = dot(row, x, widen, widen);
    }
    for (to, row) in out.iter_mut().zip(up.chunks_exact(rank)) {
        *to = narrow(scale * dot(row, &between[..rank], widen, |x| x));
    }
    Ok(())
}

#[inline(always)]
fn dot<A: Copy, B: Copy>(a: &[A], b: &[B], widen_a: fn(A) -> f32, widen_b: fn(B) -> f32) -> f32 {
    let mut sums = [0f32; LANES];
    let ((a_groups, a_rest), (b_groups, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a_groups.iter().zip(b_groups) {
        for i in 0..LANES {
            sums[i] += widen_a(a[i]) * widen_b(b[i]);
        }
    }
    for ((sum, a), b) in sums.iter_mut().zip(a_rest).zip(b_rest) {
        *sum += widen_a(*a) * widen_b(*b);
    }
    sums.iter().sum()
}
