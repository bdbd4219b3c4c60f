//! Taking GGUF's blocks apart. Every integer format is the same formula with other constants:
//!
//! `w[i] = scale * sub_scale[g] * (value(code[i]) - zero) + offset * sub_offset[g]`, where `g` is the group of `i`.
//!
//! Repacking and dequantizing both start from this one description, so there is a single place where bits are read.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::WeightType;
use super::format::{Format, for_format};

/// The longest block of any format.
pub(crate) const BLOCK_LEN_MAX: usize = 256;

/// A block with its bit fields spread out.
pub(crate) struct Block {
    pub codes: [u8; BLOCK_LEN_MAX],
    pub scale: f16,
    pub offset: f16,
    pub sub_scales: [i8; 16],
    pub sub_offsets: [u8; 16],
}

impl Block {
    pub(crate) const EMPTY: Self = Self {
        codes: [0; BLOCK_LEN_MAX],
        scale: f16::ZERO,
        offset: f16::ZERO,
        sub_scales: [1; 16],
        sub_offsets: [1; 16],
    };

    /// Reads one block of `kind`. `bytes` is exactly one block; the float formats have no blocks.
    /// Inlined, with its parts: where `kind` is known, little of them is left.
    #[inline(always)]
    pub(crate) fn read(&mut self, kind: WeightType, bytes: &[u8]) {
        self.read_scales(kind, bytes);
        self.read_codes(kind, bytes);
    }

    /// All but the codes.
    #[inline(always)]
    pub(crate) fn read_scales(&mut self, kind: WeightType, bytes: &[u8]) {
        assert_eq!(bytes.len(), kind.block_bytes());
        match kind {
            WeightType::Q4_0 | WeightType::Iq4Nl | WeightType::Q5_0 | WeightType::Q8_0 => {
                self.scale = half_at(bytes, 0);
            }
            WeightType::Q4_1 | WeightType::Q5_1 => {
                self.scale = half_at(bytes, 0);
                self.offset = half_at(bytes, 2);
            }
            WeightType::Mxfp4 => self.scale = power_of_two(i32::from(bytes[0]) - 128),
            WeightType::Q2K => self.read_q2k_scales(bytes),
            WeightType::Q3K => self.read_q3k_scales(bytes),
            WeightType::Q4K | WeightType::Q5K => self.read_q4k_scales(bytes),
            WeightType::Q6K => self.read_q6k_scales(bytes),
            WeightType::Iq4Xs => self.read_iq4xs_scales(bytes),
            WeightType::F32 | WeightType::F16 | WeightType::Bf16 => unreachable!("{kind} has no blocks"),
        }
    }

    #[inline(always)]
    pub(crate) fn read_codes(&mut self, kind: WeightType, bytes: &[u8]) {
        assert_eq!(bytes.len(), kind.block_bytes());
        match kind {
            WeightType::Q4_0 | WeightType::Iq4Nl => self.read_nibbles(0, &bytes[2..18]),
            WeightType::Q4_1 => self.read_nibbles(0, &bytes[4..20]),
            WeightType::Q5_0 => {
                self.read_nibbles(0, &bytes[6..22]);
                self.add_fifth_bits(&bytes[2..6]);
            }
            WeightType::Q5_1 => {
                self.read_nibbles(0, &bytes[8..24]);
                self.add_fifth_bits(&bytes[4..8]);
            }
            WeightType::Q8_0 => {
                for (code, byte) in self.codes.iter_mut().zip(&bytes[2..34]) {
                    *code = byte ^ 0x80;
                }
            }
            WeightType::Mxfp4 => self.read_nibbles(0, &bytes[1..17]),
            WeightType::Q2K => self.read_pairs(&bytes[16..80]),
            WeightType::Q3K => {
                self.read_pairs(&bytes[32..96]);
                self.add_bits(&bytes[..32], 2);
            }
            WeightType::Q4K => self.read_nibble_halves(&bytes[16..144]),
            WeightType::Q5K => {
                self.read_nibble_halves(&bytes[48..176]);
                self.add_bits(&bytes[16..48], 4);
            }
            WeightType::Q6K => self.read_q6k_codes(bytes),
            WeightType::Iq4Xs => {
                for (g, nibbles) in bytes[8..136].chunks_exact(16).enumerate() {
                    self.read_nibbles(g * 32, nibbles);
                }
            }
            WeightType::F32 | WeightType::F16 | WeightType::Bf16 => unreachable!("{kind} has no blocks"),
        }
    }

