//! Matmul of a batch, shared between threads by output columns, with what follows it done while results are at hand.

use std::ops::Range;

use super::matrix::Part;
use super::{Activations, Linear, Matrix};
use crate::kernels::Wide;
use crate::kernels::matmul::{IntegerTile, TileSums};
use crate::threads::{Access, Buffer, Scratch, Worker};
use crate::weights::{GROUP, PackedMatrix, TILE_ROWS};

/// Tiles are dealt out in pairs, so that every worker's columns are whole groups of the next matmul's input.
const PAIR: usize = GROUP / TILE_ROWS;
/// Bytes of weights that a worker takes through all tokens before it turns to the next: part of its L2 cache.
const BLOCK_BYTES: usize = 1 << 20;
/// Tiles that are taken together at most.
const BLOCK_TILES: usize = 64;

/// `out[t] = weights * input[t] + bias` for the first `rows` rows `t`.
pub fn matmul(worker: &Worker<'_>, weights: &Linear, input: &Activations, rows: usize, out: &Matrix) {
    assert!(out.cols == weights.rows() && rows <= out.rows);
    let mut first_col = 0;
    for part in weights.parts() {
        let own = own_tiles(worker, part);
        multiply(worker, &[part], own, input, rows, |block| {
            let cols = first_col + block.cols.start..first_col + block.cols.end;
            // SAFETY: every tile belongs to one worker.
            let to = unsafe { out.own_part(worker, &block.part(cols.clone())) };
            to.copy_from_slice(block.products(0));
            if let Some(bias) = weights.bias() {
                to.iter_mut().zip(&bias[cols]).for_each(|(to, bias)| *to += bias);
            }
        });
        first_col += part.rows();
    }
}

/// `x[t] += weights * input[t]`, and the result as the input of a layer with norm weights `norm`.
pub fn matmul_residual(
    worker: &Worker<'_>,
    weights: &Linear,
    input: &Activations,
    rows: usize,
    x: &Matrix,
    norm: &[f32],
    out: &Activations,
) {
    let [part] = weights.parts() else { panic!("a residual is added from one matrix") };
    assert!(weights.bias().is_none() && x.cols == part.rows() && out.cols() == x.cols && rows <= x.rows);
    multiply(worker, &[part], own_tiles(worker, part), input, rows, |mut block| {
        // SAFETY: every pair of tiles belongs to one worker, so columns start at whole groups.
        unsafe {
            let part = block.part(block.cols.clone());
            let x = x.own_part(worker, &part);
            (worker.kernels().add)(x, block.products(0));
            out.put_normalized(worker, &part, x, norm, block.products_mut(0));
        }
    });
}

/// `out[t] = silu(gate * input[t]) * (up * input[t])`, where `gate_up` is the two matrices.
pub fn matmul_swiglu(worker: &Worker<'_>, gate_up: &Linear, input: &Activations, rows: usize, out: &Activations) {
    let [gate, up] = gate_up.parts() else { panic!("gate and up are two matrices") };
    assert!(gate_up.bias().is_none() && gate.rows() == up.rows() && out.cols() == gate.rows() && rows <= out.rows());
    multiply(worker, &[gate, up], own_tiles(worker, gate), input, rows, |mut block| {
        let part = block.part(block.cols.clone());
        let (gate, up) = block.both_products();
        // SAFETY: lengths match; columns are this worker's, as above.
        unsafe {
            (worker.kernels().swiglu)(up, gate);
            out.put(worker, &part, gate);
        }
    });
}

/// The tiles that fall to a worker.
fn own_tiles(worker: &Worker<'_>, part: &PackedMatrix) -> Range<usize> {
    let pairs = part.tiles().div_ceil(PAIR);
    let bound = |index: usize| (pairs * index / worker.count() * PAIR).min(part.tiles());
    bound(worker.index())..bound(worker.index() + 1)
}

/// The products of one row of the batch with some neighbouring tiles of one or two matrices.
struct Block<'a> {
    row: usize,
    /// Rows of the matrix, which are columns of the product.
    cols: Range<usize>,
    /// For each matrix, the products of its tiles.
    sums: &'a mut [f32],
}

