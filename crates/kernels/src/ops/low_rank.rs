//! Adapters in a batch: what low-rank weights add to the products of the rows that have some.
//!
//! Of `y = W x + scale B (A x)`, `A x` is computed in a phase of its own before the matmul, and `B (A x)` is added to products
//! while they are at hand. Rows of one adapter share the reading of its weights. What a row gets does not depend on the others.

use std::ops::Range;
use std::sync::Arc;

use half::f16;
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use super::{Activations, Linear};
use crate::aligned::AlignedVec;
use crate::kernels::low_rank::{RANKS, ROWS};
use crate::lanes::LANES;
use crate::threads::{Access, Pool, Shared, Worker};

/// Low-rank weights of one adapter for a [`Linear`], made of pieces that follow each other in rank.
#[derive(Debug)]
pub struct LowRank {
    cols: usize,
    /// Of a row of `a`, in numbers: `cols` and zeros up to a whole vector.
    stride: usize,
    /// `[ranks, stride]`, ranks up to a whole group.
    a: AlignedVec<u16>,
    /// What each rank's product is multiplied by. `[ranks]`
    scales: Vec<f32>,
    /// By the parts of the `Linear`.
    parts: Vec<Option<Part>>,
}

/// What is added to the products of one part.
#[derive(Debug)]
struct Part {
    first_rank: usize,
    ranks: usize,
    /// `[tiles, ranks, 16]`
    b: AlignedVec<u16>,
}

/// Some neighbouring ranks of a [`LowRank`]: two thin matrices whose product is added to parts of a `Linear`.
#[derive(Clone, Debug)]
pub struct LowRankPiece {
    /// `[rank, cols]`
    pub a: Vec<f32>,
    pub rank: usize,
    pub scale: f32,
    /// Parts that it is added to, by number, and what they take: `[rows of the part, rank]`.
    pub outputs: Vec<(usize, Vec<f32>)>,
}

impl LowRank {
    /// Stacks pieces for weights whose parts have these rows. Pieces of one part are neighbours. Panics where lengths do not match.
    pub fn new(cols: usize, part_rows: &[usize], pieces: &[LowRankPiece]) -> Self {
        let ranks: usize = pieces.iter().map(|piece| piece.rank).sum();
        let stride = cols.next_multiple_of(LANES);
        let mut low_rank = Self {
            cols,
            stride,
            a: AlignedVec::zeroed(ranks.next_multiple_of(RANKS) * stride),
            scales: Vec::with_capacity(ranks),
            parts: part_rows.iter().map(|_| None).collect(),
        };
        for (part, rows) in part_rows.iter().enumerate() {
            let is_of_part = |piece: &&LowRankPiece| piece.outputs.iter().any(|(number, _)| *number == part);
            let before = pieces.iter().take_while(|piece| !is_of_part(piece)).map(|piece| piece.rank).sum();
            let own: usize = pieces.iter().filter(is_of_part).map(|piece| piece.rank).sum();
            if own > 0 {
                let b = AlignedVec::zeroed(rows.div_ceil(LANES) * own * LANES);
                low_rank.parts[part] = Some(Part { first_rank: before, ranks: own, b });
            }
        }
        pieces.iter().for_each(|piece| low_rank.push(piece));
        low_rank
    }

    /// Adds the next piece. Each rank is stored relative to its largest numbers, so that half floats have range enough.
    fn push(&mut self, piece: &LowRankPiece) {
        assert_eq!(piece.a.len(), piece.rank * self.cols);
        let first = self.scales.len();
        let b_scales = scales_of_columns(piece);
        let mut row = vec![0.0; self.cols];
        for (rank, (from, b_scale)) in piece.a.chunks_exact(self.cols).zip(&b_scales).enumerate() {
            let a_scale = scale_of(from.iter().fold(0.0, |largest: f32, number| largest.max(number.abs())));
            // Exact, as scales are powers of two.
            let inverse = 1.0 / a_scale;
            row.iter_mut().zip(from).for_each(|(to, number)| *to = number * inverse);
            halves(&mut self.a[(first + rank) * self.stride..][..self.cols], &row);
            self.scales.push(piece.scale * a_scale * b_scale);
        }
        for (part, b) in &piece.outputs {
            let part = self.parts[*part].as_mut().expect("made for its pieces");
            part.put(first - part.first_rank, b, &b_scales);
        }
    }

