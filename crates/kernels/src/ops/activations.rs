//! The input of matmuls: numbers rounded to 8 bits for integer weights, floats for float weights, or both; rows of prompts as
//! bf16.

use std::ops::Range;
use std::slice::from_raw_parts_mut;

use super::matrix::Span;
use super::{BatchRows, Linear, Matrix, own_rows};
use crate::aligned::Number;
use crate::kernels::Wide;
use crate::kernels::bf16::BLOCK_ROWS;
use crate::kernels::matmul::{FloatColumns, QuantColumns};
use crate::kernels::rows::Quantized;
use crate::threads::{Access, Pool, Shared, Worker};
use crate::weights::GROUP;

/// Rows are kept readable up to the next multiple of this, so that kernels may take more tokens than there are.
const ROWS_MULTIPLE: usize = 16;

/// `[rows, cols]` numbers for whatever the weights need that they will be multiplied with.
///
/// A normalized input is stored before the division by its root mean square: that needs the whole row, which no thread
/// has while it writes its columns. Matmul divides its results instead.
#[derive(Debug)]
pub struct Activations {
    rows: usize,
    cols: usize,
    floats: Option<Matrix>,
    /// Whether nothing but adapters takes the floats.
    floats_for_adapters: bool,
    quantized: Option<QuantizedRows>,
    bf16: Option<Bf16Rows>,
    normalized: Option<Normalized>,
}

/// Rows of prompts.
#[derive(Debug)]
struct Bf16Rows {
    /// `[blocks of 16 rows, cols / 32, 16, 32]`, from the first row of a prompt on.
    values: Shared<u16>,
    /// Whether some consumer takes rows of prompts as it takes others, so that they are kept in both ways.
    also_exact: bool,
}

#[derive(Debug)]
struct QuantizedRows {
    /// `[rows, cols]`
    codes: Shared<i8>,
    /// `[rows, cols / 32]`
    scales: Shared<f32>,
    /// `[rows, cols / 16]`
    sums: Shared<i32>,
    /// `[rows, cols / 32]`
    scaled_sums: Shared<f32>,
    /// The same once more in the order that the kernel for many tokens wants, where there is one.
    arranged: Shared<u8>,
}

#[derive(Debug)]
struct Normalized {
    epsilon: f32,
    groups: usize,
    /// Sums of squares. `[rows, groups of 32]`
    squares: Shared<f32>,
}

impl Normalized {
    /// Returns the factor of a row with these sums of squares.
    fn factor(&self, worker: &Worker<'_>, squares: &[f32], cols: usize) -> f32 {
        // SAFETY: any slice will do.
        let mean = unsafe { (worker.kernels().sum)(squares) } / cols as f32;
        1.0 / (mean + self.epsilon).sqrt()
    }
}

/// One row's way from one buffer to another.
struct RowCopy<'w, 'p> {
    worker: &'w Worker<'p>,
    from: usize,
    to: usize,
}

impl RowCopy<'_, '_> {
    fn run<T: Number>(&self, from: &Shared<T>, to: &Shared<T>, len: usize) {
        let row = &from.read(self.worker)[self.from * len..][..len];
        assert!((self.to + 1) * len <= to.len());
        let start = to.write(self.worker, Access::WriteRows);
        // SAFETY: in bounds; the row is this worker's.
        unsafe { start.add(self.to * len).copy_from_nonoverlapping(row.as_ptr(), len) };
    }
}

