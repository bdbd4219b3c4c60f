//! Memory of a thread's own, kept between operations.

use std::ops::{Deref, DerefMut};

use crate::aligned::{AlignedVec, Number};

/// Buffers of one worker. What they hold does not outlive the operation that put it there.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Weights unpacked to bytes.
    pub unpacked: Buffer<i8>,
    /// Weights unpacked to bf16.
    pub unpacked_bf16: Buffer<u16>,
    /// Products before they go on.
    pub sums: Buffer<f32>,
    /// A factor for each row of a batch.
    pub factors: Buffer<f32>,
    /// Operands of attention in bf16.
    pub bf16: AttentionOperands,
    /// Query vectors of attention.
    pub queries: Buffer<f32>,
    /// The same rounded to bytes.
    pub rounded: QuantizedBuffers,
    /// Attention to one chunk.
    pub partial: Buffer<f32>,
    /// Attention to all chunks so far.
    pub result: Buffer<f32>,
}

/// What attention multiplies in bf16: queries, keys and values of a chunk, weights.
#[derive(Debug, Default)]
pub(crate) struct AttentionOperands {
    pub queries: Buffer<u16>,
    pub keys: Buffer<u16>,
    pub values: Buffer<u16>,
    pub weights: Buffer<u16>,
}

/// Numbers rounded to bytes, with what goes with them (see `kernels::rows::Quantized`).
#[derive(Debug, Default)]
pub(crate) struct QuantizedBuffers {
    pub codes: Buffer<i8>,
    pub scales: Buffer<f32>,
    pub sums: Buffer<i32>,
    pub scaled_sums: Buffer<f32>,
}

/// Numbers in aligned memory that grows when more are asked for.
#[derive(Debug)]
pub(crate) struct Buffer<T: Number> {
    room: AlignedVec<T>,
    len: usize,
}

impl<T: Number> Buffer<T> {
    /// Makes it `len` numbers long; they may hold anything.
    pub(crate) fn resize(&mut self, len: usize) {
        if len > self.room.len() {
            self.room = AlignedVec::zeroed(len.next_power_of_two());
        }
        self.len = len;
    }
}

impl<T: Number> Default for Buffer<T> {
    fn default() -> Self {
        Self { room: AlignedVec::zeroed(0), len: 0 }
    }
}

impl<T: Number> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.room[..self.len]
    }
}

impl<T: Number> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.room[..self.len]
    }
}
