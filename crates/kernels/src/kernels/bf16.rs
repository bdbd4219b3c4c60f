//! Weights and rows of prompts as bf16, whose products need no scaling on the way: weights are unpacked once for all rows, and
//! a sum runs over a whole row in floats. Attention of prompts is two such products with a softmax between them.
//!
//! Operands stand in lines of 64 bytes, as the tile unit takes them. Weights: 16 rows times 2 neighbouring columns. Rows of the
//! batch: 32 neighbouring columns of one row, the lines of 16 rows one after the other.

#[cfg(target_arch = "x86_64")]
pub(super) mod dots;
#[cfg(target_arch = "x86_64")]
mod pages;
pub(super) mod plain;
#[cfg(target_arch = "x86_64")]
mod softmax;
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
pub(super) mod tiles;
#[cfg(target_arch = "x86_64")]
mod unpack;

use super::attention::{Cell, Visible};
use super::matmul::{IntegerTiles, TileSums};
use crate::weights::WeightType;

/// Rows of the batch in a block of lines.
pub(crate) const BLOCK_ROWS: usize = 16;

/// Products of bf16 with sums in floats. A row's sums are added in the order of the columns, whatever rows are beside it.
#[derive(Clone, Copy)]
pub(crate) struct Bf16Product {
    /// Rows per call, whole blocks; this many must be readable.
    pub rows: usize,
    /// Multiplies unpacked tiles by `rows` rows. There must be room for all of their results.
    pub multiply: unsafe fn(UnpackedTiles, RowBlocks, Sums),
}

/// Matmul in bf16.
#[derive(Clone, Copy)]
pub(crate) struct Bf16 {
    pub product: Bf16Product,
    /// Unpacks the first of some integer tiles to `16 * cols` numbers.
    pub unpack: unsafe fn(WeightType, IntegerTiles, *mut u16),
    /// The same of a tile of floats with so many columns, a multiple of 32.
    pub unpack_floats: unsafe fn(WeightType, *const u8, usize, *mut u16),
    /// Rounds part of a row, whole groups of 32, to lines from a place on.
    pub round: unsafe fn(&[f32], *mut u16),
    /// Unpacks the keys of a cell with so many dimensions to a tile with as many columns, or the next multiple of 32.
    pub unpack_keys: unsafe fn(Cell, usize, *mut u16),
    /// Unpacks the values of a cell with so many dimensions and tokens (zeros for those behind) to 16 columns of a tile for each
    /// 16 dimensions, which are so many numbers apart.
    pub unpack_values: unsafe fn(Cell, usize, usize, *mut u16, usize),
    pub softmax: unsafe fn(SoftmaxBlock<'_>),
}

/// Tiles that were unpacked to bf16, one after the other.
#[derive(Clone, Copy)]
pub(crate) struct UnpackedTiles {
    pub values: *const u16,
    pub count: usize,
    pub cols: usize,
}

/// Blocks of rows, one after the other.
#[derive(Clone, Copy)]
pub(crate) struct RowBlocks {
    pub values: *const u16,
    /// How many of the rows count; the others' results may be anything.
    pub count: usize,
}

/// Where products go.
#[derive(Clone, Copy)]
pub(crate) struct Sums {
    pub to: TileSums,
    /// Whether they are added to what is there.
    pub adds: bool,
    /// What the results of each row are multiplied by in the end; nothing if null.
    pub factors: *const f32,
}

/// Queries of one chunk, and what they have found in those before.
pub(crate) struct SoftmaxBlock<'a> {
    /// The scores of the chunk's tokens for each query.
    pub scores: TileSums,
    /// Which of its tokens a query sees.
    pub visible: &'a [Visible],
    /// How many there are, a multiple of 32.
    pub tokens: usize,
    pub softcap: Option<f32>,
    /// The highest score and the sum of weights of each query so far.
    pub largest: &'a mut [f32],
    pub total: &'a mut [f32],
    /// The values so far, weighted. `[queries, dim]`
    pub sums: &'a mut [f32],
    /// Where the weights go, as blocks of rows.
    pub weights: *mut u16,
}
