//! Matmul of a batch, with what follows it done while results are at hand.
//!
//! Output columns are cut into units that workers take as they come free.

use std::ops::Range;

use super::low_rank::LowRankOf;
use super::matrix::Span;
use super::{Activation, Activations, Adapted, BatchRows, Linear, Matrix, RowKernels};
use crate::kernels::Wide;
use crate::kernels::bf16::{Bf16, RowBlocks, Sums, UnpackedTiles};
use crate::kernels::matmul::{IntegerTiles, TileSums};
use crate::threads::{Access, Buffer, Part, Scratch, Worker};
use crate::weights::{GROUP, PackedMatrix, TILE_ROWS};

/// Units are whole pairs of tiles, so that their columns are whole groups of the next matmul's input.
const PAIR: usize = GROUP / TILE_ROWS;
/// Bytes of a unit. Unpacked weights are taken through all tokens before others: half of a worker's L2 cache. Others are
/// read once or twice; their units are so short that the end of a phase finds all workers at work.
const WIDE_UNIT_BYTES_MAX: usize = 1 << 20;
const NARROW_UNIT_BYTES_MAX: usize = 128 << 10;
const UNIT_TILES_MAX: usize = 64;
/// Units for each worker: enough that one that is late holds up the others by little.
const UNITS_EACH: usize = 4;

/// `out[t] = weights * input[t] + bias` for the first `rows` rows `t`.
pub fn matmul<'a>(
    worker: &mut Worker<'_>,
    weights: impl Into<Adapted<'a>>,
    input: &Activations,
    rows: impl Into<BatchRows>,
    out: &Matrix,
) {
    let (Adapted { weights, low_rank }, rows) = (weights.into(), rows.into());
    assert!(out.cols == weights.rows() && rows.count() <= out.rows);
    multiply(worker, &Group::of(weights, rows), 1, low_rank, input, |worker, _, part, block| {
        let before: usize = weights.parts()[..part].iter().map(PackedMatrix::rows).sum();
        let cols = before + block.cols.start..before + block.cols.end;
        // SAFETY: every tile is in one unit, which one worker takes.
        let to = unsafe { out.own_span(worker, &block.span(cols.clone())) };
        to.copy_from_slice(block.products(0));
        if let Some(bias) = weights.bias() {
            to.iter_mut().zip(&bias[cols]).for_each(|(to, bias)| *to += bias);
        }
    });
}

/// `x[t] += weights * input[t] + bias`, and the result as the input of a layer with norm weights `norm`.
pub fn matmul_residual<'a>(
    worker: &mut Worker<'_>,
    weights: impl Into<Adapted<'a>>,
    input: &Activations,
    rows: impl Into<BatchRows>,
    x: &Matrix,
    norm: &[f32],
    out: &Activations,
) {
    let (Adapted { weights, low_rank }, rows) = (weights.into(), rows.into());
    assert!(weights.parts().len() == 1);
    assert!(x.cols == weights.rows() && out.cols() == x.cols && rows.count() <= x.rows);
    multiply(worker, &Group::of(weights, rows), 1, low_rank, input, |worker, _, _, mut block| {
        let part = block.span(block.cols.clone());
        // SAFETY: every pair of tiles is in one unit, which one worker takes, so columns start at whole groups.
        unsafe {
            let x = x.own_span(worker, &part);
            if let Some(bias) = weights.bias() {
                (worker.kernels().add)(block.products_mut(0), &bias[part.cols.clone()]);
            }
            (worker.kernels().add)(x, block.products(0));
            out.put_normalized(worker, rows, &part, x, norm, block.products_mut(0));
        }
    });
}

/// `out[t] = activation(gate * input[t]) * (up * input[t])`, where `gate_up` is the two matrices.
pub fn matmul_gated<'a>(
    worker: &mut Worker<'_>,
    gate_up: impl Into<Adapted<'a>>,
    activation: Activation,
    input: &Activations,
    rows: impl Into<BatchRows>,
    out: &Activations,
) {
    let (Adapted { weights, low_rank }, rows) = (gate_up.into(), rows.into());
    gated(worker, &Group::of(weights, rows), low_rank, rows, native_gate(activation), input, out);
}

