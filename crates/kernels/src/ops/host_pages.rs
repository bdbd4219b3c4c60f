//! KV pages in this machine's memory: one range of bytes, read and written by the threads of a pool.

use std::borrow::Cow;
use std::ops::Range;

use ruvllm_runner::{
    Conversion, HUGE_PAGE, KvHeads, KvShape, PageFormat, PageLayers, PageLayout, PageLocation, Rotation,
};

use super::HEAD_DIM_MAX;
use crate::Pool;
use crate::kernels::attention::Cell;
use crate::threads::{Access, Shared};

/// The bytes of pages. Memory is taken from the system when a page is first written. Everything that changes it, but for
/// appending, takes place between parallel regions.
#[derive(Debug)]
pub struct HostPages {
    pub(super) data: Shared<u8>,
    /// Where offset 0 is in `data`.
    origin: usize,
    bytes: usize,
    pub(super) shape: KvShape,
    pub(super) rotation: Rotation,
    layouts: [PageLayout; PageFormat::COUNT],
}

impl HostPages {
    /// Reserves `bytes` bytes for the threads of `pool`, in which everything is stored in the given basis. Panics if the
    /// head dimension is not a multiple of 16 or above `HEAD_DIM_MAX`.
    pub fn new(pool: &Pool, shape: KvShape, rotation: Rotation, bytes: usize) -> Self {
        for KvHeads { dim, .. } in [shape.heads, shape.windowed_heads] {
            assert!(dim <= HEAD_DIM_MAX, "head dimension {dim} is above {HEAD_DIM_MAX}");
            assert!(dim.is_multiple_of(16), "head dimension {dim} is not a multiple of 16");
        }
        // Slabs begin at huge pages, where there are whole ones. What lies before them is never touched.
        let spare = if bytes < HUGE_PAGE { 0 } else { HUGE_PAGE };
        let mut data = Shared::<u8>::zeroed(pool, bytes + spare);
        let origin = if spare == 0 { 0 } else { data.as_mut_slice().as_ptr().align_offset(HUGE_PAGE) };
        Self { data, origin, bytes, shape, rotation, layouts: shape.layouts() }
    }

    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Returns its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Changes the basis. What is stored in another one is lost.
    pub fn set_rotation(&mut self, rotation: Rotation) {
        self.rotation = rotation;
    }

    pub fn read(&mut self, range: Range<usize>) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.data.as_mut_slice()[self.origin..][range])
    }

    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.data.as_mut_slice()[self.origin..][offset..][..bytes.len()].copy_from_slice(bytes);
    }

    pub fn copy(&mut self, from: Range<usize>, to: usize) {
        self.data.as_mut_slice()[self.origin..].copy_within(from, to);
    }

    pub fn discard(&mut self, range: Range<usize>) {
        self.data.release_to_os(self.origin + range.start..self.origin + range.end);
    }

    /// Rewrites pages in other formats, each layer of a page as one unit of work. Panics if a page cannot become what it
    /// should, is not within the memory, or overlaps another.
    pub fn convert(&mut self, pool: &mut Pool, conversions: &[Conversion]) {
        self.check(conversions);
        let layers = self.shape.layers;
        let pages = &*self;
        pool.run(|worker| {
            let start = pages.data.write(worker, Access::WritePages).cast_const();
            for unit in worker.units().take_while(|unit| *unit < conversions.len() * layers) {
                let (Conversion { from, to }, layer) = (conversions[unit / layers], unit % layers);
                // Those with a window come last, and are not in pages that have left it.
                if to.format.layers == PageLayers::Global && layer >= layers - pages.shape.windowed_layers {
                    continue;
                }
                let KvHeads { count, dim } = pages.shape.heads_of(layer);
                for head in 0..count {
                    let mut cells = pages.cells(start, layer, head);
                    let (old, new) = (cells.at(from), cells.at(to));
                    // SAFETY: `check` has found both within the memory, apart from all others, and convertible; each
                    // layer of a page is one worker's unit.
                    unsafe { (worker.kernels().convert)(old, new, dim) };
                }
            }
        });
    }

    fn check(&self, conversions: &[Conversion]) {
        let range = |page: PageLocation| page.offset..page.offset + self.layouts[page.format.index()].page_bytes;
        let mut ranges = Vec::with_capacity(2 * conversions.len());
        for Conversion { from, to } in conversions {
            assert!(from.format != to.format && from.format.can_become(to.format), "{from:?} cannot become {to:?}");
            ranges.extend([range(*from), range(*to)]);
        }
        ranges.sort_unstable_by_key(|range| range.start);
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "pages overlap");
        assert!(ranges.last().is_none_or(|last| last.end <= self.bytes), "a page is not within the memory");
    }

    /// The cells of a head in a layer. `start` is where `data` begins.
    pub(super) fn cells(&self, start: *const u8, layer: usize, head: usize) -> Cells<'_> {
        assert!(layer < self.shape.layers && head < self.shape.heads_of(layer).count);
        let (start, offsets) = (start.wrapping_add(self.origin), self.layouts[0].cell(layer, head));
        Cells { layouts: &self.layouts, start, layer, head, format: PageFormat::F16, offsets }
    }
}

/// Finds the cells of one head of one layer.
pub(super) struct Cells<'a> {
    layouts: &'a [PageLayout; PageFormat::COUNT],
    start: *const u8,
    layer: usize,
    head: usize,
    /// The last one's, and where its lines and scales are: mostly those of the next one too.
    format: PageFormat,
    offsets: (usize, usize),
}

impl Cells<'_> {
    /// Finds the cell in a page, of which somebody has made sure that it is within the memory.
    pub(super) fn at(&mut self, page: PageLocation) -> Cell {
        let PageLocation { offset, format } = page;
        if format != self.format {
            (self.format, self.offsets) = (format, self.layouts[format.index()].cell(self.layer, self.head));
        }
        let page = self.start.wrapping_add(offset);
        Cell { format, lines: page.wrapping_add(self.offsets.0), scales: page.wrapping_add(self.offsets.1) }
    }
}