    /// 16 bytes hold 32 codes: low nibbles first, then high ones.
    #[inline(always)]
    fn read_nibbles(&mut self, at: usize, bytes: &[u8]) {
        let (low, high) = self.codes[at..][..32].split_at_mut(16);
        for ((byte, low), high) in bytes[..16].iter().zip(low).zip(high) {
            *low = byte & 15;
            *high = byte >> 4;
        }
    }

    /// K-quants: 32 bytes hold 64 codes, low nibbles for the first 32, high ones for the next.
    fn read_nibble_halves(&mut self, bytes: &[u8]) {
        for (chunk, codes) in bytes.chunks_exact(32).zip(self.codes.chunks_exact_mut(64)) {
            let (low, high) = codes.split_at_mut(32);
            for ((byte, low), high) in chunk.iter().zip(low).zip(high) {
                *low = byte & 15;
                *high = byte >> 4;
            }
        }
    }

    fn add_fifth_bits(&mut self, bytes: &[u8]) {
        let bits = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        for (j, code) in self.codes[..32].iter_mut().enumerate() {
            *code |= ((bits >> j & 1) << 4) as u8;
        }
    }

    fn read_q2k_scales(&mut self, bytes: &[u8]) {
        self.scale = half_at(bytes, 80);
        self.offset = -half_at(bytes, 82);
        for (g, byte) in bytes[..16].iter().enumerate() {
            self.sub_scales[g] = (byte & 15) as i8;
            self.sub_offsets[g] = byte >> 4;
        }
    }

    /// 2-bit codes: byte `l` of a half holds elements `l`, `l + 32`, `l + 64`, `l + 96` of that half.
    fn read_pairs(&mut self, quants: &[u8]) {
        for (run, codes) in self.codes.chunks_exact_mut(32).enumerate() {
            let (half, shift) = (run / 4, run % 4 * 2);
            for (code, pairs) in codes.iter_mut().zip(&quants[half * 32..][..32]) {
                *code = pairs >> shift & 3;
            }
        }
    }

    /// Adds bit `run` of byte `l` to element `l` of each run of 32, as bit `to`.
    fn add_bits(&mut self, bits: &[u8], to: u32) {
        for (run, codes) in self.codes.chunks_exact_mut(32).enumerate() {
            for (code, bits) in codes.iter_mut().zip(bits) {
                *code |= (bits >> run & 1) << to;
            }
        }
    }

    fn read_q3k_scales(&mut self, bytes: &[u8]) {
        let scales = &bytes[96..108];
        self.scale = half_at(bytes, 108);
        for g in 0..16 {
            let low = if g < 8 { scales[g] & 15 } else { scales[g - 8] >> 4 };
            let high = scales[8 + g % 4] >> (g / 4 * 2) & 3;
            self.sub_scales[g] = (low | high << 4) as i8 - 32;
        }
    }

    /// Scale, offset and the eight 6-bit pairs that Q4_K and Q5_K share.
    fn read_q4k_scales(&mut self, bytes: &[u8]) {
        self.scale = half_at(bytes, 0);
        self.offset = -half_at(bytes, 2);
        let packed = &bytes[4..16];
        for g in 0..8 {
            let (scale, offset) = if g < 4 {
                (packed[g] & 63, packed[g + 4] & 63)
            } else {
                (packed[g + 4] & 15 | packed[g - 4] >> 6 << 4, packed[g + 4] >> 4 | packed[g] >> 6 << 4)
            };
            self.sub_scales[g] = scale as i8;
            self.sub_offsets[g] = offset;
        }
    }

    fn read_q6k_scales(&mut self, bytes: &[u8]) {
        self.scale = half_at(bytes, 208);
        for (sub, byte) in self.sub_scales.iter_mut().zip(&bytes[192..208]) {
            *sub = *byte as i8;
        }
    }

    fn read_q6k_codes(&mut self, bytes: &[u8]) {
        let (low, high) = (&bytes[..128], &bytes[128..192]);
        for (run, codes) in self.codes.chunks_exact_mut(32).enumerate() {
            let (half, quarter) = (run / 4, run % 4);
            let (low, high) = (&low[half * 64 + quarter % 2 * 32..][..32], &high[half * 32..][..32]);
            for ((code, nibbles), pairs) in codes.iter_mut().zip(low).zip(high) {
                *code = (nibbles >> (quarter / 2 * 4) & 15) | (pairs >> (quarter * 2) & 3) << 4;
            }
        }
    }

