//! The memory of KV pages: one range of bytes, pages of several formats in it.

use super::{PageId, Rotation};
use crate::Pool;
use crate::kernels::append;
use crate::kernels::attention::Cell;
use crate::pages::{self, HUGE_PAGE, KeyFormat, PageBytes, PageFormat, PageLayout, Slabs};
use crate::threads::Shared;

/// Tokens per KV page.
pub const PAGE_TOKENS: usize = pages::PAGE_TOKENS;

/// The head dimension at most; fixes the size of a thread's buffers.
pub const HEAD_DIM_MAX: usize = append::HEAD_DIM_MAX;

/// Dimensions of the keys and values of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    pub layers: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

impl KvShape {
    fn layouts(&self) -> [PageLayout; PageFormat::COUNT] {
        let mut formats = PageFormat::all();
        let cells = self.layers * self.kv_heads;
        std::array::from_fn(|_| PageLayout::new(formats.next().expect("as many"), cells, self.head_dim))
    }

    /// Bytes of a page of a format.
    pub fn page_bytes(&self, format: PageFormat) -> usize {
        self.page_sizes()[format.index()]
    }

    fn page_sizes(&self) -> PageBytes {
        self.layouts().map(|layout| layout.page_bytes)
    }
}

/// Pages of keys and values. Memory is taken from the system when a page is first written, and never more than the budget.
///
/// A page's id stays the same while the page moves: who shares it sees its new format and place. Everything that changes
/// the memory, but for appending, takes place between parallel regions.
#[derive(Debug)]
pub struct KvMemory {
    pub(super) data: Shared<u8>,
    /// Where the slabs begin in `data`.
    origin: usize,
    pub(super) shape: KvShape,
    pub(super) rotation: Rotation,
    layouts: [PageLayout; PageFormat::COUNT],
    pub(super) slabs: Slabs,
    /// By page id; none for ids that are free.
    places: Vec<Option<Place>>,
    free_ids: Vec<PageId>,
    bytes_in_use: usize,
}

/// Where a page is, and how it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// In the slabs.
    pub offset: usize,
    pub format: PageFormat,
}

impl KvMemory {
    /// A memory of `budget_bytes` for the threads of `pool`, in which everything is stored in the given rotation.
    /// Panics if the head dimension is not a multiple of 16 or above `HEAD_DIM_MAX`.
    pub fn new(pool: &Pool, shape: KvShape, rotation: Rotation, budget_bytes: usize) -> Self {
        assert!(shape.head_dim <= HEAD_DIM_MAX, "head dimension {} is above {HEAD_DIM_MAX}", shape.head_dim);
        assert!(shape.head_dim.is_multiple_of(16), "head dimension {} is not a multiple of 16", shape.head_dim);
        // Slabs begin at huge pages, where there are whole ones. What lies before them is never touched.
        let spare = if budget_bytes < HUGE_PAGE { 0 } else { HUGE_PAGE };
        let mut data = Shared::<u8>::zeroed(pool, budget_bytes + spare);
        let origin = if spare == 0 { 0 } else { data.as_mut_slice().as_ptr().align_offset(HUGE_PAGE) };
        Self {
            data,
            origin,
            shape,
            rotation,
            layouts: shape.layouts(),
            slabs: Slabs::new(budget_bytes, shape.page_sizes()),
            places: Vec::new(),
            free_ids: Vec::new(),
            bytes_in_use: 0,
        }
    }

    /// The smallest budget in which `pages` pages of one format fit.
    pub fn budget_for(shape: KvShape, format: PageFormat, pages: usize) -> usize {
        Slabs::bytes_for(pages, format, &shape.page_sizes())
    }

    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Changes the basis. Panics if any page is in use.
    pub fn set_rotation(&mut self, rotation: Rotation) {
        assert_eq!(self.pages_in_use(), 0, "pages in use are stored in another basis");
        self.rotation = rotation;
    }

