//! Floats as blocks of 32 with a half float as scale, and back: Q8_0 and Q4_0 of GGUF.

use crate::code;
use crate::half::{narrow, widen};
use crate::memory::Descriptor;

const BLOCK: usize = 32;
const Q8_BYTES: usize = 2 + BLOCK;
const Q4_BYTES: usize = 2 + BLOCK / 2;

pub fn quantize_q8(d: &mut Descriptor) -> Result<(), i32> {
    quantize::<Q8_BYTES>(d, |x, out| {
        let largest = x.iter().fold(0f32, |largest, x| if x.abs() > largest { x.abs() } else { largest });
        let scale = largest / 127.0;
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        for i in 0..BLOCK {
            out[2 + i] = round(x[i] * inverse) as i8 as u8;
        }
        scale
    })
}

pub fn quantize_q4(d: &mut Descriptor) -> Result<(), i32> {
    quantize::<Q4_BYTES>(d, |x, out| {
        // The number furthest from 0 becomes -8, the end of the range that has one more.
        let furthest = x.iter().fold(0f32, |furthest, x| if x.abs() > furthest.abs() { *x } else { furthest });
        let scale = furthest / -8.0;
        let inverse = if scale != 0.0 { 1.0 / scale } else { 0.0 };
        let code = |x: f32| ((x * inverse + 8.5) as i32).min(15) as u8;
        for i in 0..BLOCK / 2 {
            out[2 + i] = code(x[i]) | code(x[BLOCK / 2 + i]) << 4;
        }
        scale
    })
}

pub fn dequantize_q8(d: &mut Descriptor) -> Result<(), i32> {
    dequantize::<Q8_BYTES>(d, |codes, scale, out| {
        for i in 0..BLOCK {
            out[i] = f32::from(codes[2 + i] as i8) * scale;
        }
    })
}

pub fn dequantize_q4(d: &mut Descriptor) -> Result<(), i32> {
    dequantize::<Q4_BYTES>(d, |codes, scale, out| {
        for i in 0..BLOCK / 2 {
            out[i] = (f32::from(codes[2 + i] & 15) - 8.0) * scale;
            out[BLOCK / 2 + i] = (f32::from(codes[2 + i] >> 4) - 8.0) * scale;
        }
    })
}

/// `codes` writes those of a block and returns its scale.
#[inline(always)]
fn quantize<const BYTES: usize>(
    d: &mut Descriptor,
    codes: impl Fn(&[f32; BLOCK], &mut [u8; BYTES]) -> f32,
) -> Result<(), i32> {
    let (x, _, out) = d.all::<f32, u8, u8>()?;
    let ((blocks, []), (outs, [])) = (x.as_chunks::<BLOCK>(), out.as_chunks_mut::<BYTES>()) else {
        return Err(code::INVALID_INPUT);
    };
    if blocks.len() != outs.len() {
        return Err(code::INVALID_OUTPUT);
    }
    for (x, out) in blocks.iter().zip(outs) {
        let scale = codes(x, out);
        [out[0], out[1]] = narrow(scale).to_le_bytes();
    }
    Ok(())
}

#[inline(always)]
fn dequantize<const BYTES: usize>(
    d: &mut Descriptor,
    numbers: impl Fn(&[u8; BYTES], f32, &mut [f32; BLOCK]),
) -> Result<(), i32> {
    let (codes, _, out) = d.all::<u8, u8, f32>()?;
    let ((blocks, []), (outs, [])) = (codes.as_chunks::<BYTES>(), out.as_chunks_mut::<BLOCK>()) else {
        return Err(code::INVALID_INPUT);
    };
    if blocks.len() != outs.len() {
        return Err(code::INVALID_OUTPUT);
    }
    for (codes, out) in blocks.iter().zip(outs) {
        numbers(codes, widen(u16::from_le_bytes([codes[0], codes[1]])), out);
    }
    Ok(())
}

/// The nearest whole number; of two, the one further from 0.
#[inline(always)]
fn round(x: f32) -> f32 {
    (x + if x < 0.0 { -0.5 } else { 0.5 }) as i32 as f32
}