    fn read_iq4xs_scales(&mut self, bytes: &[u8]) {
        self.scale = half_at(bytes, 0);
        let high = u16::from_le_bytes([bytes[2], bytes[3]]);
        let low = &bytes[4..8];
        for g in 0..8 {
            let low = low[g / 2] >> (g % 2 * 4) & 15;
            let high = (high >> (g * 2) & 3) as u8;
            self.sub_scales[g] = (low | high << 4) as i8 - 32;
        }
    }
}

/// The codes of group `g` of a block whose codes are nibbles, as the four words of packed lines: codes `4l..4l + 4` are
/// the low nibbles of word `l`, those 16 further on the high ones.
#[inline(always)]
pub(crate) fn nibble_words(kind: WeightType, bytes: &[u8], g: usize) -> [u32; 4] {
    const LOW: u32 = 0x0f0f_0f0f;
    let words = |at: usize| {
        let (words, _) = bytes[at..at + 16].as_chunks::<4>();
        [words[0], words[1], words[2], words[3]].map(u32::from_le_bytes)
    };
    match kind {
        WeightType::Q4_0 | WeightType::Iq4Nl => words(2),
        WeightType::Q4_1 => words(4),
        WeightType::Mxfp4 => words(1),
        WeightType::Iq4Xs => words(8 + g * 16),
        WeightType::Q4K => {
            let (first, second) = (words(16 + g / 2 * 32), words(32 + g / 2 * 32));
            let high = g % 2 * 4;
            std::array::from_fn(|l| (first[l] >> high & LOW) | (second[l] >> high & LOW) << 4)
        }
        _ => unreachable!("the codes of {kind} are not nibbles"),
    }
}

fn half_at(bytes: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// MXFP4's exponents span more than a half float: what is too small becomes zero (below 2^-24 no weight matters),
/// what is too large becomes infinity, which `pack` refuses.
fn power_of_two(exponent: i32) -> f16 {
    f16::from_f64(2f64.powi(exponent))
}

/// Writes the floats of one row of `kind` to `out`. Panics if `bytes` is not `out.len()` elements long.
pub fn dequantize_row(kind: WeightType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(Some(bytes.len()), kind.row_bytes(out.len()), "row length of {kind}");
    match kind {
        WeightType::F32 => {
            for (value, raw) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                *value = f32::from_le_bytes([raw[0], raw[1], raw[2], raw[3]]);
            }
        }
        WeightType::F16 => {
            // Some at a time, for which there are instructions.
            let mut halves = [f16::ZERO; 64];
            for (values, raw) in out.chunks_mut(halves.len()).zip(bytes.chunks(2 * halves.len())) {
                halves.iter_mut().zip(raw.chunks_exact(2)).for_each(|(half, raw)| *half = half_at(raw, 0));
                halves[..values.len()].convert_to_f32_slice(values);
            }
        }
        WeightType::Bf16 => {
            for (value, raw) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *value = bf16::from_le_bytes([raw[0], raw[1]]).to_f32();
            }
        }
        _ => for_format!(kind, F => dequantize_blocks::<F>(bytes, out)),
    }
}

fn dequantize_blocks<F: Format>(bytes: &[u8], out: &mut [f32]) {
    let kind = F::KIND;
    let mut block = Block::EMPTY;
    for (values, raw) in out.chunks_exact_mut(kind.block_len()).zip(bytes.chunks_exact(kind.block_bytes())) {
        block.read(kind, raw);
        dequantize_block::<F>(&block, values);
    }
}

/// Writes the floats of a block to `out`.
pub(super) fn dequantize_block<F: Format>(block: &Block, out: &mut [f32]) {
    let (scale, offset) = (block.scale.to_f32(), block.offset.to_f32());
    let sub_len = F::SCALES.sub_len();
    for (i, value) in out.iter_mut().enumerate() {
        let g = i / sub_len;
        let code = F::value(block.codes[i]) as f32;
        *value = scale * f32::from(block.sub_scales[g]) * code + offset * f32::from(block.sub_offsets[g]);
    }
}
