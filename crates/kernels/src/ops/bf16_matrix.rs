//! Matrices of bf16, and their parts in the order that products take them.

use half::bf16;

use super::{Matrix, own_rows};
use crate::kernels::bf16::BLOCK_ROWS;
use crate::threads::{Access, Pool, Shared, Worker};
use crate::weights::{GROUP, TILE_ROWS};

/// Row-major bf16 `[rows, cols]`.
#[derive(Debug)]
pub struct Bf16Matrix {
    data: Shared<u16>,
    rows: usize,
    cols: usize,
}

impl Bf16Matrix {
    pub fn new(pool: &Pool, rows: usize, cols: usize) -> Self {
        Self { data: Shared::zeroed(pool, rows * cols), rows, cols }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Lets the first `rows` rows be the matrix, between regions. Panics if there is no room for as many.
    pub fn set_rows(&mut self, rows: usize) {
        assert!(rows * self.cols <= self.data.len(), "more rows than there is room for");
        self.rows = rows;
    }

    /// Returns the bits of all rows, between regions.
    pub fn as_mut_slice(&mut self) -> &mut [u16] {
        &mut self.data.as_mut_slice()[..self.rows * self.cols]
    }

    /// Rounds floats to a row, between regions.
    pub fn set_row(&mut self, row: usize, floats: &[f32]) {
        round_to_bf16(floats, &mut self.data.as_mut_slice()[row * self.cols..][..self.cols]);
    }

    /// Rounds the first rows of a matrix of floats, each worker its share; complete after the next barrier.
    pub fn round(&self, worker: &Worker<'_>, from: &Matrix) {
        assert!(from.cols == self.cols && from.rows >= self.rows);
        for row in own_rows(worker, self.rows) {
            let floats = from.read_row(worker, row);
            let start = self.data.write(worker, Access::WriteRows);
            // SAFETY: in bounds; the row is this worker's.
            let to = unsafe { std::slice::from_raw_parts_mut(start.add(row * self.cols), self.cols) };
            round_to_bf16(floats, to);
        }
    }
}

/// Rounds floats to the bits of the nearest bf16.
pub fn round_to_bf16(floats: &[f32], to: &mut [u16]) {
    assert_eq!(floats.len(), to.len());
    to.iter_mut().zip(floats).for_each(|(to, float)| *to = bf16::from_f32(*float).to_bits());
}

/// A matrix as it takes part in a product.
#[derive(Clone, Copy, Debug)]
pub enum Factor<'a> {
    AsIs(&'a Bf16Matrix),
    Transposed(&'a Bf16Matrix),
}

impl Factor<'_> {
    /// Rows in the product.
    pub(super) fn rows(&self) -> usize {
        match self {
            Self::AsIs(matrix) => matrix.rows,
            Self::Transposed(matrix) => matrix.cols,
        }
    }

    /// Columns in the product.
    pub(super) fn cols(&self) -> usize {
        match self {
            Self::AsIs(matrix) => matrix.cols,
            Self::Transposed(matrix) => matrix.rows,
        }
    }

    /// Writes 16 rows from `first` on as a block of lines: for each 32 columns, those of one row after the other. What is beyond
    /// the matrix is zero.
    pub(super) fn put_block(&self, worker: &Worker<'_>, first: usize, out: &mut [u16]) {
        out.fill(0);
        let place = |row: usize, col: usize| (col / GROUP * BLOCK_ROWS + row) * GROUP + col % GROUP;
        match self {
            Self::AsIs(matrix) => {
                for (row, numbers) in matrix.lines(worker, first, BLOCK_ROWS).enumerate() {
                    for (group, numbers) in numbers.chunks(GROUP).enumerate() {
                        out[place(row, group * GROUP)..][..numbers.len()].copy_from_slice(numbers);
                    }
                }
            }
            Self::Transposed(matrix) => {
                for (col, numbers) in matrix.lines(worker, 0, matrix.rows).enumerate() {
                    for (row, number) in numbers[first..].iter().take(BLOCK_ROWS).enumerate() {
                        out[place(row, col)] = *number;
                    }
                }
            }
        }
    }

    /// Writes 16 columns from `first` on as a tile: lines of these times two neighbouring rows. What is beyond the matrix is zero.
    pub(super) fn put_tile(&self, worker: &Worker<'_>, first: usize, out: &mut [u16]) {
        out.fill(0);
        let place = |row: usize, col: usize| row / 2 * 2 * TILE_ROWS + col * 2 + row % 2;
        match self {
            Self::AsIs(matrix) => {
                for (row, numbers) in matrix.lines(worker, 0, matrix.rows).enumerate() {
                    for (col, number) in numbers[first..].iter().take(TILE_ROWS).enumerate() {
                        out[place(row, col)] = *number;
                    }
                }
            }
            Self::Transposed(matrix) => {
                for (col, numbers) in matrix.lines(worker, first, TILE_ROWS).enumerate() {
                    for (row, number) in numbers.iter().enumerate() {
                        out[place(row, col)] = *number;
                    }
                }
            }
        }
    }
}

impl Bf16Matrix {
    /// Up to `count` rows from `first` on.
    fn lines<'w>(&'w self, worker: &'w Worker<'_>, first: usize, count: usize) -> impl Iterator<Item = &'w [u16]> {
        let end = self.rows.min(first + count);
        let data = self.data.read(worker);
        (first..end).map(|row| &data[row * self.cols..][..self.cols])
    }
}
