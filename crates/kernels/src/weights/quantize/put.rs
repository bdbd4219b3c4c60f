//! Laying the fields of a block out as GGUF wants them: `Block::read` backwards.

use super::super::WeightType;
use super::super::block::Block;

/// Appends the bytes of one block of `kind`.
pub(super) fn put_block(kind: WeightType, block: &Block, out: &mut Vec<u8>) {
    let start = out.len();
    let (codes, scale, offset) = (&block.codes, block.scale.to_le_bytes(), block.offset.to_le_bytes());
    // K-quants store what is to be subtracted.
    let magnitude = (-block.offset).to_le_bytes();
    match kind {
        WeightType::Q4_0 => {
            out.extend(scale);
            out.extend(nibbles(codes));
        }
        WeightType::Q4_1 => {
            out.extend([scale, offset].as_flattened());
            out.extend(nibbles(codes));
        }
        WeightType::Q5_0 => {
            out.extend(scale);
            out.extend(fifth_bits(codes));
            out.extend(nibbles(codes));
        }
        WeightType::Q5_1 => {
            out.extend([scale, offset].as_flattened());
            out.extend(fifth_bits(codes));
            out.extend(nibbles(codes));
        }
        WeightType::Q8_0 => {
            out.extend(scale);
            out.extend(codes[..32].iter().map(|code| code ^ 0x80));
        }
        WeightType::Q2K => {
            out.extend(block.sub_scales.iter().zip(&block.sub_offsets).map(|(s, o)| *s as u8 | o << 4));
            out.extend(pairs(codes));
            out.extend([scale, magnitude].as_flattened());
        }
        WeightType::Q3K => {
            out.extend(high_bits(codes, 2));
            out.extend(pairs(codes));
            out.extend(q3k_scales(&block.sub_scales));
            out.extend(scale);
        }
        WeightType::Q4K => {
            out.extend([scale, magnitude].as_flattened());
            out.extend(six_bit_pairs(block));
            out.extend(nibble_halves(codes));
        }
        WeightType::Q5K => {
            out.extend([scale, magnitude].as_flattened());
            out.extend(six_bit_pairs(block));
            out.extend(high_bits(codes, 4));
            out.extend(nibble_halves(codes));
        }
        WeightType::Q6K => {
            put_q6k_codes(codes, out);
            out.extend(block.sub_scales.map(|sub| sub as u8));
            out.extend(scale);
        }
        WeightType::F32 | WeightType::F16 | WeightType::Bf16 => unreachable!("{kind} has no blocks"),
        WeightType::Iq4Nl | WeightType::Iq4Xs | WeightType::Mxfp4 => unreachable!("{kind} is not written"),
    }
    assert_eq!(out.len() - start, kind.block_bytes());
}

/// 32 codes in 16 bytes: the first 16 are low nibbles, the others high ones.
fn nibbles(codes: &[u8]) -> [u8; 16] {
    std::array::from_fn(|j| codes[j] & 15 | (codes[j + 16] & 15) << 4)
}

/// Bit `j` is the fifth bit of code `j`.
fn fifth_bits(codes: &[u8]) -> [u8; 4] {
    let bits = (0..32).fold(0u32, |bits, j| bits | u32::from(codes[j] >> 4 & 1) << j);
    bits.to_le_bytes()
}

/// K-quants: of each 64 codes the first 32 are low nibbles, the others high ones.
fn nibble_halves(codes: &[u8]) -> [u8; 128] {
    std::array::from_fn(|i| {
        let (pair, l) = (i / 32, i % 32);
        codes[pair * 64 + l] & 15 | (codes[pair * 64 + 32 + l] & 15) << 4
    })
}

/// Bit `s` of byte `l` is bit `bit` of code `32 s + l`.
fn high_bits(codes: &[u8], bit: u32) -> [u8; 32] {
    std::array::from_fn(|l| (0..8).fold(0, |bits, s| bits | (codes[s * 32 + l] >> bit & 1) << s))
}

/// Byte `l` of a half holds the two low bits of codes `l`, `l + 32`, `l + 64`, `l + 96` of that half.
fn pairs(codes: &[u8]) -> [u8; 64] {
    std::array::from_fn(|i| {
        let (half, l) = (i / 32, i % 32);
        (0..4).fold(0, |bits, s| bits | (codes[half * 128 + s * 32 + l] & 3) << (s * 2))
    })
}