impl Block<'_> {
    /// The place of these products, as columns `cols` of what they go to.
    fn part(&self, cols: Range<usize>) -> Part {
        Part { access: Access::WriteTiles, row: self.row, cols }
    }

    fn products(&self, matrix: usize) -> &[f32] {
        &self.sums[matrix * self.cols.len().next_multiple_of(TILE_ROWS)..][..self.cols.len()]
    }

    fn products_mut(&mut self, matrix: usize) -> &mut [f32] {
        &mut self.sums[matrix * self.cols.len().next_multiple_of(TILE_ROWS)..][..self.cols.len()]
    }

    fn both_products(&mut self) -> (&mut [f32], &mut [f32]) {
        let (first, second) = self.sums.split_at_mut(self.cols.len().next_multiple_of(TILE_ROWS));
        (&mut first[..self.cols.len()], &mut second[..self.cols.len()])
    }
}

/// Multiplies `tiles` of each of `parts` with the first `rows` rows of `input`; every result is handed to `finish`.
fn multiply(
    worker: &Worker<'_>,
    parts: &[&PackedMatrix],
    tiles: Range<usize>,
    input: &Activations,
    rows: usize,
    mut finish: impl FnMut(Block<'_>),
) {
    let cols = parts[0].cols();
    assert!(parts.iter().all(|part| part.cols() == cols && part.rows() == parts[0].rows()));
    assert!(input.cols() == cols && rows <= input.rows());
    let mut scratch = worker.scratch();
    let Scratch { unpacked, arranged, sums, factors, .. } = &mut *scratch;
    factors.resize(rows.next_multiple_of(64));
    input.factors(worker, &mut factors[..rows]);
    let integers = parts.iter().any(|part| !part.is_float());
    let wide = worker.kernels().wide.filter(|wide| rows >= wide.rows_min && integers);
    let step = wide.map_or(worker.kernels().tokens, |wide| wide.tokens);
    let block_tiles = block_tiles(parts, wide, rows > step);
    for first_tile in tiles.clone().step_by(block_tiles) {
        let tiles = first_tile..tiles.end.min(first_tile + block_tiles);
        let stride = tiles.len() * parts.len() * TILE_ROWS;
        sums.resize(step * stride);
        if let Some(wide) = wide {
            unpack(parts, tiles.clone(), wide, unpacked);
        }
        for first in (0..rows).step_by(step) {
            let batch = TokenBlock { input, first, count: step.min(rows - first), factors: &factors[first..] };
            if let Some(wide) = wide.filter(|wide| batch.count >= wide.tokens_min) {
                arrange(worker, wide, &batch, arranged);
            }
            for (i, part) in parts.iter().enumerate() {
                let out = &mut sums[i * tiles.len() * TILE_ROWS..];
                match wide.filter(|wide| batch.count >= wide.tokens_min && !part.is_float()) {
                    Some(wide) => {
                        let values = &unpacked[i * tiles.len() * wide.column_bytes * cols..];
                        wide_products(wide, part, tiles.clone(), values, &batch, arranged, out, stride);
                    }
                    None => narrow_products(worker, part, tiles.clone(), &batch, out, stride),
                }
            }
            let cols = tiles.start * TILE_ROWS..parts[0].rows().min(tiles.end * TILE_ROWS);
            for (t, sums) in sums.chunks_exact_mut(stride).take(batch.count).enumerate() {
                finish(Block { row: first + t, cols: cols.clone(), sums });
            }
        }
    }
}

/// How many tiles of each matrix are taken together: as many as stay in cache, if there is more than one round of tokens
/// to take them through.
fn block_tiles(parts: &[&PackedMatrix], wide: Option<Wide>, stays: bool) -> usize {
    let tile_bytes: usize = parts
        .iter()
        .map(|part| match wide {
            Some(wide) if !part.is_float() => wide.column_bytes * part.cols(),
            _ => part.tile_codes(0).len() + part.tile_scales(0).len(),
        })
        .sum();
    let fit = if stays || wide.is_some() { BLOCK_BYTES / tile_bytes } else { BLOCK_TILES };
    (fit.min(BLOCK_TILES) / PAIR * PAIR).max(PAIR)
}

/// Some rows of the input.
struct TokenBlock<'a> {
    input: &'a Activations,
    first: usize,
    count: usize,
    /// From the first of these rows on, and readable a little beyond the last.
    factors: &'a [f32],
}