impl Activations {
    /// Room for `rows` inputs of any of `consumers`. Panics if these differ in columns, or there is none.
    pub fn new<'a>(pool: &Pool, rows: usize, consumers: impl IntoIterator<Item = &'a Linear>) -> Self {
        let (mut cols, mut floats, mut integers) = (None, false, false);
        for consumer in consumers {
            assert_eq!(*cols.get_or_insert(consumer.cols()), consumer.cols(), "consumers differ in columns");
            floats |= consumer.parts().iter().any(|part| part.is_float());
            integers |= consumer.parts().iter().any(|part| !part.is_float());
        }
        let cols = cols.expect("an input is for some matrix");
        let len = rows.next_multiple_of(ROWS_MULTIPLE) * cols;
        let arranged = pool.kernels().wide.map_or(0, |wide| len / wide.tokens / GROUP * wide.group_bytes);
        let quantized = integers.then(|| QuantizedRows {
            codes: Shared::zeroed(pool, len),
            scales: Shared::zeroed(pool, len / GROUP),
            sums: Shared::zeroed(pool, len / GROUP * 2),
            scaled_sums: Shared::zeroed(pool, len / GROUP),
            arranged: Shared::zeroed(pool, arranged),
        });
        let floats = floats.then(|| Matrix::new(pool, rows, cols));
        Self { rows, cols, floats, floats_for_adapters: false, quantized, bf16: None, normalized: None }
    }

    /// Makes room for rows of prompts in bf16, which all consumers take so, or all but some (`also_exact`). Panics if the kernels
    /// cannot multiply them.
    pub fn in_bf16(mut self, pool: &Pool, also_exact: bool) -> Self {
        let bf16 = pool.kernels().bf16.expect("kernels that multiply bf16");
        assert!(self.cols.is_multiple_of(GROUP));
        let values = Shared::zeroed(pool, self.rows.next_multiple_of(bf16.product.rows) * self.cols);
        self.bf16 = Some(Bf16Rows { values, also_exact });
        self
    }

    /// Makes it the input of a layer that begins with a root-mean-square norm.
    pub fn normalized(mut self, pool: &Pool, epsilon: f32) -> Self {
        let groups = self.cols.div_ceil(GROUP);
        self.normalized = Some(Normalized { epsilon, groups, squares: Shared::zeroed(pool, self.rows * groups) });
        self
    }

    /// Makes room for the floats that adapters take, if there is none yet.
    pub fn reserve_floats(&mut self, pool: &Pool) {
        if self.floats.is_none() {
            self.floats = Some(Matrix::new(pool, self.rows, self.cols));
            self.floats_for_adapters = true;
        }
    }

    /// Returns the bytes of `reserve_floats`, called or not.
    pub fn bytes_for_adapters(&self) -> usize {
        let has_own = self.floats.is_some() && !self.floats_for_adapters;
        if has_own { 0 } else { self.rows * self.cols * size_of::<f32>() }
    }

    pub fn rows(&self) -> usize {
        self.rows
    }

    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Puts `values` into the columns of `part`, rounded as the matmuls of that row take them.
    ///
    /// # Safety
    /// The part is this worker's; its columns start at a whole group, and end at one or with the row.
    pub(crate) unsafe fn put(&self, worker: &Worker<'_>, rows: BatchRows, part: &Span, values: &[f32]) {
        let Span { access, row, cols } = part;
        assert!(*row < self.rows && cols.len() == values.len() && cols.end <= self.cols);
        let bf16 = self.bf16.as_ref().filter(|_| rows.in_bf16().contains(row));
        let is_exact = bf16.is_none_or(|to| to.also_exact);
        if let Some(to) = bf16 {
            // SAFETY: the caller's promise.
            unsafe { self.put_bf16(worker, to, *row - rows.in_bf16().start, part, values) };
        }
        if let Some(floats) = &self.floats
            && (rows.has_adapters() || is_exact && !self.floats_for_adapters)
        {
            // SAFETY: the caller's promise.
            unsafe { floats.own_span(worker, part) }.copy_from_slice(values);
        }
        if !is_exact {
            return;
        }
        let Some(to) = &self.quantized else { return };
        let (at, len) = (row * self.cols + cols.start, cols.len());
        assert!(at.is_multiple_of(GROUP) && len.is_multiple_of(GROUP));
        // SAFETY: in bounds, since the columns are; disjoint between workers, by the caller's promise.
        unsafe {
            let quantized = Quantized {
                codes: from_raw_parts_mut(to.codes.write(worker, *access).add(at), len),
                scales: from_raw_parts_mut(to.scales.write(worker, *access).add(at / GROUP), len / GROUP),
                sums: from_raw_parts_mut(to.sums.write(worker, *access).add(at / GROUP * 2), len / GROUP * 2),
                scaled_sums: from_raw_parts_mut(to.scaled_sums.write(worker, *access).add(at / GROUP), len / GROUP),
            };
            (worker.kernels().quantize)(values, quantized);
        }
    }

    /// # Safety
    /// As `put`; `row` is that among the rows of prompts.
    unsafe fn put_bf16(&self, worker: &Worker<'_>, to: &Bf16Rows, row: usize, part: &Span, values: &[f32]) {
        let bf16 = worker.kernels().bf16.expect("asked before there was room");
        let (block, groups) = (row / BLOCK_ROWS * self.cols / GROUP, part.cols.start / GROUP);
        let at = ((block + groups) * BLOCK_ROWS + row % BLOCK_ROWS) * GROUP;
        assert!(part.cols.start.is_multiple_of(GROUP) && values.len().is_multiple_of(GROUP));
        assert!((row / BLOCK_ROWS + 1) * BLOCK_ROWS * self.cols <= to.values.len());
        // SAFETY: in bounds, since the row is; lines belong to the worker that has their columns.
        unsafe { (bf16.round)(values, to.values.write(worker, part.access).add(at)) };
    }

    /// `put` for a normalized input: `x` times `weight`, and the squares of `x`. `space` is as long as `x`.
    ///
    /// # Safety
    /// As `put`.
    pub(crate) unsafe fn put_normalized(
        &self,
        worker: &Worker<'_>,
        rows: BatchRows,
        part: &Span,
        x: &[f32],
        weight: &[f32],
        space: &mut [f32],
    ) {
        let Some(normalized) = &self.normalized else { unreachable!("the input of a norm was made as one") };
        let Span { access, row, cols } = part;
        assert!(*row < self.rows && weight.len() == self.cols && cols.start.is_multiple_of(GROUP));
        assert!(x.len() == cols.len() && space.len() == x.len());
        let groups = cols.start / GROUP..cols.end.div_ceil(GROUP);
        // SAFETY: in bounds; groups belong to the worker that has their columns.
        unsafe {
            let start = normalized.squares.write(worker, *access).add(row * normalized.groups + groups.start);
            let squares = from_raw_parts_mut(start, groups.len());
            (worker.kernels().weigh)(x, &weight[cols.clone()], space, squares);
            self.put(worker, rows, part, space);
        }
    }

    /// Returns the epsilon of the norm that it is the result of. Panics if it is that of none.
    pub(crate) fn epsilon(&self) -> f32 {
        self.normalized.as_ref().expect("the input of a norm was made as one").epsilon
    }

    /// `put` for a row of a normalized input that was divided already.
    ///
    /// # Safety
    /// As `put`.
    pub(crate) unsafe fn put_divided(&self, worker: &Worker<'_>, rows: BatchRows, row: usize, values: &[f32]) {
        let Some(normalized) = &self.normalized else { unreachable!("the input of a norm was made as one") };
        assert!(row < self.rows && values.len() == self.cols);
        let part = Span { access: Access::WriteRows, row, cols: 0..self.cols };
        // SAFETY: in bounds; the row is this worker's.
        unsafe {
            let start = normalized.squares.write(worker, part.access).add(row * normalized.groups);
            let squares = from_raw_parts_mut(start, normalized.groups);
            // Such that their factor is one.
            squares.fill(0.0);
            squares[0] = self.cols as f32 * (1.0 - normalized.epsilon);
            self.put(worker, rows, &part, values);
        }
    }

    /// Copies row `rows[i]` of `from` to row `i`, in shares; complete after the next barrier. Panics if the two are not
    /// for the same weights.
    pub(crate) fn gather(&self, worker: &Worker<'_>, from: &Self, rows: &[usize]) {
        assert!(self.cols == from.cols && rows.len() <= self.rows && rows.iter().all(|row| *row < from.rows));
        let groups = self.cols / GROUP;
        for i in own_rows(worker, rows.len()) {
            let copy = RowCopy { worker, from: rows[i], to: i };
            if let Some(floats) = self.floats.as_ref().filter(|_| !self.floats_for_adapters) {
                let source = &from.floats.as_ref().expect("an input for float weights").data;
                copy.run(source, &floats.data, self.cols);
            }
            if let Some(to) = &self.quantized {
                let from = from.quantized.as_ref().expect("an input for integer weights");
                copy.run(&from.codes, &to.codes, self.cols);
                copy.run(&from.scales, &to.scales, groups);
                copy.run(&from.sums, &to.sums, groups * 2);
                copy.run(&from.scaled_sums, &to.scaled_sums, groups);
            }
            match (&from.normalized, &self.normalized) {
                (Some(from), Some(to)) => copy.run(&from.squares, &to.squares, to.groups),
                (None, None) => {}
                _ => panic!("one of the two is normalized"),
            }
        }
    }

    /// Writes the factors that the results of the first `factors.len()` rows must be multiplied by.
    pub(crate) fn factors(&self, worker: &Worker<'_>, factors: &mut [f32]) {
        let Some(normalized) = &self.normalized else { return factors.fill(1.0) };
        let squares = normalized.squares.read(worker).chunks_exact(normalized.groups);
        for (factor, squares) in factors.iter_mut().zip(squares) {
            *factor = normalized.factor(worker, squares, self.cols);
        }
    }

    /// Returns the factor of one row.
    pub(crate) fn factor(&self, worker: &Worker<'_>, row: usize) -> f32 {
        let Some(normalized) = &self.normalized else { return 1.0 };
        let squares = &normalized.squares.read(worker)[row * normalized.groups..][..normalized.groups];
        normalized.factor(worker, squares, self.cols)
    }

    /// Returns the floats of one row, which adapters take.
    pub(crate) fn float_row<'w>(&'w self, worker: &'w Worker<'_>, row: usize) -> &'w [f32] {
        self.floats.as_ref().expect("room was reserved for adapters").read_row(worker, row)
    }

    /// Returns rows of prompts in blocks, from `first` on (among them), of which at least `rows` are readable.
    pub(crate) fn bf16_rows<'w>(&'w self, worker: &'w Worker<'_>, first: usize, rows: usize) -> &'w [u16] {
        let from = self.bf16.as_ref().expect("room for rows of prompts");
        assert!(first.is_multiple_of(BLOCK_ROWS));
        &from.values.read(worker)[first * self.cols..][..rows * self.cols]
    }

    /// Arranges some rows for the kernel for many tokens, each worker its share; complete after the next barrier. They begin
    /// at a whole block of its tokens.
    pub(crate) fn arrange(&self, worker: &Worker<'_>, wide: Wide, rows: Range<usize>) {
        assert!(rows.start.is_multiple_of(wide.tokens));
        let to = &self.quantized.as_ref().expect("integer weights were among the consumers").arranged;
        let groups = self.cols / GROUP;
        let first = rows.start / wide.tokens;
        for block in own_rows(worker, rows.len().div_ceil(wide.tokens)).map(|block| first + block) {
            let x = self.quant_columns(worker, block * wide.tokens, wide.tokens, &[1.0; ROWS_MULTIPLE]);
            let at = block * groups * wide.group_bytes;
            assert!(at + groups * wide.group_bytes <= to.len());
            // SAFETY: `wide.tokens` tokens are readable, and there is room for all groups; each block is one worker's.
            unsafe { (wide.arrange)(x, groups, to.write(worker, Access::WriteRows).add(at)) };
        }
    }

    /// What `arrange` made of the tokens from `first` on.
    pub(crate) fn arranged<'w>(&'w self, worker: &'w Worker<'_>, wide: Wide, first: usize) -> &'w [u8] {
        let from = &self.quantized.as_ref().expect("integer weights were among the consumers").arranged;
        let bytes = self.cols / GROUP * wide.group_bytes;
        &from.read(worker)[first / wide.tokens * bytes..][..bytes]
    }

    /// Rounded rows from `first` on, of which at least `rows` are readable. `factors` are theirs.
    pub(crate) fn quant_columns(
        &self,
        worker: &Worker<'_>,
        first: usize,
        rows: usize,
        factors: &[f32],
    ) -> QuantColumns {
        let from = self.quantized.as_ref().expect("integer weights were among the consumers");
        let (at, end) = (first * self.cols, (first + rows) * self.cols);
        assert!(factors.len() >= rows);
        QuantColumns {
            codes: from.codes.read(worker)[at..end].as_ptr(),
            scales: from.scales.read(worker)[at / GROUP..end / GROUP].as_ptr(),
            sums: from.sums.read(worker)[at / GROUP * 2..end / GROUP * 2].as_ptr(),
            scaled_sums: from.scaled_sums.read(worker)[at / GROUP..end / GROUP].as_ptr(),
            factors: factors.as_ptr(),
        }
    }

    /// `quant_columns` for float weights.
    pub(crate) fn float_columns(
        &self,
        worker: &Worker<'_>,
        first: usize,
        rows: usize,
        factors: &[f32],
    ) -> FloatColumns {
        let from = self.floats.as_ref().expect("float weights were among the consumers");
        assert!(factors.len() >= rows);
        let values = from.data.read(worker)[first * self.cols..(first + rows) * self.cols].as_ptr();
        FloatColumns { values, factors: factors.as_ptr() }
    }
}