    /// Bytes at most, at the moment.
    pub fn bytes_budget(&self) -> usize {
        self.slabs.limit()
    }

    /// Changes the budget, up to what it was at first. Pages in use stay, beyond it if need be: see `trim`.
    pub fn set_budget(&mut self, bytes: usize) {
        self.slabs.set_limit(bytes);
    }

    /// Moves scattered pages together, as far as more slabs have pages than the budget allows, and gives memory beyond it
    /// back to the system. Tells whether the budget is kept now.
    pub fn trim(&mut self) -> bool {
        while self.bytes_held() > self.bytes_budget() && self.empty_scattered_slab(None) {}
        while let Some(slab) = self.slabs.take_surplus() {
            self.data.give_back(self.origin + slab.start..self.origin + slab.end);
        }
        self.bytes_held() <= self.bytes_budget()
    }

    /// Pages of a format that the budget has room for, while there are no others.
    pub fn pages_max(&self, format: PageFormat) -> usize {
        self.slabs.pages_within_limit(format)
    }

    /// Bytes of the pages in use.
    pub fn bytes_in_use(&self) -> usize {
        self.bytes_in_use
    }

    /// Bytes that pages of other formats cannot have at the moment: those of all slabs with pages in use.
    pub fn bytes_held(&self) -> usize {
        self.slabs.bytes_held()
    }

    pub fn pages_in_use(&self) -> usize {
        self.places.len() - self.free_ids.len()
    }

    /// Pages of one format in use.
    pub fn pages_of(&self, format: PageFormat) -> usize {
        self.slabs.used(format)
    }

    /// Whether any page in use has keys that are not floats.
    pub(super) fn has_integer_keys(&self) -> bool {
        let floats = PageFormat::all().filter(|format| format.keys == KeyFormat::F16);
        floats.map(|format| self.slabs.used(format)).sum::<usize>() < self.pages_in_use()
    }

    pub fn page_bytes(&self, format: PageFormat) -> usize {
        self.slabs.page_bytes(format)
    }

    /// Whether `count` more pages of a format would be given out.
    pub fn could_allocate(&self, format: PageFormat, count: usize) -> bool {
        self.slabs.could_allocate(format, count)
    }

    /// Takes a page into use; none if the budget has no room for it. It may hold anything.
    pub fn allocate(&mut self, format: PageFormat) -> Option<PageId> {
        let offset = match self.slabs.allocate(format) {
            Some(offset) => offset,
            None if self.empty_scattered_slab(Some(format)) => self.slabs.allocate(format)?,
            None => return None,
        };
        self.bytes_in_use += self.page_bytes(format);
        let place = Some(Place { offset, format });
        if let Some(id) = self.free_ids.pop() {
            self.places[id.0 as usize] = place;
            return Some(id);
        }
        let id = PageId(u32::try_from(self.places.len()).expect("fewer pages than numbers for them"));
        self.places.push(place);
        Some(id)
    }

    /// Takes a page out of use. Panics if it is not in use, as do all functions that take an id.
    pub fn free(&mut self, id: PageId) {
        self.leave(self.place(id));
        self.places[id.0 as usize] = None;
        self.free_ids.push(id);
    }

    pub fn format(&self, id: PageId) -> PageFormat {
        self.place(id).format
    }

    /// The whole page, to be kept elsewhere.
    pub fn bytes(&mut self, id: PageId) -> &[u8] {
        self.bytes_mut(id)
    }

    /// Fills a page with what `bytes` gave for one of the same format and shape.
    pub fn restore(&mut self, id: PageId, bytes: &[u8]) -> Result<(), RestoreError> {
        let page = self.bytes_mut(id);
        if page.len() != bytes.len() {
            return Err(RestoreError { expected: page.len(), got: bytes.len() });
        }
        page.copy_from_slice(bytes);
        Ok(())
    }

