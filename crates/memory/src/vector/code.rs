//! A direction in 8 bits a dimension: all that is kept of an embedding.

use thiserror::Error;

/// Dimensions of an index, unless told otherwise.
pub const DIMENSION_DEFAULT: usize = 768;
/// Products of two codes are summed in 32 bits, which this keeps far from overflowing.
pub const DIMENSION_MAX: usize = 16_384;
/// Largest absolute value of a code.
const CODE_MAX: f32 = 127.0;

/// Why something is no vector of an index.
#[derive(Clone, Debug, Error, PartialEq)]
pub enum VectorError {
    #[error("an index has 1 to {DIMENSION_MAX} dimensions, not {0}")]
    Dimension(usize),
    #[error("a vector of {got} numbers does not fit {expected} dimensions")]
    TooLong { got: usize, expected: usize },
    #[error("a stored vector has {got} dimensions, not {expected}")]
    OtherDimension { got: usize, expected: usize },
    #[error("number {at} of the vector is {value}")]
    NotFinite { at: usize, value: f32 },
    #[error("a vector of zeros has no direction")]
    Zero,
    #[error("byte {at} of a stored vector is not one that is ever stored")]
    StoredByte { at: usize },
}

/// A vector's direction. Lengths are not kept: cosine does not see them.
#[derive(Clone, Debug, PartialEq)]
pub struct VectorCode {
    codes: Box<[i8]>,
    /// The inverse of the codes' length.
    scale: f32,
}

impl VectorCode {
    /// The nearest code; a vector that is shorter than the dimension is continued with zeros.
    pub fn new(vector: &[f32], dimension: usize) -> Result<Self, VectorError> {
        if vector.len() > dimension {
            return Err(VectorError::TooLong { got: vector.len(), expected: dimension });
        }
        if let Some(at) = vector.iter().position(|x| !x.is_finite()) {
            return Err(VectorError::NotFinite { at, value: vector[at] });
        }
        let largest = vector.iter().fold(0f32, |largest, x| largest.max(x.abs()));
        if largest == 0.0 {
            return Err(VectorError::Zero);
        }
        // In two steps, because the inverse of a tiny number is infinite.
        let mut codes = vec![0; dimension].into_boxed_slice();
        for (code, x) in codes.iter_mut().zip(vector) {
            *code = (x / largest * CODE_MAX).round_ties_even() as i8;
        }
        Ok(Self::from_codes(codes))
    }

    /// From what `to_bytes` gave.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, VectorError> {
        if bytes.is_empty() || bytes.len() > DIMENSION_MAX {
            return Err(VectorError::Dimension(bytes.len()));
        }
        let codes: Box<[i8]> = bytes.iter().map(|byte| *byte as i8).collect();
        if let Some(at) = codes.iter().position(|code| *code == i8::MIN) {
            return Err(VectorError::StoredByte { at });
        }
        if codes.iter().all(|code| *code == 0) {
            return Err(VectorError::Zero);
        }
        Ok(Self::from_codes(codes))
    }

    /// From codes that are not all 0, and none -128.
    pub(super) fn from_codes(codes: Box<[i8]>) -> Self {
        let squares: i32 = codes.iter().map(|code| i32::from(*code) * i32::from(*code)).sum();
        Self { scale: 1.0 / (squares as f32).sqrt(), codes }
    }

    /// A byte for each dimension. The scale follows from them.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.codes.iter().map(|code| *code as u8).collect()
    }

    pub fn dimension(&self) -> usize {
        self.codes.len()
    }

    /// Numbers in -127..=127, one for each dimension.
    pub fn codes(&self) -> &[i8] {
        &self.codes
    }

    /// What makes the codes a vector of length 1.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// A number that equal vectors share and, for all practical purposes, no others; never 0.
    pub(super) fn fingerprint(&self) -> u64 {
        let mut hash = 0x243f_6a88_85a3_08d3u64;
        for chunk in self.codes.chunks(8) {
            let mut word = [0; 8];
            word.iter_mut().zip(chunk).for_each(|(byte, code)| *byte = *code as u8);
            hash = (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^= hash >> 29;
        }
        hash.max(1)
    }

    /// The cosine between two vectors of one dimension.
    pub fn similarity(&self, other: &Self) -> f32 {
        let dot: i32 = self.codes.iter().zip(&other.codes).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum();
        dot as f32 * self.scale * other.scale
    }
}