    /// Returns the bytes of weights for parts with these rows and ranks, of so many ranks altogether.
    pub fn bytes_for(cols: usize, ranks: usize, parts: &[(usize, usize)]) -> usize {
        let a = ranks.next_multiple_of(RANKS) * cols.next_multiple_of(LANES);
        let b: usize = parts.iter().map(|(rows, ranks)| rows.next_multiple_of(LANES) * ranks).sum();
        (a + b) * size_of::<u16>() + ranks * size_of::<f32>()
    }

    /// Memory held by the weights.
    pub fn bytes(&self) -> usize {
        let b: usize = self.parts.iter().flatten().map(|part| part.b.len()).sum();
        (self.a.len() + b) * size_of::<u16>() + size_of_val(&self.scales[..])
    }

    fn ranks(&self) -> usize {
        self.scales.len()
    }
}

impl Part {
    /// Stores what it takes of a piece whose ranks begin at `own` among its own: `[rows, rank]`, to be divided by `scales`.
    fn put(&mut self, own: usize, b: &[f32], scales: &[f32]) {
        let rank = scales.len();
        assert!(own + rank <= self.ranks && b.len().div_ceil(rank * LANES) * self.ranks * LANES == self.b.len());
        let inverses: Vec<f32> = scales.iter().map(|scale| 1.0 / scale).collect();
        let mut tile = vec![0.0; rank * LANES];
        for (number, rows) in b.chunks(rank * LANES).enumerate() {
            // The last tile may have fewer rows.
            tile.fill(0.0);
            for (lane, row) in rows.chunks_exact(rank).enumerate() {
                let lanes = tile.iter_mut().skip(lane).step_by(LANES);
                lanes.zip(row).zip(&inverses).for_each(|((to, number), inverse)| *to = number * inverse);
            }
            halves(&mut self.b[(number * self.ranks + own) * LANES..][..rank * LANES], &tile);
        }
    }
}

/// Returns what each rank of a piece's outputs is divided by.
fn scales_of_columns(piece: &LowRankPiece) -> Vec<f32> {
    let mut largest = vec![0f32; piece.rank];
    for row in piece.outputs.iter().flat_map(|(_, b)| b.chunks_exact(piece.rank)) {
        largest.iter_mut().zip(row).for_each(|(largest, number)| *largest = largest.max(number.abs()));
    }
    largest.into_iter().map(scale_of).collect()
}

/// The power of two that is next to the largest of some numbers.
fn scale_of(largest: f32) -> f32 {
    // Beyond these, powers or their inverses are no normal numbers.
    if largest > 0.0 { largest.clamp(1e-30, 1e30).log2().floor().exp2() } else { 1.0 }
}

fn halves(to: &mut [u16], from: &[f32]) {
    to.reinterpret_cast_mut::<f16>().convert_from_f32_slice(from);
}

/// All low-rank weights of an adapter, by the numbers of the `Linear`s that they belong to.
#[derive(Debug, Default)]
pub struct Adapter {
    low_rank: Vec<Option<LowRank>>,
}

impl Adapter {
    pub fn new(low_rank: Vec<Option<LowRank>>) -> Self {
        Self { low_rank }
    }

    /// Memory held by the weights.
    pub fn bytes(&self) -> usize {
        self.low_rank.iter().flatten().map(LowRank::bytes).sum()
    }

    fn of(&self, number: usize) -> Option<&LowRank> {
        self.low_rank.get(number)?.as_ref()
    }

    /// Returns the most ranks that it has for one `Linear`.
    pub fn ranks_max(&self) -> usize {
        self.low_rank.iter().flatten().map(LowRank::ranks).max().unwrap_or(0)
    }
}

