//! Reference-counted pages with their sidecars.

use std::borrow::Cow;

use ruvllm_runner::{PageBytes, PageFormat, PageId};

use crate::page_map::{ConvertError, PageMap};
use crate::sidecar::Sidecars;

/// Hands out pages and frees each with its last reference.
#[derive(Debug)]
pub struct Pages {
    map: PageMap,
    /// References by page id; 0 for pages that are free.
    users: Vec<u32>,
    sidecars: Sidecars,
}

impl Pages {
    pub fn new(map: PageMap, sidecars: Sidecars) -> Self {
        Self { map, users: Vec::new(), sidecars }
    }

    pub fn map(&self) -> &PageMap {
        &self.map
    }

    /// Changes the budget of pages, up to its initial value.
    pub fn set_budget(&mut self, bytes: usize) {
        self.map.set_budget(bytes);
    }

    /// Discards memory beyond the budget that no page in use needs. Returns whether the budget is kept.
    pub fn trim(&mut self, bytes: &mut dyn PageBytes) -> bool {
        self.map.trim(bytes)
    }

    /// Allocates a page with one reference, or returns `None` if the budget has no room.
    pub fn allocate(&mut self, format: PageFormat, bytes: &mut dyn PageBytes) -> Option<PageId> {
        let page = self.map.allocate(format, bytes)?;
        let at = page.0 as usize;
        if at >= self.users.len() {
            self.users.resize(at + 1, 0);
        }
        debug_assert_eq!(self.users[at], 0);
        self.users[at] = 1;
        self.sidecars.clear(page);
        Some(page)
    }

    /// Copies the contents of a page to another of the same format.
    pub fn copy(&mut self, from: PageId, to: PageId, bytes: &mut dyn PageBytes) {
        self.map.copy(from, to, bytes);
        self.sidecars.copy(from, to);
    }

    /// Adds a reference.
    pub fn share(&mut self, page: PageId) {
        let users = &mut self.users[page.0 as usize];
        assert!(*users > 0, "{page:?} is free");
        *users += 1;
    }

    /// Drops a reference, and frees the page with the last one.
    pub fn release(&mut self, page: PageId) {
        let users = &mut self.users[page.0 as usize];
        assert!(*users > 0, "{page:?} is free");
        *users -= 1;
        if *users == 0 {
            self.map.free(page);
        }
    }

    pub fn users(&self, page: PageId) -> u32 {
        self.users[page.0 as usize]
    }

    /// Converts pages to a colder format, as far as there is room; all who share them see the new format.
    pub fn convert(&mut self, pages: &[PageId], to: PageFormat, bytes: &mut dyn PageBytes) -> usize {
        match self.map.convert(pages, to, bytes) {
            Ok(converted) | Err(ConvertError::NoRoom { converted, .. }) => converted,
            Err(error @ ConvertError::Warmer { .. }) => unreachable!("tiers only cool: {error}"),
        }
    }

    /// Drops what layers with a window have in pages that have left it. Returns how many pages were trimmed.
    pub fn trim_windows(&mut self, pages: &[PageId], bytes: &mut dyn PageBytes) -> usize {
        self.map.trim_windows(pages, bytes)
    }

    pub fn sidecars(&self) -> &Sidecars {
        &self.sidecars
    }

    /// Returns the sidecar of a token for writing, if it may have one. Panics if the page is shared.
    pub fn sidecar_mut(&mut self, page: PageId, token: usize) -> Option<&mut [u8]> {
        assert_eq!(self.users(page), 1, "{page:?} has other users");
        self.sidecars.token_mut(page, token)
    }

    /// Returns what is saved of a page: its bytes, followed by its sidecar if it has one.
    pub fn saved<'b>(&self, page: PageId, bytes: &'b mut dyn PageBytes) -> Cow<'b, [u8]> {
        let bytes = bytes.read(self.map.range(page));
        match self.sidecars.page(page) {
            Some(notes) => Cow::Owned([&bytes, notes].concat()),
            None => bytes,
        }
    }

    /// Restores a page from what was saved. Returns whether its length is right. A sidecar may be missing or superfluous: it is
    /// not part of what makes a page valid.
    pub fn restore(&mut self, page: PageId, saved: &[u8], bytes: &mut dyn PageBytes) -> bool {
        let range = self.map.range(page);
        let Some((contents, saved_notes)) = saved.split_at_checked(range.len()) else { return false };
        if saved_notes.len() == self.sidecars.page_bytes()
            && let Some(notes) = self.sidecars.page_mut(page)
        {
            notes.copy_from_slice(saved_notes);
        }
        bytes.write(range.start, contents);
        true
    }
}