/// `matmul_gated` whose gates go through kernels from outside.
pub fn matmul_gated_by<'a>(
    worker: &mut Worker<'_>,
    row_kernels: &dyn RowKernels,
    gate_up: impl Into<Adapted<'a>>,
    activation: Activation,
    input: &Activations,
    rows: impl Into<BatchRows>,
    out: &Activations,
) {
    let (Adapted { weights, low_rank }, rows) = (gate_up.into(), rows.into());
    let native = native_gate(activation);
    let gate_through = |worker: &Worker<'_>, up: &[f32], gate: &mut [f32]| {
        if !row_kernels.gated(worker.index(), activation, up, gate) {
            native(worker, up, gate);
        }
    };
    gated(worker, &Group::of(weights, rows), low_rank, rows, gate_through, input, out);
}

/// Returns how many gates of a row a worker activates at once, of a few rows.
pub fn gated_cols(gate_up: &Linear, workers: usize) -> usize {
    let tiles = unit_tiles(gate_up.parts(), Path::Narrow, workers);
    (tiles * TILE_ROWS).min(gate_up.rows() / 2)
}

/// Returns what multiplies one part of a row by its activated gate.
fn native_gate(activation: Activation) -> impl Fn(&Worker<'_>, &[f32], &mut [f32]) {
    move |worker, up, gate| {
        assert_eq!(up.len(), gate.len());
        // SAFETY: the slices have one length.
        unsafe { (worker.kernels().gated(activation))(up, gate) };
    }
}

