//! Which pages exist, in which format, and where their bytes are. Holds no bytes itself: whatever moves them is told to
//! do so through [`PageBytes`].

use std::ops::Range;

use ruvllm_runner::{Conversion, KvShape, PageBytes, PageFormat, PageId, PageLocation};

use crate::slabs::Slabs;

/// The pages of one memory. Never hands out more bytes than its budget.
///
/// A page's id stays the same while the page moves: all who share it see its new format and location.
#[derive(Debug)]
pub struct PageMap {
    shape: KvShape,
    slabs: Slabs,
    /// By page id; `None` for ids that are free.
    locations: Vec<Option<PageLocation>>,
    free_ids: Vec<PageId>,
    bytes_in_use: usize,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConvertError {
    #[error("{page} is in {from} and cannot become {to}")]
    Warmer { page: PageId, from: PageFormat, to: PageFormat },
    /// Those that were converted before stay so.
    #[error("no room for pages in {to} after {converted} of them")]
    NoRoom { to: PageFormat, converted: usize },
}

impl PageMap {
    /// Divides a memory of `bytes` bytes, which is the budget at first.
    pub fn new(shape: KvShape, bytes: usize) -> Self {
        let slabs = Slabs::new(bytes, shape.page_sizes());
        Self { shape, slabs, locations: Vec::new(), free_ids: Vec::new(), bytes_in_use: 0 }
    }

    /// Returns the smallest budget in which `pages` pages of one format fit.
    pub fn budget_for(shape: KvShape, format: PageFormat, pages: usize) -> usize {
        Slabs::bytes_for(pages, format, &shape.page_sizes())
    }

    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Returns the maximum number of bytes at the moment.
    pub fn bytes_budget(&self) -> usize {
        self.slabs.limit()
    }

    /// Changes the budget, up to what it was at first. Pages in use stay, beyond it if need be: see `trim`.
    pub fn set_budget(&mut self, bytes: usize) {
        self.slabs.set_limit(bytes);
    }

    /// Compacts slabs while more of them have pages than the budget allows, and discards memory beyond it. Returns
    /// whether the budget is kept now.
    pub fn trim(&mut self, bytes: &mut dyn PageBytes) -> bool {
        while self.bytes_held() > self.bytes_budget() && self.compact(None, bytes) {}
        while let Some(slab) = self.slabs.take_surplus() {
            bytes.discard(slab);
        }
        self.bytes_held() <= self.bytes_budget()
    }

    /// Returns how many pages of a format the budget has room for, while there are no others.
    pub fn pages_max(&self, format: PageFormat) -> usize {
        self.slabs.pages_within_limit(format)
    }

    /// Returns the bytes of the pages in use.
    pub fn bytes_in_use(&self) -> usize {
        self.bytes_in_use
    }

    /// Returns the bytes that pages of other formats cannot have at the moment: those of all slabs with pages in use.
    pub fn bytes_held(&self) -> usize {
        self.slabs.bytes_held()
    }

    pub fn pages_in_use(&self) -> usize {
        self.locations.len() - self.free_ids.len()
    }

    /// Returns how many pages of one format are in use.
    pub fn pages_of(&self, format: PageFormat) -> usize {
        self.slabs.used(format)
    }

    pub fn page_bytes(&self, format: PageFormat) -> usize {
        self.slabs.page_bytes(format)
    }

    /// Whether `count` more pages of a format would be handed out.
    pub fn could_allocate(&self, format: PageFormat, count: usize) -> bool {
        self.slabs.could_allocate(format, count)
    }

    /// Hands out a page, which may hold anything; `None` if the budget has no room for it.
    pub fn allocate(&mut self, format: PageFormat, bytes: &mut dyn PageBytes) -> Option<PageId> {
        let offset = match self.slabs.allocate(format) {
            Some(offset) => offset,
            None if self.compact(Some(format), bytes) => self.slabs.allocate(format)?,
            None => return None,
        };
        self.bytes_in_use += self.page_bytes(format);
        let location = Some(PageLocation { offset, format });
        if let Some(id) = self.free_ids.pop() {
            self.locations[id.0 as usize] = location;
            return Some(id);
        }
        let id = PageId(u32::try_from(self.locations.len()).expect("fewer pages than numbers for them"));
        self.locations.push(location);
        Some(id)
    }

    /// Takes a page out of use. Panics if it is not in use, as do all functions that take an id.
    pub fn free(&mut self, id: PageId) {
        self.free_location(self.location(id));
        self.locations[id.0 as usize] = None;
        self.free_ids.push(id);
    }

    pub fn format(&self, id: PageId) -> PageFormat {
        self.location(id).format
    }

