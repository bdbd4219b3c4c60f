//! Floats to GGUF's blocks: the inverse of [`dequantize_row`](super::dequantize_row).
//!
//! A block stores `scale * code + offset`. Which scale, offset and codes come closest to the floats is searched for
//! ([`line`] for one group of weights, [`superblock`] for the formats whose scales are themselves quantized), always
//! with the values that the file can hold, so that rounding a scale is made up for by its codes.
//!
//! Every weight counts the same: what is minimized is the root mean square error.

mod line;
mod put;
mod superblock;

use half::{bf16, f16};
use thiserror::Error;

use super::WeightType;
use super::block::Block;
use line::{Codes, Line, Offset};
use put::put_block;
use superblock::Superblock;

/// Scales and offsets are half floats, which end here.
const HALF_MAX: f32 = 65504.0;

#[derive(Clone, Copy, Debug, Error, PartialEq)]
pub enum QuantizeError {
    #[error("{kind} can be read but not written")]
    Unsupported { kind: WeightType },
    #[error("a row of {len} elements is not a whole number of {kind} blocks, which hold {block_len}")]
    PartialBlock { kind: WeightType, len: usize, block_len: usize },
    #[error("element {index} is {value}, not a finite number")]
    NotFinite { index: usize, value: f32 },
    #[error("element {index} is {value}; {kind} reaches {max:e}")]
    TooLarge { kind: WeightType, index: usize, value: f32, max: f32 },
}

/// Appends the blocks of one row to `out`. On an error nothing is appended.
pub fn quantize_row(kind: WeightType, row: &[f32], out: &mut Vec<u8>) -> Result<(), QuantizeError> {
    check(kind, row)?;
    match kind {
        WeightType::F32 => out.extend(row.iter().flat_map(|value| value.to_le_bytes())),
        WeightType::F16 => out.extend(row.iter().flat_map(|value| f16::from_f32(*value).to_le_bytes())),
        WeightType::Bf16 => out.extend(row.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes())),
        _ => {
            let mut block = Block::EMPTY;
            for values in row.chunks_exact(kind.block_len()) {
                fit_block(kind, values, &mut block);
                put_block(kind, &block, out);
            }
        }
    }
    Ok(())
}

fn check(kind: WeightType, row: &[f32]) -> Result<(), QuantizeError> {
    let Some(max) = largest(kind) else { return Err(QuantizeError::Unsupported { kind }) };
    if !row.len().is_multiple_of(kind.block_len()) {
        return Err(QuantizeError::PartialBlock { kind, len: row.len(), block_len: kind.block_len() });
    }
    let fits = |value: &f32| value.abs() <= max;
    // Without a branch for each element, because the usual row has nothing to complain about.
    if row.iter().fold(true, |all, value| all & fits(value)) {
        return Ok(());
    }
    let index = row.iter().position(|value| !fits(value)).expect("one was found above");
    match row[index] {
        value if value.is_finite() => Err(QuantizeError::TooLarge { kind, index, value, max }),
        value => Err(QuantizeError::NotFinite { index, value }),
    }
}

/// The largest magnitude that a format can hold whatever stands beside it, `None` if we do not write the format.
fn largest(kind: WeightType) -> Option<f32> {
    Some(match kind {
        WeightType::F32 => f32::MAX,
        WeightType::F16 => HALF_MAX,
        WeightType::Bf16 => bf16::MAX.to_f32(),
        WeightType::Q4_0 => HALF_MAX * 7.0,
        WeightType::Q5_0 => HALF_MAX * 15.0,
        WeightType::Q8_0 => HALF_MAX * 127.0,
        WeightType::Q4_1 | WeightType::Q5_1 => HALF_MAX,
        WeightType::Q2K => HALF_MAX * 15.0,
        WeightType::Q3K => HALF_MAX * 31.0 * 3.0,
        WeightType::Q4K | WeightType::Q5K => HALF_MAX * 63.0,
        WeightType::Q6K => HALF_MAX * 127.0 * 31.0,
        WeightType::Iq4Nl | WeightType::Iq4Xs | WeightType::Mxfp4 => return None,
    })
}

/// Fills `block` with what represents `values` best. `values` has the length of a block.
fn fit_block(kind: WeightType, values: &[f32], block: &mut Block) {
    const SIX_BITS: i32 = 63;
    let superblock =
        |group_len, codes, sub_scales, sub_offset_max| Superblock { group_len, codes, sub_scales, sub_offset_max };
    match kind {
        WeightType::Q4_0 => fit_plain(values, Codes::signed(4), Offset::None, block),
        WeightType::Q5_0 => fit_plain(values, Codes::signed(5), Offset::None, block),
        WeightType::Q4_1 => fit_plain(values, Codes::unsigned(4), Offset::Free, block),
        WeightType::Q5_1 => fit_plain(values, Codes::unsigned(5), Offset::Free, block),
        WeightType::Q8_0 => fit_bytes(values, block),
        WeightType::Q2K => superblock(16, Codes::unsigned(2), (0, 15), 15).fit(values, block),
        WeightType::Q3K => superblock(16, Codes::signed(3), (-32, 31), 0).fit(values, block),
        WeightType::Q4K => superblock(32, Codes::unsigned(4), (0, SIX_BITS), SIX_BITS).fit(values, block),
        WeightType::Q5K => superblock(32, Codes::unsigned(5), (0, SIX_BITS), SIX_BITS).fit(values, block),
        WeightType::Q6K => superblock(16, Codes::signed(6), (-128, 127), 0).fit(values, block),
        _ => unreachable!("{kind} was refused or has no blocks"),
    }
}

/// A block with one scale, and one offset where the format has one.
fn fit_plain(values: &[f32], codes: Codes, offset: Offset, block: &mut Block) {
    let line = Line::search(values, codes, offset);
    block.scale = half(line.scale);
    block.offset = f16::from_f32(line.offset.clamp(-HALF_MAX, HALF_MAX));
    let line = Line { scale: block.scale.to_f32(), offset: block.offset.to_f32() };
    line.write_codes(values, codes, &mut block.codes);
}

/// Eight bits are fine enough to span the values and be done. -128 is not used: kernels that take magnitudes of codes
/// as bytes need not care for it.
fn fit_bytes(values: &[f32], block: &mut Block) {
    let largest = values.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    block.scale = half(largest / 127.0);
    let line = Line { scale: block.scale.to_f32(), offset: 0.0 };
    line.write_codes(values, Codes { low: -127.0, high: 127.0 }, &mut block.codes);
    // Codes count from the lowest; this format's zero is 128.
    block.codes[..values.len()].iter_mut().for_each(|code| *code += 1);
}

/// The half float for a scale. Where halves are so coarse (below their normal range) that the nearest is too small for
/// the highest code to reach the largest weight, the next larger one.
fn half(scale: f32) -> f16 {
    let scale = scale.clamp(-HALF_MAX, HALF_MAX);
    let nearest = f16::from_f32(scale);
    // With 127 codes, 0.4 % less scale cuts half a step off.
    if nearest.to_f32().abs() < scale.abs() * 0.996 {
        return f16::from_bits(nearest.to_bits() + 1);
    }
    nearest
}