/// The rows of a batch that have adapters.
#[derive(Debug)]
pub struct AdapterRows {
    groups: Vec<AdapterGroup>,
    /// Products with the first matrices. `[rows of the batch, ranks_max]`
    products: Shared<f32>,
    ranks_max: usize,
}

/// Rows of one adapter, in their order.
#[derive(Debug)]
struct AdapterGroup {
    adapter: Arc<Adapter>,
    rows: Vec<usize>,
}

impl AdapterRows {
    /// Room for batches without adapters.
    pub fn new(pool: &Pool) -> Self {
        Self { groups: Vec::new(), products: Shared::zeroed(pool, 0), ranks_max: 0 }
    }

    /// Returns the bytes of a rank in batches of up to `rows_max` rows.
    pub fn bytes_of_rank(rows_max: usize) -> usize {
        rows_max * size_of::<f32>()
    }

    /// Replaces the groups by those of the next batch, which has up to `rows_max` rows. No row is in two of them.
    pub fn set(&mut self, pool: &Pool, rows_max: usize, groups: impl IntoIterator<Item = (Arc<Adapter>, Vec<usize>)>) {
        self.groups = groups.into_iter().map(|(adapter, rows)| AdapterGroup { adapter, rows }).collect();
        self.groups.iter_mut().for_each(|group| group.rows.sort_unstable());
        assert!(self.groups.iter().flat_map(|group| &group.rows).all(|row| *row < rows_max));
        self.ranks_max = self.groups.iter().map(|group| group.adapter.ranks_max()).max().unwrap_or(0);
        let len = rows_max * self.ranks_max;
        if len > self.products.len() {
            self.products = Shared::zeroed(pool, len);
        }
    }

    fn groups_of(&self, number: usize) -> impl Iterator<Item = (&LowRank, &[usize])> {
        self.groups.iter().filter_map(move |group| Some((group.adapter.of(number)?, &group.rows[..])))
    }
}

/// Weights with what adapters add to them, for some rows.
#[derive(Clone, Copy, Debug)]
pub struct Adapted<'a> {
    pub(super) weights: &'a Linear,
    pub(super) low_rank: Option<LowRankOf<'a>>,
}

impl<'a> Adapted<'a> {
    /// `number` is that of these weights in adapters. Without any rows there is nothing to add.
    pub fn new(weights: &'a Linear, rows: Option<&'a AdapterRows>, number: usize) -> Self {
        let low_rank = rows.map(|rows| LowRankOf { rows, number });
        Self { weights, low_rank: low_rank.filter(|low_rank| low_rank.rows.groups_of(number).next().is_some()) }
    }
}

impl<'a> From<&'a Linear> for Adapted<'a> {
    fn from(weights: &'a Linear) -> Self {
        Self { weights, low_rank: None }
    }
}

/// What the adapters of a batch have for one `Linear`; at least one has something.
#[derive(Clone, Copy, Debug)]
pub(super) struct LowRankOf<'a> {
    rows: &'a AdapterRows,
    number: usize,
}