    pub fn location(&self, id: PageId) -> PageLocation {
        let location = self.locations.get(id.0 as usize).copied().flatten();
        location.unwrap_or_else(|| panic!("{id} is not in use"))
    }

    /// Returns where the bytes of a page are.
    pub fn range(&self, id: PageId) -> Range<usize> {
        self.bytes_at(self.location(id))
    }

    fn bytes_at(&self, location: PageLocation) -> Range<usize> {
        location.offset..location.offset + self.page_bytes(location.format)
    }

    /// Copies a page to another of the same format. Panics if the formats differ.
    pub fn copy(&self, from: PageId, to: PageId, bytes: &mut dyn PageBytes) {
        assert_eq!(self.format(from), self.format(to), "{from} and {to} differ in format");
        bytes.copy(self.range(from), self.location(to).offset);
    }

    /// Stores pages in another format, all of whose tokens have been written. Their ids stay the same. Returns how many
    /// were not in that format before.
    ///
    /// The new pages need room beside the old ones. If there is not enough for all, they follow each other in turns. If
    /// any page cannot become `to`, nothing is changed.
    pub fn convert(
        &mut self,
        pages: &[PageId],
        to: PageFormat,
        bytes: &mut dyn PageBytes,
    ) -> Result<usize, ConvertError> {
        for page in pages {
            let from = self.format(*page);
            if !from.can_become(to) {
                return Err(ConvertError::Warmer { page: *page, from, to });
            }
        }
        let mut converted = 0;
        let mut rest = pages.iter().copied().peekable();
        while rest.peek().is_some() {
            let mut conversions = Vec::new();
            while let Some(id) = rest.peek().copied() {
                let from = self.location(id);
                // A page may be named twice.
                if from.format != to {
                    let Some(to) = self.relocate(id, to) else { break };
                    conversions.push(Conversion { from, to });
                }
                rest.next();
            }
            if conversions.is_empty() && rest.peek().is_some() && !self.compact(Some(to), bytes) {
                return Err(ConvertError::NoRoom { to, converted });
            }
            bytes.convert(&conversions);
            converted += conversions.len();
            conversions.iter().for_each(|conversion| self.free_location(conversion.from));
        }
        Ok(converted)
    }

    /// Drops the keys and values of layers with a window from pages that have left it. Returns how many pages were trimmed:
    /// those before the first for which there was no room.
    pub fn trim_windows(&mut self, pages: &[PageId], bytes: &mut dyn PageBytes) -> usize {
        for (done, id) in pages.iter().enumerate() {
            let format = self.format(*id).trimmed();
            let has_room = self.slabs.could_allocate(format, 1);
            let mut offset = if has_room { self.slabs.allocate(format) } else { None };
            if offset.is_none() && has_room && self.compact(Some(format), bytes) {
                offset = self.slabs.allocate(format);
            }
            let Some(offset) = offset else { return done };
            // Looked at now: compacting may have moved it.
            let (from, to) = (self.location(*id), PageLocation { offset, format });
            self.bytes_in_use += self.page_bytes(format);
            self.locations[id.0 as usize] = Some(to);
            // The first part of the page, as it is.
            bytes.copy(from.offset..from.offset + self.page_bytes(format), offset);
            self.free_location(from);
        }
        pages.len()
    }

    /// Where pages of any format but the given one are scattered over their slabs, empties one of these. Returns whether
    /// there was one. All allocated locations must belong to pages.
    fn compact(&mut self, but: Option<PageFormat>, bytes: &mut dyn PageBytes) -> bool {
        let Some(slab) = self.slabs.take_scattered(but) else { return false };
        let mut freed = Vec::new();
        for location in self.locations.iter_mut().flatten().filter(|location| slab.contains(&location.offset)) {
            let to = self.slabs.allocate(location.format).expect("other slabs have room for all of them");
            let len = self.slabs.page_bytes(location.format);
            bytes.copy(location.offset..location.offset + len, to);
            freed.push(std::mem::replace(&mut location.offset, to));
        }
        freed.into_iter().for_each(|offset| self.slabs.free(offset));
        true
    }

    /// Gives a page a new location in another format, or changes nothing if there is no room. The old one stays taken.
    fn relocate(&mut self, id: PageId, format: PageFormat) -> Option<PageLocation> {
        let location = PageLocation { offset: self.slabs.allocate(format)?, format };
        self.bytes_in_use += self.page_bytes(format);
        self.locations[id.0 as usize] = Some(location);
        Some(location)
    }

    /// Frees a location that no page has any more.
    fn free_location(&mut self, location: PageLocation) {
        self.slabs.free(location.offset);
        self.bytes_in_use -= self.page_bytes(location.format);
    }
}
