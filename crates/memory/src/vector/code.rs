//! Embeddings quantized to 8 bits per dimension, the form in which they are stored.

use thiserror::Error;

/// Default number of dimensions.
pub const DIMENSION_DEFAULT: usize = 768;
/// Keeps the 32-bit sum of products of two codes far from overflowing.
pub const DIMENSION_MAX: usize = 16_384;
/// Largest absolute value of a code.
const CODE_MAX: f32 = 127.0;

/// Why a vector is not valid for an index.
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

/// The quantized direction of a vector. Its length is not kept: cosine similarity ignores it.
#[derive(Clone, Debug, PartialEq)]
pub struct VectorCode {
    codes: Box<[i8]>,
    /// Inverse of the length of the codes.
    scale: f32,
}

impl VectorCode {
    /// Quantizes a vector. One with fewer dimensions is padded with zeros.
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
        // Divided first, because the inverse of a tiny number is infinite.
        let mut codes = vec![0; dimension].into_boxed_slice();
        for (code, x) in codes.iter_mut().zip(vector) {
            *code = (x / largest * CODE_MAX).round_ties_even() as i8;
        }
        Ok(Self::from_codes(codes))
    }

    /// Reads what `to_bytes` returned.
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

    /// Expects codes that are not all 0, and none of them -128.
    pub(super) fn from_codes(codes: Box<[i8]>) -> Self {
        let squares: i32 = codes.iter().map(|code| i32::from(*code) * i32::from(*code)).sum();
        Self { scale: 1.0 / (squares as f32).sqrt(), codes }
    }

    /// Returns one byte for each dimension. The scale follows from them.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.codes.iter().map(|code| *code as u8).collect()
    }

    pub fn dimension(&self) -> usize {
        self.codes.len()
    }

    /// Returns the codes, each in -127..=127.
    pub fn codes(&self) -> &[i8] {
        &self.codes
    }

    /// Returns the factor that makes the codes a vector of length 1.
    pub fn scale(&self) -> f32 {
        self.scale
    }

    /// Returns a hash of the codes, never 0. Different vectors have different ones for all practical purposes.
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

    /// Returns the cosine similarity of two vectors of the same dimension.
    pub fn similarity(&self, other: &Self) -> f32 {
        let dot: i32 = self.codes.iter().zip(&other.codes).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum();
        dot as f32 * self.scale * other.scale
    }
}
