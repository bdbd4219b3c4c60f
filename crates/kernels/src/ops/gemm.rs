//! Products of bf16 matrices with sums in floats, for training: forward, gradients of inputs, gradients of weights.
//!
//! The left factor is put into blocks of rows once, by all workers. Then each takes units of the result, some columns of some
//! rows, and puts these columns of the right factor into tiles of its own. A sum runs over all inner columns in their order, so
//! how the result is cut changes no bit of it.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::bf16_matrix::Factor;
use super::matrix::Span;
use super::{Matrix, own_rows};
use crate::kernels::bf16::{BLOCK_ROWS, Bf16Product, RowBlocks, Sums, UnpackedTiles};
use crate::kernels::matmul::TileSums;
use crate::threads::{Access, Pool, Scratch, Shared, Worker};
use crate::weights::{GROUP, TILE_ROWS};

/// Bytes of a unit's tiles: half of a worker's L2 cache.
const UNIT_BYTES_MAX: usize = 1 << 20;
const UNIT_TILES_MAX: usize = 64;
/// Units for each worker: enough that one that is late holds up the others by little.
const UNITS_EACH: usize = 4;

/// Room for the left factor of products.
#[derive(Debug)]
pub struct Gemm {
    /// `[blocks of 16 rows, inner / 32, 16, 32]`
    blocks: Shared<u16>,
}

/// What is multiplied, and where the result goes.
#[derive(Clone, Copy, Debug)]
pub struct Product<'a> {
    pub left: Factor<'a>,
    pub right: Factor<'a>,
    pub out: &'a Matrix,
    /// Whether the product is added to what is there.
    pub adds: bool,
    /// Once set, what is not computed yet is left as it is: nobody wants the result any more.
    pub stop: Option<&'a AtomicBool>,
}

/// How a product is cut into units.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// Inner columns, a multiple of 32.
    inner: usize,
    /// Tiles of 16 columns, and rows.
    tiles: usize,
    rows: usize,
    unit_tiles: usize,
    unit_rows: usize,
}

impl Gemm {
    /// Makes room for left factors of up to `rows` rows and `inner` columns.
    pub fn new(pool: &Pool, rows: usize, inner: usize) -> Self {
        let rows = rows.next_multiple_of(pool.kernels().bf16_product().rows);
        Self { blocks: Shared::zeroed(pool, rows * inner.next_multiple_of(GROUP)) }
    }

    /// Multiplies two matrices on all threads of a region; complete after the next barrier. Panics if their sizes do not go
    /// together, or the left factor is larger than there is room for.
    pub fn run(&self, worker: &mut Worker<'_>, product: &Product<'_>) {
        let Product { left, right, out, .. } = product;
        assert_eq!(left.cols(), right.rows(), "columns of the left factor are rows of the right");
        assert!(left.rows() <= out.rows && right.cols() == out.cols, "the result has another size");
        let by = worker.kernels().bf16_product();
        let cut = Cut::new(product, by, worker.count());
        self.put_blocks(worker, left, cut.inner);
        worker.barrier();
        let worker = &*worker;
        let mut scratch = worker.scratch();
        let is_wanted = || !product.stop.is_some_and(|stop| stop.load(Ordering::Relaxed));
        for unit in worker.units().take_while(|unit| *unit < cut.units() && is_wanted()) {
            let (tiles, rows) = cut.unit(unit);
            self.multiply(worker, product, by, cut.inner, tiles, rows, &mut scratch);
        }
    }

