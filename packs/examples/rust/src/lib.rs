//! A kernel pack in Rust: RMSNorm of floats, `out = x * weight / sqrt(mean(x^2) + epsilon)`.

use std::slice;

/// Results of functions.
const OK: i32 = 0;
const INVALID_INPUT: i32 = 1;
const INVALID_OUTPUT: i32 = 2;
const INVALID_PARAMETERS: i32 = 3;

/// Numbers that are added side by side, which the compiler makes vectors of. A loop of single additions has to stay one: their
/// order is part of the result.
const LANES: usize = 16;

/// Where a tensor is in the memory of this module: offset and size in bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Span {
    offset: u32,
    size: u32,
}

/// What the host says of a call.
#[repr(C)]
pub struct Descriptor {
    a: Span,
    b: Span,
    out: Span,
    scratch: Span,
    params: Span,
}

impl Span {
    /// Returns the floats of a tensor.
    ///
    /// # Safety
    /// The host has placed it: aligned, and apart from all others.
    unsafe fn floats<'a>(self) -> &'a [f32] {
        unsafe { slice::from_raw_parts(self.offset as *const f32, self.size as usize / 4) }
    }

    /// # Safety
    /// As for `floats`, and nobody else has it.
    unsafe fn floats_mut<'a>(self) -> &'a mut [f32] {
        unsafe { slice::from_raw_parts_mut(self.offset as *mut f32, self.size as usize / 4) }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn kernel_info(to: *mut [u32; 4]) -> i32 {
    // The version of the interface, the alignment of tensors, the bytes of scratch memory.
    // SAFETY: the host passes room for four numbers.
    unsafe { to.write_unaligned([1, 16, 0, 0]) };
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn kernel_init(_params: u32, _len: u32) -> i32 {
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn kernel_cleanup() -> i32 {
    OK
}

#[unsafe(no_mangle)]
pub extern "C" fn kernel_forward(descriptor: *const Descriptor) -> i32 {
    // SAFETY: the host has written the descriptor and placed the tensors.
    let (x, weight, out, params) = unsafe {
        let Descriptor { a, b, out, params, .. } = &*descriptor;
        (a.floats(), b.floats(), out.floats_mut(), params.floats())
    };
    let Some(epsilon) = params.first().filter(|epsilon| **epsilon >= 0.0) else { return INVALID_PARAMETERS };
    if weight.is_empty() || x.len() % weight.len() != 0 {
        return INVALID_INPUT;
    }
    if out.len() != x.len() {
        return INVALID_OUTPUT;
    }
    for (x, out) in x.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
        let factor = 1.0 / (squares(x) / x.len() as f32 + epsilon).sqrt();
        for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
            *out = x * factor * weight;
        }
    }
    OK
}

fn squares(x: &[f32]) -> f32 {
    let (groups, rest) = x.as_chunks::<LANES>();
    let mut sums = [0f32; LANES];
    for group in groups {
        for (sum, x) in sums.iter_mut().zip(group) {
            *sum += x * x;
        }
    }
    sums.iter().sum::<f32>() + rest.iter().map(|x| x * x).sum::<f32>()
}