    /// Copies a page to another of the same format. Panics if the formats differ.
    pub fn copy(&mut self, from: PageId, to: PageId) {
        let (source, target) = (self.place(from), self.place(to));
        assert_eq!(source.format, target.format, "{from} and {to} differ in format");
        let (start, len) = (self.origin + source.offset, self.page_bytes(source.format));
        self.data.as_mut_slice().copy_within(start..start + len, self.origin + target.offset);
    }

    /// Where pages of any format but the given one lie scattered over their slabs, empties one of these. Tells whether there
    /// was one. All places must belong to pages.
    pub(super) fn empty_scattered_slab(&mut self, but: Option<PageFormat>) -> bool {
        let Some(slab) = self.slabs.take_scattered(but) else { return false };
        let mut left = Vec::new();
        for place in self.places.iter_mut().flatten().filter(|place| slab.contains(&place.offset)) {
            let to = self.slabs.allocate(place.format).expect("other slabs have room for all of them");
            let (from, len) = (self.origin + place.offset, self.slabs.page_bytes(place.format));
            self.data.as_mut_slice().copy_within(from..from + len, self.origin + to);
            left.push(std::mem::replace(&mut place.offset, to));
        }
        left.into_iter().for_each(|offset| self.slabs.free(offset));
        true
    }

    /// Gives a page a new place in another format, or changes nothing if there is no room. The old place stays taken.
    pub(super) fn relocate(&mut self, id: PageId, format: PageFormat) -> bool {
        let Some(offset) = self.slabs.allocate(format) else { return false };
        self.bytes_in_use += self.page_bytes(format);
        self.places[id.0 as usize] = Some(Place { offset, format });
        true
    }

    /// Frees a place that no page has any more.
    pub(super) fn leave(&mut self, place: Place) {
        self.slabs.free(place.offset);
        self.bytes_in_use -= self.page_bytes(place.format);
    }

    fn bytes_mut(&mut self, id: PageId) -> &mut [u8] {
        let place = self.place(id);
        let len = self.page_bytes(place.format);
        &mut self.data.as_mut_slice()[self.origin + place.offset..][..len]
    }

    pub(super) fn find(&self, id: PageId) -> Option<Place> {
        self.places.get(id.0 as usize).copied().flatten()
    }

    pub(super) fn place(&self, id: PageId) -> Place {
        self.find(id).unwrap_or_else(|| panic!("{id} is not in use"))
    }

    /// The cells of a head in a layer. `start` is where `data` begins.
    pub(super) fn cells(&self, start: *const u8, layer: usize, head: usize) -> Cells<'_> {
        assert!(layer < self.shape.layers && head < self.shape.kv_heads);
        let (start, index) = (start.wrapping_add(self.origin), layer * self.shape.kv_heads + head);
        Cells { memory: self, start, index, format: PageFormat::F16, offsets: self.layouts[0].cell(index) }
    }
}

/// Finds the cells of one head of one layer.
pub(super) struct Cells<'a> {
    memory: &'a KvMemory,
    start: *const u8,
    index: usize,
    /// The last one's, and where its lines and scales are: mostly those of the next one too.
    format: PageFormat,
    offsets: (usize, usize),
}

impl Cells<'_> {
    pub(super) fn of(&mut self, id: PageId) -> Cell {
        self.at(self.memory.place(id))
    }

    pub(super) fn at(&mut self, place: Place) -> Cell {
        let Place { offset, format } = place;
        if format != self.format {
            (self.format, self.offsets) = (format, self.memory.layouts[format.index()].cell(self.index));
        }
        let page = self.start.wrapping_add(offset);
        Cell { format, lines: page.wrapping_add(self.offsets.0), scales: page.wrapping_add(self.offsets.1) }
    }
}

/// Bytes that are no page of that format.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("a page of {expected} bytes cannot be restored from {got}")]
pub struct RestoreError {
    pub expected: usize,
    pub got: usize,
}
