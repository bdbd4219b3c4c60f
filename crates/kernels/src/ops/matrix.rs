//! Row-major buffers of a forward pass, with room for the largest batch.

use crate::threads::{Access, Pool, Shared, Worker};
use crate::weights::GROUP;

/// Floats `[rows, cols]`.
#[derive(Debug)]
pub struct Matrix {
    pub(crate) data: Shared<f32>,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

impl Matrix {
    pub fn new(pool: &Pool, rows: usize, cols: usize) -> Self {
        Self { data: Shared::zeroed(pool, rows * cols), rows, cols }
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    /// One row, between regions.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        let cols = self.cols;
        &mut self.data.as_mut_slice()[row * cols..][..cols]
    }

    pub(crate) fn read_row<'w>(&'w self, worker: &'w Worker<'_>, row: usize) -> &'w [f32] {
        &self.data.read(worker)[row * self.cols..][..self.cols]
    }

    /// A row of this worker's share.
    ///
    /// # Safety
    /// `row` is one of `own_rows`, and the caller holds no other view of it.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn own_row_mut<'w>(&'w self, worker: &'w Worker<'_>, row: usize) -> &'w mut [f32] {
        assert!(row < self.rows);
        let start = self.data.write(worker, Access::WriteRows);
        // SAFETY: in bounds; rows are disjoint between workers, and the caller vouches for this one.
        unsafe { std::slice::from_raw_parts_mut(start.add(row * self.cols), self.cols) }
    }
}

/// The input of matmuls: floats, and the same rounded to 8 bits, for whichever the weights need.
#[derive(Debug)]
pub struct Activations {
    pub(crate) floats: Matrix,
    /// `[rows, cols]`
    pub(crate) codes: Shared<i8>,
    /// `[rows, cols / 32]`
    pub(crate) scales: Shared<f32>,
    /// `[rows, cols / 16]`
    pub(crate) sums: Shared<i32>,
}

impl Activations {
    pub fn new(pool: &Pool, rows: usize, cols: usize) -> Self {
        // Where columns are not whole groups, there are only float weights.
        let quantized = if cols.is_multiple_of(GROUP) { rows * cols } else { 0 };
        Self {
            floats: Matrix::new(pool, rows, cols),
            codes: Shared::zeroed(pool, quantized),
            scales: Shared::zeroed(pool, quantized / GROUP),
            sums: Shared::zeroed(pool, quantized / GROUP * 2),
        }
    }

    pub fn cols(&self) -> usize {
        self.floats.cols
    }

    /// Rounds `floats`, one of this worker's rows, to 8 bits.
    ///
    /// # Safety
    /// `row` is one of `own_rows`.
    pub(crate) unsafe fn quantize_own_row(&self, worker: &Worker<'_>, row: usize, floats: &[f32]) {
        if self.codes.is_empty() {
            return;
        }
        let cols = self.cols();
        assert!(row < self.floats.rows && floats.len() == cols);
        let codes = self.codes.write(worker, Access::WriteRows);
        let scales = self.scales.write(worker, Access::WriteRows);
        let sums = self.sums.write(worker, Access::WriteRows);
        // SAFETY: each slice is the part of `row`, in bounds, and rows are disjoint between workers.
        unsafe {
            let codes = std::slice::from_raw_parts_mut(codes.add(row * cols), cols);
            let scales = std::slice::from_raw_parts_mut(scales.add(row * cols / GROUP), cols / GROUP);
            let sums = std::slice::from_raw_parts_mut(sums.add(row * cols / GROUP * 2), cols / GROUP * 2);
            (worker.kernels().quantize)(floats, codes, scales, sums);
        }
    }
}
