//! Rows of signed bytes, and the dot products of one with many that are named by their numbers.

use std::fmt;
use std::ops::Deref;

use crate::KernelSet;
use crate::aligned::AlignedVec;
use crate::kernels::Table;

/// Rows start at cache lines and are continued with zeros to the end of one.
const LINE: usize = 64;

/// Rows of numbers in -127..=127, in one range of memory that is committed as rows are added.
pub struct ByteRows {
    kernels: &'static Table,
    cols: usize,
    /// Bytes from one row to the next.
    stride: usize,
    len: usize,
    bytes: AlignedVec<i8>,
}

/// One row by itself, which others are multiplied with.
#[derive(Debug)]
pub struct ByteRow(AlignedVec<i8>);

impl ByteRow {
    pub fn new(numbers: &[i8]) -> Self {
        check(numbers);
        let mut row = AlignedVec::zeroed(numbers.len().next_multiple_of(LINE));
        row[..numbers.len()].copy_from_slice(numbers);
        Self(row)
    }
}

impl Deref for ByteRow {
    type Target = [i8];
    fn deref(&self) -> &[i8] {
        &self.0
    }
}

impl ByteRows {
    /// Room for `rows_max` rows, none of which is there yet.
    pub fn new(kernels: KernelSet, cols: usize, rows_max: usize) -> Self {
        let stride = cols.next_multiple_of(LINE);
        // Sums of products, with 128 added to each number of one side, fit 32 bits.
        assert!((1..=1 << 16).contains(&stride) && rows_max <= u32::MAX as usize);
        let bytes = stride.checked_mul(rows_max).expect("rows fit the address space");
        Self { kernels: kernels.table(), cols, stride, len: 0, bytes: AlignedVec::zeroed(bytes) }
    }

    /// Rows that are there.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn rows_max(&self) -> usize {
        self.bytes.len() / self.stride
    }

    /// Bytes of the rows that are there.
    pub fn memory_bytes(&self) -> usize {
        self.len * self.stride
    }

    /// Adds a row, of which the number is the `len` before. Panics if there is no room.
    pub fn push(&mut self, numbers: &[i8]) {
        assert!(self.len < self.rows_max(), "no room for another row");
        self.len += 1;
        self.set(self.len - 1, numbers);
    }

    /// Replaces a row.
    pub fn set(&mut self, row: usize, numbers: &[i8]) {
        assert!(row < self.len && numbers.len() == self.cols);
        check(numbers);
        self.bytes[row * self.stride..][..self.cols].copy_from_slice(numbers);
    }

    /// Adds rows of zeros until there are `rows`.
    pub fn extend_to(&mut self, rows: usize) {
        assert!(self.len <= rows && rows <= self.rows_max());
        self.len = rows;
    }

    /// A row, with the zeros that follow it: it can be multiplied with others as it is.
    pub fn row(&self, row: usize) -> &[i8] {
        assert!(row < self.len);
        &self.bytes[row * self.stride..][..self.stride]
    }

    /// `out[i]` = the dot product of `query` and row `rows[i]`. The query is a `ByteRow`, or a row of these.
    pub fn dots(&self, query: &[i8], rows: &[u32], out: &mut [i32]) {
        assert!(query.len() == self.stride && out.len() == rows.len());
        assert!(rows.iter().all(|row| (*row as usize) < self.len), "rows that are there");
        // SAFETY: rows and query are whole lines, in bounds and without -128, as was checked when they were made; the table
        // is one of this processor.
        unsafe { (self.kernels.byte_dots)(query, self.bytes.as_ptr(), rows, out) }
    }
}

/// -128 has no opposite, which some instruction sets need.
fn check(numbers: &[i8]) {
    assert!(!numbers.contains(&i8::MIN), "numbers are in -127..=127");
}

impl fmt::Debug for ByteRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ByteRows({} x {})", self.len, self.cols)
    }
}
