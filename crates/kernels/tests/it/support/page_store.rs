//! Pages one behind the other in a memory, for tests of what reads and writes them.

use std::collections::HashMap;

use ruvllm_kernels::Pool;
use ruvllm_kernels::ops::HostPages;
use ruvllm_runner::{Batch, Conversion, KvShape, PageFormat, PageId, PageLocation, Rotation};

pub struct PageStore {
    pub bytes: HostPages,
    locations: Vec<PageLocation>,
    /// Places that were freed, by format.
    free: HashMap<PageFormat, Vec<usize>>,
    end: usize,
}

impl PageStore {
    pub fn new(pool: &Pool, shape: KvShape, rotation: Rotation, bytes: usize) -> Self {
        let bytes = HostPages::new(pool, shape, rotation, bytes);
        Self { bytes, locations: Vec::new(), free: HashMap::new(), end: 0 }
    }

    pub fn shape(&self) -> KvShape {
        self.bytes.shape()
    }

    fn place(&mut self, format: PageFormat) -> PageLocation {
        let offset = self.free.entry(format).or_default().pop().unwrap_or_else(|| {
            self.end += self.shape().page_bytes(format);
            self.end - self.shape().page_bytes(format)
        });
        assert!(self.end <= self.bytes.bytes(), "the memory is full");
        PageLocation { offset, format }
    }

    pub fn allocate(&mut self, format: PageFormat) -> PageId {
        let location = self.place(format);
        self.locations.push(location);
        PageId(self.locations.len() as u32 - 1)
    }

    pub fn free(&mut self, page: PageId) {
        let PageLocation { offset, format } = self.location(page);
        self.free.entry(format).or_default().push(offset);
    }

    pub fn location(&self, page: PageId) -> PageLocation {
        self.locations[page.0 as usize]
    }

    pub fn format(&self, page: PageId) -> PageFormat {
        self.location(page).format
    }

    fn range(&self, page: PageId) -> std::ops::Range<usize> {
        let PageLocation { offset, format } = self.location(page);
        offset..offset + self.shape().page_bytes(format)
    }

    pub fn read(&mut self, page: PageId) -> Vec<u8> {
        let range = self.range(page);
        self.bytes.read(range).into_owned()
    }

    pub fn copy(&mut self, page: PageId) -> PageId {
        let copy = self.allocate(self.format(page));
        self.bytes.copy(self.range(page), self.location(copy).offset);
        copy
    }

    pub fn convert(&mut self, pool: &mut Pool, page: PageId, to: PageFormat) {
        let from = self.location(page);
        if from.format != to {
            let to = self.place(to);
            self.bytes.convert(pool, &[Conversion { from, to }]);
            self.free(page);
            self.locations[page.0 as usize] = to;
        }
    }

    /// Appends rows of a sequence to a batch.
    pub fn push(&self, batch: &mut Batch, pages: &[PageId], start: usize, rows: usize) {
        let pages = pages.iter().map(|page| self.location(*page));
        batch.push(start, vec![0; rows], 0, pages, None);
    }
}