/// Some tiles, at most as many as a block has; what follows them is the last again.
fn integer_tiles(part: &PackedMatrix, tiles: Range<usize>) -> [IntegerTile; BLOCK_TILES] {
    std::array::from_fn(|i| integer_tile(part, tiles.start + i.min(tiles.len() - 1)))
}

fn integer_tile(part: &PackedMatrix, tile: usize) -> IntegerTile {
    let (codes, scales) = (part.tile_codes(tile).as_ptr(), part.tile_scales(tile).as_ptr());
    IntegerTile { codes, scales, cols: part.cols() }
}

fn unpack(parts: &[&PackedMatrix], tiles: Range<usize>, wide: Wide, unpacked: &mut Buffer<i8>) {
    let tile_bytes = wide.column_bytes * parts[0].cols();
    unpacked.resize(parts.len() * tiles.len() * tile_bytes);
    for (i, part) in parts.iter().enumerate().filter(|(_, part)| !part.is_float()) {
        let to = unpacked[i * tiles.len() * tile_bytes..].chunks_exact_mut(tile_bytes);
        for (tile, to) in tiles.clone().zip(to) {
            // SAFETY: the tile is there, and `to` has the bytes that one takes.
            unsafe { (wide.unpack)(part.kind(), integer_tile(part, tile), to.as_mut_ptr()) };
        }
    }
}

fn arrange(worker: &Worker<'_>, wide: Wide, batch: &TokenBlock<'_>, arranged: &mut Buffer<u8>) {
    let groups = batch.input.cols() / GROUP;
    arranged.resize(wide.group_bytes * groups);
    let x = batch.input.quant_columns(worker, batch.first, wide.tokens, batch.factors);
    // SAFETY: so many tokens are readable, and there is room for all groups.
    unsafe { (wide.arrange)(x, groups, arranged.as_mut_ptr()) };
}

#[allow(clippy::too_many_arguments)]
fn wide_products(
    wide: Wide,
    part: &PackedMatrix,
    tiles: Range<usize>,
    values: &[i8],
    batch: &TokenBlock<'_>,
    arranged: &[u8],
    out: &mut [f32],
    stride: usize,
) {
    assert!(arranged.len() >= wide.group_bytes * part.cols() / GROUP && batch.factors.len() >= wide.tokens);
    assert!(values.len() >= tiles.len() * wide.column_bytes * part.cols());
    assert!(out.len() >= (wide.tokens - 1) * stride + tiles.len() * TILE_ROWS);
    let tiles_in = integer_tiles(part, tiles.clone());
    let to = TileSums { start: out.as_mut_ptr(), stride };
    let (values, x, factors) = (values.as_ptr(), arranged.as_ptr(), batch.factors.as_ptr());
    // SAFETY: the tiles are there, packed and unpacked; the tokens are arranged; the results fit, as asserted.
    unsafe { (wide.multiply)(part.kind(), &tiles_in[..tiles.len()], values, x, factors, to) };
}

fn narrow_products(
    worker: &Worker<'_>,
    part: &PackedMatrix,
    tiles: Range<usize>,
    batch: &TokenBlock<'_>,
    out: &mut [f32],
    stride: usize,
) {
    let table = worker.kernels();
    assert!(out.len() >= (batch.count - 1) * stride + tiles.len() * TILE_ROWS);
    let tiles_in = integer_tiles(part, tiles.clone());
    for done in (0..batch.count).step_by(table.tokens) {
        let (first, count) = (batch.first + done, table.tokens.min(batch.count - done));
        let factors = &batch.factors[done..];
        let start = out[done * stride..].as_mut_ptr();
        let to = |tile: usize| TileSums { start: start.wrapping_add(tile * TILE_ROWS), stride };
        // SAFETY: the tiles have `cols` columns, as have `count` tokens of the input; the results fit, as asserted.
        unsafe {
            if !part.is_float() {
                let x = batch.input.quant_columns(worker, first, count, factors);
                (table.integer_tiles)(part.kind(), &tiles_in[..tiles.len()], x, count, to(0));
                continue;
            }
            let x = batch.input.float_columns(worker, first, count, factors);
            for (i, tile) in tiles.clone().enumerate() {
                (table.float_tile)(part.kind(), part.tile_codes(tile).as_ptr(), part.cols(), x, count, to(i));
            }
        }
    }
}