    /// Puts the left factor into blocks, each worker its share.
    fn put_blocks(&self, worker: &Worker<'_>, left: &Factor<'_>, inner: usize) {
        let (blocks, len) = (left.rows().div_ceil(BLOCK_ROWS), inner * BLOCK_ROWS);
        let read = left.rows().next_multiple_of(worker.kernels().bf16_product().rows) * inner;
        assert!(read <= self.blocks.len(), "a left factor beyond the room for it");
        for block in own_rows(worker, blocks) {
            let start = self.blocks.write(worker, Access::WriteRows);
            // SAFETY: in bounds, as asserted; the block is this worker's.
            let to = unsafe { std::slice::from_raw_parts_mut(start.add(block * len), len) };
            left.put_block(worker, block * BLOCK_ROWS, to);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn multiply(
        &self,
        worker: &Worker<'_>,
        product: &Product<'_>,
        by: Bf16Product,
        inner: usize,
        tiles: Range<usize>,
        rows: Range<usize>,
        scratch: &mut Scratch,
    ) {
        let Scratch { unpacked_bf16, sums, .. } = scratch;
        let (tile_len, stride) = (inner * TILE_ROWS, (tiles.len() + 1) * TILE_ROWS);
        unpacked_bf16.resize(tiles.len() * tile_len);
        for (i, tile) in tiles.clone().enumerate() {
            product.right.put_tile(worker, tile * TILE_ROWS, &mut unpacked_bf16[i * tile_len..][..tile_len]);
        }
        sums.resize(by.rows * stride);
        let cols = tiles.start * TILE_ROWS..product.out.cols.min(tiles.end * TILE_ROWS);
        let blocks = self.blocks.read(worker);
        for first in rows.clone().step_by(by.rows) {
            let count = by.rows.min(rows.end - first);
            let values = blocks[first * inner..][..by.rows * inner].as_ptr();
            let operands = UnpackedTiles { values: unpacked_bf16.as_ptr(), count: tiles.len(), cols: inner };
            let to = Sums { to: TileSums { start: sums.as_mut_ptr(), stride }, adds: false, factors: std::ptr::null() };
            // SAFETY: whole blocks of rows and whole tiles were put there, and all results fit.
            unsafe { (by.multiply)(operands, RowBlocks { values, count }, to) };
            for (row, sums) in (first..first + count).zip(sums.chunks_exact(stride)) {
                let span = Span { access: Access::WriteTiles, row, cols: cols.clone() };
                // SAFETY: every unit is of one worker.
                let out = unsafe { product.out.own_span(worker, &span) };
                if product.adds {
                    out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum);
                } else {
                    out.copy_from_slice(&sums[..out.len()]);
                }
            }
        }
    }
}

impl Cut {
    fn new(product: &Product<'_>, by: Bf16Product, workers: usize) -> Self {
        let inner = product.left.cols().next_multiple_of(GROUP);
        let (rows, tiles) = (product.left.rows(), product.right.cols().div_ceil(TILE_ROWS));
        let wanted = workers * UNITS_EACH;
        let fit = UNIT_BYTES_MAX / (inner * TILE_ROWS * size_of::<u16>()).max(1);
        // Pairs of tiles keep the tile unit busy.
        let unit_tiles = fit.min(tiles.div_ceil(wanted)).next_multiple_of(2).clamp(2, UNIT_TILES_MAX);
        // Where there are few columns, rows are cut too; each unit puts its tiles, so that costs a little.
        let row_parts = wanted.div_ceil(tiles.div_ceil(unit_tiles).max(1));
        let unit_rows = rows.div_ceil(row_parts).next_multiple_of(by.rows).max(by.rows);
        Self { inner, tiles, rows, unit_tiles, unit_rows }
    }

    fn units(&self) -> usize {
        self.tiles.div_ceil(self.unit_tiles) * self.rows.div_ceil(self.unit_rows)
    }

    /// Tiles and rows of a unit.
    fn unit(&self, number: usize) -> (Range<usize>, Range<usize>) {
        let parts = self.rows.div_ceil(self.unit_rows);
        let (tile, row) = (number / parts * self.unit_tiles, number % parts * self.unit_rows);
        (tile..self.tiles.min(tile + self.unit_tiles), row..self.rows.min(row + self.unit_rows))
    }
}
