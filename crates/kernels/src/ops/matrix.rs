//! Row-major floats of a forward pass, with room for the largest batch.

use std::ops::Range;

use crate::threads::{Access, Pool, Shared, Worker};

/// Columns of a row that fall to a worker by the partition that `access` names.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub access: Access,
    pub row: usize,
    pub cols: Range<usize>,
}

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

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    /// All rows, between regions.
    pub fn as_mut_slice(&mut self) -> &mut [f32] {
        self.data.as_mut_slice()
    }

    /// One row, between regions.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        let cols = self.cols;
        &mut self.data.as_mut_slice()[row * cols..][..cols]
    }

    pub(crate) fn read_row<'w>(&'w self, worker: &'w Worker<'_>, row: usize) -> &'w [f32] {
        &self.data.read(worker)[row * self.cols..][..self.cols]
    }

    /// Part of a row that falls to this worker.
    ///
    /// # Safety
    /// The part is this worker's, and the caller holds no other view of it.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn own_span<'w>(&'w self, worker: &'w Worker<'_>, part: &Span) -> &'w mut [f32] {
        let Span { access, row, cols } = part;
        assert!(*row < self.rows && cols.start <= cols.end && cols.end <= self.cols);
        let start = self.data.write(worker, *access);
        // SAFETY: in bounds; parts are disjoint between workers, and the caller vouches for this one.
        unsafe { std::slice::from_raw_parts_mut(start.add(row * self.cols + cols.start), cols.len()) }
    }
}
