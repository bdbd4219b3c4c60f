//! Pages with the number of their users and the notes on their tokens.

use std::borrow::Cow;

use ruvllm_kernels::Pool;
use ruvllm_kernels::ops::{ConvertError, KvMemory, PageFormat, PageId, Rotation};

use crate::notes::Notes;

/// Hands out pages and takes each back when its last user is gone.
#[derive(Debug)]
pub struct Pages {
    memory: KvMemory,
    /// By number of the page; 0 for those that are free.
    users: Vec<u32>,
    notes: Notes,
}

impl Pages {
    pub fn new(memory: KvMemory, notes: Notes) -> Self {
        Self { memory, users: Vec::new(), notes }
    }

    pub fn memory(&self) -> &KvMemory {
        &self.memory
    }

    /// Changes the basis in which keys and values are stored, as long as there are none.
    pub fn set_rotation(&mut self, rotation: Rotation) {
        self.memory.set_rotation(rotation);
    }

    /// Changes how many bytes pages may take, up to what it was at first.
    pub fn set_budget(&mut self, bytes: usize) {
        self.memory.set_budget(bytes);
    }

    /// Gives memory beyond the budget back to the system, as far as no page in use needs it. Tells whether none is left.
    pub fn trim(&mut self) -> bool {
        self.memory.trim()
    }

    /// A page with one user, or `None` if the budget has no room.
    pub fn take(&mut self, format: PageFormat) -> Option<PageId> {
        let page = self.memory.allocate(format)?;
        let at = page.0 as usize;
        if at >= self.users.len() {
            self.users.resize(at + 1, 0);
        }
        debug_assert_eq!(self.users[at], 0);
        self.users[at] = 1;
        self.notes.clear(page);
        Some(page)
    }

    /// Copies the contents of a page to another of the same format.
    pub fn copy(&mut self, from: PageId, to: PageId) {
        self.memory.copy(from, to);
        self.notes.copy(from, to);
    }

    /// Adds a user.
    pub fn share(&mut self, page: PageId) {
        let users = &mut self.users[page.0 as usize];
        assert!(*users > 0, "{page:?} is free");
        *users += 1;
    }

    /// Takes a user away, and the page back if it was the last.
    pub fn release(&mut self, page: PageId) {
        let users = &mut self.users[page.0 as usize];
        assert!(*users > 0, "{page:?} is free");
        *users -= 1;
        if *users == 0 {
            self.memory.free(page);
        }
    }

    pub fn users(&self, page: PageId) -> u32 {
        self.users[page.0 as usize]
    }

    /// Puts pages into a colder format, for all of their users. As far as there is room to do so.
    pub fn convert(&mut self, pool: &mut Pool, pages: &[PageId], to: PageFormat) -> usize {
        match self.memory.convert(pool, pages, to) {
            Ok(converted) | Err(ConvertError::NoRoom { converted, .. }) => converted,
            Err(error @ ConvertError::Warmer { .. }) => unreachable!("tiers only cool: {error}"),
        }
    }

    pub fn notes(&self) -> &Notes {
        &self.notes
    }

    /// Room for the note on a token, if it may have one. Panics if others use the page: they count on what it holds.
    pub fn note_mut(&mut self, page: PageId, token: usize) -> Option<&mut [u8]> {
        assert_eq!(self.users(page), 1, "{page:?} has other users");
        self.notes.token_mut(page, token)
    }

    /// What is saved of a page: its bytes, and behind them the notes on it if there are any.
    pub fn saved(&mut self, page: PageId) -> Cow<'_, [u8]> {
        let bytes = self.memory.bytes(page);
        match self.notes.page(page) {
            Some(notes) => Cow::Owned([bytes, notes].concat()),
            None => Cow::Borrowed(bytes),
        }
    }

    /// Fills a page from what was saved of one; tells whether that is as long as it should be. Notes may be missing, or be
    /// there and not wanted: they are no part of what makes a page.
    pub fn restore(&mut self, page: PageId, saved: &[u8]) -> bool {
        let page_bytes = self.memory.page_bytes(self.memory.format(page));
        let Some((bytes, saved_notes)) = saved.split_at_checked(page_bytes) else { return false };
        if saved_notes.len() == self.notes.page_bytes()
            && let Some(notes) = self.notes.page_mut(page)
        {
            notes.copy_from_slice(saved_notes);
        }
        self.memory.restore(page, bytes).is_ok()
    }
}