impl LowRankOf<'_> {
    /// Multiplies the rows of `input` with the first matrices, each worker its share; complete after the next barrier.
    pub(super) fn project(&self, worker: &Worker<'_>, input: &Activations) {
        let mut item = 0;
        for (low_rank, rows) in self.rows.groups_of(self.number) {
            assert_eq!(low_rank.cols, input.cols());
            let groups = low_rank.ranks().div_ceil(RANKS);
            // Few rows are shared out by ranks too.
            let together = if rows.len() > 2 * worker.count() * ROWS { groups } else { 1 };
            for rows in rows.chunks(ROWS) {
                for first in (0..groups).step_by(together) {
                    if item % worker.count() == worker.index() {
                        self.project_some(worker, low_rank, input, rows, first..first + together);
                    }
                    item += 1;
                }
            }
        }
    }

    /// Does so for a few rows and some groups of ranks, which are this worker's.
    fn project_some(
        &self,
        worker: &Worker<'_>,
        low_rank: &LowRank,
        input: &Activations,
        rows: &[usize],
        groups: Range<usize>,
    ) {
        let (mut x, mut factors) = ([std::ptr::null(); ROWS], [0.0; ROWS]);
        for ((x, factor), row) in x.iter_mut().zip(&mut factors).zip(rows) {
            (*x, *factor) = (input.float_row(worker, *row).as_ptr(), input.factor(worker, *row));
        }
        let start = self.rows.products.write(worker, Access::WriteRanks);
        for first in groups.map(|group| group * RANKS) {
            let mut products = [[0.0; RANKS]; ROWS];
            let a = low_rank.a[first * low_rank.stride..][..RANKS * low_rank.stride].as_ptr();
            // SAFETY: rows have `cols` numbers each, and `a` has `RANKS` rows, which are padded.
            unsafe {
                (worker.kernels().project)(a, low_rank.stride, low_rank.cols, &x[..rows.len()], &mut products);
            }
            let ranks = first..low_rank.ranks().min(first + RANKS);
            for ((row, products), factor) in rows.iter().zip(products).zip(factors) {
                let at = row * self.rows.ranks_max + first;
                assert!(at + ranks.len() <= self.rows.products.len());
                for ((i, scale), product) in low_rank.scales[ranks.clone()].iter().enumerate().zip(products) {
                    // SAFETY: in bounds; these ranks of the row are this worker's.
                    unsafe { *start.add(at + i) = product * factor * scale };
                }
            }
        }
    }

    /// Adds to products of neighbouring rows of a batch, from `first_row` on and `stride` apart, with `tiles` of part `part`.
    pub(super) fn expand(
        &self,
        worker: &Worker<'_>,
        part: usize,
        tiles: Range<usize>,
        (first_row, row_count): (usize, usize),
        sums: &mut [f32],
        stride: usize,
    ) {
        assert!(row_count == 0 || (row_count - 1) * stride + tiles.len() * LANES <= sums.len());
        let (products, start) = (self.rows.products.read(worker), sums.as_mut_ptr());
        for (low_rank, rows) in self.rows.groups_of(self.number) {
            let Some(part) = &low_rank.parts[part] else { continue };
            let b = part.b[tiles.start * part.ranks * LANES..tiles.end * part.ranks * LANES].as_ptr();
            for rows in among(rows, first_row..first_row + row_count).chunks(ROWS) {
                let (mut h, mut to) = ([std::ptr::null(); ROWS], [std::ptr::null_mut(); ROWS]);
                for ((h, to), row) in h.iter_mut().zip(&mut to).zip(rows) {
                    let at = row * self.rows.ranks_max + part.first_rank;
                    *h = products[at..at + part.ranks].as_ptr();
                    *to = start.wrapping_add((row - first_row) * stride);
                }
                // SAFETY: the tiles are there, as are the products; the rows are distinct and within `sums`, as asserted.
                unsafe { (worker.kernels().expand)(b, part.ranks, tiles.len(), &h[..rows.len()], &to[..rows.len()]) };
            }
        }
    }
}

/// Those of some distinct rows in their order that are in `range`.
fn among(rows: &[usize], range: Range<usize>) -> &[usize] {
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else { return rows };
    let place = |row: usize| match last - first < rows.len() {
        // Neighbours, as those of a prompt are.
        true => row.saturating_sub(*first).min(rows.len()),
        false => rows.partition_point(|other| *other < row),
    };
    &rows[place(range.start)..place(range.end)]
}

#[cfg(test)]
mod tests {
    use super::among;

    #[test]
    fn rows_in_a_range_are_found_among_neighbours_and_others() {
        for rows in [vec![], vec![7], vec![3, 4, 5, 6], vec![0, 2, 3, 9]] {
            for (start, end) in (0..12).flat_map(|start| (start..12).map(move |end| (start, end))) {
                let expected: Vec<usize> = rows.iter().copied().filter(|row| (start..end).contains(row)).collect();
                assert_eq!(among(&rows, start..end), expected, "{rows:?} in {start}..{end}");
            }
        }
    }
}
