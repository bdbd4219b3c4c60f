//! Matmul of a batch with weight matrices, shared between threads by tiles.

use super::{Activations, Matrix};
use crate::kernels::matmul::{IntegerTile, QuantColumns, TOKENS_MAX, TileSums};
use crate::threads::{Access, Worker};
use crate::weights::{GROUP, PackedMatrix, TILE_ROWS};

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LinearError {
    #[error("matrices stacked in one layer have {0} and {1} columns")]
    Columns(usize, usize),
    #[error("a layer of {rows} rows has a bias of {bias} numbers")]
    Bias { rows: usize, bias: usize },
}

/// Weight matrices stacked over each other (such as Q, K and V), which may differ in format, and an optional bias.
#[derive(Debug)]
pub struct Linear {
    parts: Vec<PackedMatrix>,
    bias: Option<Vec<f32>>,
}

impl Linear {
    /// Panics without any part.
    pub fn new(parts: Vec<PackedMatrix>, bias: Option<Vec<f32>>) -> Result<Self, LinearError> {
        let cols = parts[0].cols();
        if let Some(other) = parts.iter().find(|part| part.cols() != cols) {
            return Err(LinearError::Columns(cols, other.cols()));
        }
        let rows = parts.iter().map(PackedMatrix::rows).sum();
        match &bias {
            Some(bias) if bias.len() != rows => Err(LinearError::Bias { rows, bias: bias.len() }),
            _ => Ok(Self { parts, bias }),
        }
    }

    pub fn rows(&self) -> usize {
        self.parts.iter().map(PackedMatrix::rows).sum()
    }

    pub fn cols(&self) -> usize {
        self.parts[0].cols()
    }

    /// Memory held by the weights.
    pub fn bytes(&self) -> usize {
        self.parts.iter().map(PackedMatrix::bytes).sum()
    }
}

/// What to do with the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    Store,
    /// Add to what is there: a residual connection.
    Add,
}

/// `out[t] = weights * input[t]` for the first `rows` rows `t`.
pub fn matmul(worker: &Worker<'_>, weights: &Linear, input: &Activations, rows: usize, out: &Matrix, mode: Output) {
    assert!(input.cols() == weights.cols() && out.cols == weights.rows());
    assert!(rows <= input.floats.rows && rows <= out.rows);
    let tiles: usize = weights.parts.iter().map(PackedMatrix::tiles).sum();
    let share = tiles * worker.index() / worker.count()..tiles * (worker.index() + 1) / worker.count();
    let (mut first_tile, mut first_col) = (0, 0);
    for part in &weights.parts {
        let own = share.start.max(first_tile)..share.end.min(first_tile + part.tiles());
        for tile in own {
            let tile = tile - first_tile;
            let cols = first_col + tile * TILE_ROWS..first_col + part.rows().min((tile + 1) * TILE_ROWS);
            let bias = weights.bias.as_ref().map(|bias| &bias[cols.clone()]);
            multiply_tile(worker, part, tile, input, rows, &OutputColumns { matrix: out, cols, bias, mode });
        }
        first_tile += part.tiles();
        first_col += part.rows();
    }
}

/// The columns of the output that one tile of weights fills.
struct OutputColumns<'a> {
    matrix: &'a Matrix,
    cols: std::ops::Range<usize>,
    bias: Option<&'a [f32]>,
    mode: Output,
}

fn multiply_tile(
    worker: &Worker<'_>,
    weights: &PackedMatrix,
    tile: usize,
    input: &Activations,
    rows: usize,
    out: &OutputColumns<'_>,
) {
    let table = worker.kernels();
    let step = table.tokens.min(TOKENS_MAX);
    let cols = weights.cols();
    let codes = weights.tile_codes(tile);
    let mut sums = TileSums::default();
    for first in (0..rows).step_by(step) {
        let tokens = step.min(rows - first);
        if weights.is_float() {
            let x = &input.floats.data.read(worker)[first * cols..(first + tokens) * cols];
            // SAFETY: the tile has `cols` columns and `x` holds `tokens` rows of as many.
            unsafe { (table.float_tile)(weights.kind(), codes.as_ptr(), cols, x.as_ptr(), tokens, &mut sums) };
        } else {
            let x = QuantColumns {
                codes: input.codes.read(worker)[first * cols..(first + tokens) * cols].as_ptr(),
                scales: input.scales.read(worker)[first * cols / GROUP..(first + tokens) * cols / GROUP].as_ptr(),
                sums: input.sums.read(worker)[first * cols / GROUP * 2..(first + tokens) * cols / GROUP * 2].as_ptr(),
            };
            let tile = IntegerTile { codes: codes.as_ptr(), scales: weights.tile_scales(tile).as_ptr(), cols };
            // SAFETY: the tile has `cols` columns and `x` holds `tokens` rows of as many, checked by the slicing.
            unsafe { (table.integer_tile)(weights.kind(), tile, x, tokens, &mut sums) };
        }
        out.put(worker, first, &sums[..tokens]);
    }
}

impl OutputColumns<'_> {
    fn put(&self, worker: &Worker<'_>, first: usize, sums: &[[f32; TILE_ROWS]]) {
        let start = self.matrix.data.write(worker, Access::WriteTiles);
        for (t, sums) in sums.iter().enumerate() {
            assert!(first + t < self.matrix.rows && self.cols.end <= self.matrix.cols);
            let at = (first + t) * self.matrix.cols + self.cols.start;
            // SAFETY: in bounds; every tile belongs to one worker, so no other writes these columns in this phase.
            let to = unsafe { std::slice::from_raw_parts_mut(start.add(at), self.cols.len()) };
            for (i, (to, sum)) in to.iter_mut().zip(sums).enumerate() {
                let value = sum + self.bias.map_or(0.0, |bias| bias[i]);
                match self.mode {
                    Output::Store => *to = value,
                    Output::Add => *to += value,
                }
            }
        }
    }
}