/// `matmul_gated` of each group of `rows` with weights of its own.
pub(super) fn gated_groups(
    worker: &mut Worker<'_>,
    groups: &[Group<'_>],
    rows: BatchRows,
    activation: Activation,
    input: &Activations,
    out: &Activations,
) {
    gated(worker, groups, None, rows, native_gate(activation), input, out);
}

fn gated(
    worker: &mut Worker<'_>,
    groups: &[Group<'_>],
    low_rank: Option<LowRankOf<'_>>,
    rows: BatchRows,
    gate_through: impl Fn(&Worker<'_>, &[f32], &mut [f32]),
    input: &Activations,
    out: &Activations,
) {
    for Group { weights, rows, .. } in groups {
        assert!(weights.parts().len() == 2 && weights.rows() == 2 * out.cols() && rows.end <= out.rows());
    }
    multiply(worker, groups, 2, low_rank, input, |worker, group, _, mut block| {
        let part = block.span(block.cols.clone());
        let cols = block.cols.clone();
        let (gate, up) = block.both_products();
        if let Some(bias) = group.weights.bias() {
            let (gate_bias, up_bias) = bias.split_at(out.cols());
            gate.iter_mut().zip(&gate_bias[cols.clone()]).for_each(|(gate, bias)| *gate += bias);
            up.iter_mut().zip(&up_bias[cols]).for_each(|(up, bias)| *up += bias);
        }
        gate_through(worker, up, gate);
        // SAFETY: columns are this worker's, as above.
        unsafe { out.put(worker, rows, &part, gate) };
    });
}

/// `matmul` of each group of rows with weights of its own, which are one matrix.
pub(super) fn matmul_groups(worker: &mut Worker<'_>, groups: &[Group<'_>], input: &Activations, out: &Matrix) {
    for Group { weights, rows, .. } in groups {
        assert!(weights.parts().len() == 1 && weights.rows() == out.cols && rows.end <= out.rows);
    }
    multiply(worker, groups, 1, None, input, |worker, group, _, block| {
        // SAFETY: every tile is in one unit, which one worker takes.
        let to = unsafe { out.own_span(worker, &block.span(block.cols.clone())) };
        to.copy_from_slice(block.products(0));
        if let Some(bias) = group.weights.bias() {
            to.iter_mut().zip(&bias[block.cols.clone()]).for_each(|(to, bias)| *to += bias);
        }
    });
}

/// Neighbouring rows of an input, and the weights that they are multiplied with.
pub(super) struct Group<'a> {
    weights: &'a Linear,
    rows: Range<usize>,
    in_bf16: bool,
}

/// How a group is multiplied.
#[derive(Clone, Copy)]
enum Path {
    /// A few tokens at a time, weights as they are.
    Narrow,
    /// Many tokens, weights unpacked to bytes.
    Wide(Wide),
    /// Rows of prompts, weights unpacked to bf16.
    Bf16(Bf16),
}

impl<'a> Group<'a> {
    pub(super) fn exact(weights: &'a Linear, rows: Range<usize>) -> Self {
        Self { weights, rows, in_bf16: false }
    }

    /// All rows of a batch; either group may have none.
    fn of(weights: &'a Linear, rows: BatchRows) -> [Self; 2] {
        [Self::exact(weights, rows.exact()), Self { weights, rows: rows.in_bf16(), in_bf16: true }]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    fn products(&self) -> u64 {
        self.rows.len() as u64 * self.weights.rows() as u64 * self.weights.cols() as u64
    }

    fn path(&self, worker: &Worker<'_>) -> Path {
        let kernels = worker.kernels();
        if self.in_bf16 {
            return Path::Bf16(kernels.bf16.expect("asked before there were such rows"));
        }
        let has_integers = self.weights.parts().iter().any(|part| !part.is_float());
        match kernels.wide {
            Some(wide) if self.rows.len() >= wide.rows_min && has_integers => Path::Wide(wide),
            _ => Path::Narrow,
        }
    }
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
    fn span(&self, cols: Range<usize>) -> Span {
        Span { access: Access::WriteTiles, row: self.row, cols }
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

/// Multiplies each group's rows of `input` with its weights, of which each `together` go side by side, and adds what adapters
/// add. Every result is handed to `finish`, with the number of its part (or parts). Groups for many tokens begin at rows that
/// the kernels' blocks begin at.
fn multiply(
    worker: &mut Worker<'_>,
    groups: &[Group<'_>],
    together: usize,
    low_rank: Option<LowRankOf<'_>>,
    input: &Activations,
    mut finish: impl FnMut(&Worker<'_>, &Group<'_>, usize, Block<'_>),
) {
    for Group { weights, rows, .. } in groups {
        assert!(weights.cols() == input.cols() && rows.end <= input.rows());
    }
    worker.begin(Part::Matmul);
    worker.count_products(groups.iter().map(Group::products).sum());
    let mut is_arranged = false;
    for group in groups.iter().filter(|group| !group.is_empty()) {
        if let Path::Wide(wide) = group.path(worker) {
            input.arrange(worker, wide, group.rows.clone());
            is_arranged = true;
        }
    }
    if let Some(low_rank) = low_rank {
        low_rank.project(worker, input);
    }
    if is_arranged || low_rank.is_some() {
        worker.barrier();
        worker.begin(Part::Matmul);
    }
    let worker = &*worker;
    let rows = groups.iter().map(|group| group.rows.end).max().unwrap_or(0);
    let mut scratch = worker.scratch();
    // Kernels may read factors of a few more tokens than there are.
    scratch.factors.resize(rows.next_multiple_of(UNIT_TILES_MAX));
    input.factors(worker, &mut scratch.factors[..rows]);
    for number in worker.units() {
        let Some((stack, unit)) = Unit::find(worker, groups, together, number) else { break };
        let low_rank = low_rank.map(|low_rank| (low_rank, stack * together));
        unit.multiply(worker, input, low_rank, &mut scratch, |block| finish(worker, unit.group, stack, block));
    }
}

/// Some tiles of one matrix, or the same tiles of two that are taken together.
struct Unit<'a> {
    group: &'a Group<'a>,
    path: Path,
    parts: &'a [PackedMatrix],
    tiles: Range<usize>,
}

impl<'a> Unit<'a> {
    /// The unit of a number, and of which matrix (or matrices) it is; `None` after the last.
    fn find(worker: &Worker<'_>, groups: &'a [Group<'a>], together: usize, mut number: usize) -> Option<(usize, Self)> {
        for group in groups.iter().filter(|group| !group.is_empty()) {
            let path = group.path(worker);
            for (stack, parts) in group.weights.parts().chunks(together).enumerate() {
                let (all, each) = (parts[0].tiles(), unit_tiles(parts, path, worker.count()));
                let first = number * each;
                if first < all {
                    return Some((stack, Self { group, path, parts, tiles: first..all.min(first + each) }));
                }
                number -= all.div_ceil(each);
            }
        }
        None
    }

    /// `low_rank` comes with the number of the first of its parts.
    fn multiply(
        &self,
        worker: &Worker<'_>,
        input: &Activations,
        low_rank: Option<(LowRankOf<'_>, usize)>,
        scratch: &mut Scratch,
        mut finish: impl FnMut(Block<'_>),
    ) {
        let Scratch { unpacked, unpacked_bf16, sums, factors, .. } = scratch;
        let rows = self.group.rows.clone();
        assert!(self.parts.iter().all(|part| part.rows() == self.parts[0].rows()));
        let step = match self.path {
            Path::Narrow => worker.kernels().tokens,
            Path::Wide(wide) => wide.tokens,
            Path::Bf16(bf16) => bf16.product.rows,
        };
        let len = self.tiles.len() * TILE_ROWS;
        // Tokens a power of two apart would fall into few sets of the first-level cache.
        let stride = self.parts.len() * len + TILE_ROWS;
        sums.resize(step * stride);
        match self.path {
            Path::Narrow => {}
            Path::Wide(wide) => self.unpack(wide, unpacked),
            Path::Bf16(bf16) => self.unpack_bf16(bf16, unpacked_bf16),
        }
        for first in rows.clone().step_by(step) {
            let tokens = Tokens { input, first, count: step.min(rows.end - first), factors: &factors[first..] };
            for (i, part) in self.parts.iter().enumerate() {
                let out = &mut sums[i * len..];
                let at = i * self.tiles.len() * part.cols();
                match self.path {
                    Path::Bf16(bf16) => {
                        let values = &unpacked_bf16[at * TILE_ROWS..][..len * part.cols()];
                        let tokens = Tokens { first: first - rows.start, ..tokens };
                        bf16_products(worker, bf16, part.cols(), values, &tokens, out, stride);
                    }
                    Path::Wide(wide) if tokens.count >= wide.tokens_min && !part.is_float() => {
                        let values = &unpacked[at * wide.column_bytes..];
                        wide_products(worker, wide, part, self.tiles.clone(), values, &tokens, out, stride);
                    }
                    _ => narrow_products(worker, part, self.tiles.clone(), &tokens, out, stride),
                }
                if let Some((low_rank, first_part)) = low_rank {
                    let rows = (first, tokens.count);
                    low_rank.expand(worker, first_part + i, self.tiles.clone(), rows, &mut sums[i * len..], stride);
                }
            }
            let cols = self.tiles.start * TILE_ROWS..self.parts[0].rows().min(self.tiles.end * TILE_ROWS);
            for (t, sums) in sums.chunks_exact_mut(stride).take(tokens.count).enumerate() {
                finish(Block { row: first + t, cols: cols.clone(), sums });
            }
        }
    }

    fn unpack(&self, wide: Wide, unpacked: &mut Buffer<i8>) {
        let tile_bytes = wide.column_bytes * self.parts[0].cols();
        unpacked.resize(self.parts.len() * self.tiles.len() * tile_bytes);
        for (i, part) in self.parts.iter().enumerate().filter(|(_, part)| !part.is_float()) {
            let to = unpacked[i * self.tiles.len() * tile_bytes..].chunks_exact_mut(tile_bytes);
            for (tile, to) in self.tiles.clone().zip(to) {
                // SAFETY: the tile is there, and `to` has the bytes that one takes.
                unsafe { (wide.unpack)(part.kind(), integer_tiles(part, tile..tile + 1), to.as_mut_ptr()) };
            }
        }
    }

    fn unpack_bf16(&self, bf16: Bf16, unpacked: &mut Buffer<u16>) {
        let tile_len = TILE_ROWS * self.parts[0].cols();
        unpacked.resize(self.parts.len() * self.tiles.len() * tile_len);
        let tiles = self.parts.iter().flat_map(|part| self.tiles.clone().map(move |tile| (part, tile)));
        for ((part, tile), to) in tiles.zip(unpacked.chunks_exact_mut(tile_len)) {
            assert!(part.cols().is_multiple_of(GROUP));
            // SAFETY: the tile is there, and `to` is as long as one.
            unsafe {
                if part.is_float() {
                    let codes = part.tile_codes(tile).as_ptr();
                    (bf16.unpack_floats)(part.kind(), codes, part.cols(), to.as_mut_ptr());
                } else {
                    (bf16.unpack)(part.kind(), integer_tiles(part, tile..tile + 1), to.as_mut_ptr());
                }
            }
        }
    }
}

/// How many tiles of each of some matrices make a unit.
fn unit_tiles(parts: &[PackedMatrix], path: Path, workers: usize) -> usize {
    let tile_bytes = |part: &PackedMatrix| match path {
        Path::Bf16(_) => size_of::<u16>() * TILE_ROWS * part.cols(),
        Path::Wide(wide) if !part.is_float() => wide.column_bytes * part.cols(),
        _ => part.tile_codes(0).len() + part.tile_scales(0).len(),
    };
    let bytes_max = if matches!(path, Path::Narrow) { NARROW_UNIT_BYTES_MAX } else { WIDE_UNIT_BYTES_MAX };
    let fit = bytes_max / parts.iter().map(tile_bytes).sum::<usize>();
    let fair = parts[0].tiles().div_ceil(workers * UNITS_EACH);
    fit.min(fair).next_multiple_of(PAIR).clamp(PAIR, UNIT_TILES_MAX)
}

/// Some rows of the input.
#[derive(Clone, Copy)]
struct Tokens<'a> {
    input: &'a Activations,
    first: usize,
    count: usize,
    /// From the first of these rows on, and readable a little beyond the last.
    factors: &'a [f32],
}

fn integer_tiles(part: &PackedMatrix, tiles: Range<usize>) -> IntegerTiles {
    let (codes, scales) = (part.tile_codes(tiles.start), part.tile_scales(tiles.start));
    assert!(tiles.end <= part.tiles());
    IntegerTiles {
        codes: codes.as_ptr(),
        scales: scales.as_ptr(),
        code_bytes: codes.len(),
        scale_bytes: scales.len(),
        count: tiles.len(),
        cols: part.cols(),
    }
}

#[allow(clippy::too_many_arguments)]
fn wide_products(
    worker: &Worker<'_>,
    wide: Wide,
    part: &PackedMatrix,
    tiles: Range<usize>,
    values: &[i8],
    tokens: &Tokens<'_>,
    out: &mut [f32],
    stride: usize,
) {
    assert!(values.len() >= tiles.len() * wide.column_bytes * part.cols() && tokens.factors.len() >= wide.tokens);
    assert!(out.len() >= (wide.tokens - 1) * stride + tiles.len() * TILE_ROWS);
    let to = TileSums { start: out.as_mut_ptr(), stride };
    let x = tokens.input.arranged(worker, wide, tokens.first).as_ptr();
    // SAFETY: the tiles are there, packed and unpacked; the tokens are arranged; the results fit, as asserted.
    unsafe {
        (wide.multiply)(part.kind(), integer_tiles(part, tiles), values.as_ptr(), x, tokens.factors.as_ptr(), to)
    };
}

/// The products of rows of prompts, which `tokens` counts from the first of them on.
fn bf16_products(
    worker: &Worker<'_>,
    bf16: Bf16,
    cols: usize,
    values: &[u16],
    tokens: &Tokens<'_>,
    out: &mut [f32],
    stride: usize,
) {
    let tiles = UnpackedTiles { values: values.as_ptr(), count: values.len() / TILE_ROWS / cols, cols };
    assert!(tokens.count <= bf16.product.rows && tokens.factors.len() >= tokens.count);
    assert!(out.len() >= (bf16.product.rows - 1) * stride + tiles.count * TILE_ROWS);
    let rows = tokens.input.bf16_rows(worker, tokens.first, bf16.product.rows).as_ptr();
    let rows = RowBlocks { values: rows, count: tokens.count };
    let to = TileSums { start: out.as_mut_ptr(), stride };
    // SAFETY: tiles and rows are there, and the results fit, as asserted.
    unsafe { (bf16.product.multiply)(tiles, rows, Sums { to, adds: false, factors: tokens.factors.as_ptr() }) };
}

fn narrow_products(
    worker: &Worker<'_>,
    part: &PackedMatrix,
    tiles: Range<usize>,
    tokens: &Tokens<'_>,
    out: &mut [f32],
    stride: usize,
) {
    let table = worker.kernels();
    assert!(out.len() >= (tokens.count - 1) * stride + tiles.len() * TILE_ROWS);
    for done in (0..tokens.count).step_by(table.tokens) {
        let (first, count) = (tokens.first + done, table.tokens.min(tokens.count - done));
        let factors = &tokens.factors[done..];
        let start = out[done * stride..].as_mut_ptr();
        let to = |tile: usize| TileSums { start: start.wrapping_add(tile * TILE_ROWS), stride };
        // SAFETY: the tiles have `cols` columns, as have `count` tokens of the input; the results fit, as asserted.
        unsafe {
            if !part.is_float() {
                let x = tokens.input.quant_columns(worker, first, count, factors);
                (table.integer_tiles)(part.kind(), integer_tiles(part, tiles.clone()), x, count, to(0));
                continue;
            }
            let x = tokens.input.float_columns(worker, first, count, factors);
            for (i, tile) in tiles.clone().enumerate() {
                (table.float_tile)(part.kind(), part.tile_codes(tile).as_ptr(), part.cols(), x, count, to(i));
            }
        }
    }
}