/// Sixteen 6-bit factors, stored with 32 added: 8 bytes of low nibbles, then 4 bytes of high pairs.
fn q3k_scales(sub_scales: &[i8; 16]) -> [u8; 12] {
    let factor = |g: usize| (sub_scales[g] + 32) as u8;
    std::array::from_fn(|i| match i {
        0..8 => factor(i) & 15 | (factor(i + 8) & 15) << 4,
        _ => (0..4).fold(0, |bits, s| bits | (factor(s * 4 + i - 8) >> 4) << (s * 2)),
    })
}

/// Eight 6-bit factors of scales and eight of offsets: the first four of each are whole, with the high bits of the last
/// four above them; the low nibbles of the last four follow.
fn six_bit_pairs(block: &Block) -> [u8; 12] {
    let scale = |g: usize| block.sub_scales[g] as u8;
    let offset = |g: usize| block.sub_offsets[g];
    std::array::from_fn(|i| match i {
        0..4 => scale(i) | (scale(i + 4) >> 4) << 6,
        4..8 => offset(i - 4) | (offset(i) >> 4) << 6,
        _ => scale(i - 4) & 15 | (offset(i - 4) & 15) << 4,
    })
}

/// Low nibbles of both halves, then high pairs: see `Block::read_q6k`.
fn put_q6k_codes(codes: &[u8], out: &mut Vec<u8>) {
    for half in codes.chunks_exact(128) {
        out.extend((0..64).map(|i| half[i] & 15 | (half[i + 64] & 15) << 4));
    }
    for half in codes.chunks_exact(128) {
        out.extend((0..32).map(|l| (0..4).fold(0, |bits, s| bits | (half[s * 32 + l] >> 4) << (s * 2))));
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    /// Fields that differ everywhere, as far as the format has them.
    fn block(code_bits: u32, sub_scale: impl Fn(i32) -> i32, sub_offset_max: u8) -> Block {
        let mut block = Block::EMPTY;
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        block.codes.iter_mut().for_each(|code| *code = (next() % (1 << code_bits)) as u8);
        (block.scale, block.offset) = (f16::from_f32(0.37), f16::from_f32(-1.25));
        block.sub_scales.iter_mut().for_each(|sub| *sub = sub_scale(next() as i32) as i8);
        block.sub_offsets.iter_mut().for_each(|sub| *sub = (next() % (u32::from(sub_offset_max) + 1)) as u8);
        block
    }

    #[test]
    fn every_format_is_read_back() {
        for (kind, groups, written) in [
            (WeightType::Q4_0, 0, block(4, |_| 1, 0)),
            (WeightType::Q4_1, 0, block(4, |_| 1, 0)),
            (WeightType::Q5_0, 0, block(5, |_| 1, 0)),
            (WeightType::Q5_1, 0, block(5, |_| 1, 0)),
            (WeightType::Q8_0, 0, block(8, |_| 1, 0)),
            (WeightType::Q2K, 16, block(2, |n| n % 16, 15)),
            (WeightType::Q3K, 16, block(3, |n| n % 64 - 32, 1)),
            (WeightType::Q4K, 8, block(4, |n| n % 64, 63)),
            (WeightType::Q5K, 8, block(5, |n| n % 64, 63)),
            (WeightType::Q6K, 16, block(6, |n| n % 256 - 128, 1)),
        ] {
            let mut bytes = vec![7];
            put_block(kind, &written, &mut bytes);
            let mut read = Block::EMPTY;
            read.read(kind, &bytes[1..]);
            let len = kind.block_len();
            assert_eq!(read.codes[..len], written.codes[..len], "{kind}");
            assert_eq!(read.scale, written.scale, "{kind}");
            assert_eq!(read.sub_scales[..groups], written.sub_scales[..groups], "{kind}");
            if matches!(kind, WeightType::Q4_1 | WeightType::Q5_1 | WeightType::Q2K | WeightType::Q4K | WeightType::Q5K)
            {
                assert_eq!(read.offset, written.offset, "{kind}");
                assert_eq!(read.sub_offsets[..groups], written.sub_offsets[..groups], "{kind}");
            }
        }
    }
}
