//! Pages with the number of their users.

use ruvllm_kernels::Pool;
use ruvllm_kernels::ops::{ConvertError, KvMemory, PageFormat, PageId, Rotation};

/// Hands out pages and takes each back when its last user is gone.
#[derive(Debug)]
pub struct Pages {
    memory: KvMemory,
    /// By number of the page; 0 for those that are free.
    users: Vec<u32>,
}

impl Pages {
    pub fn new(memory: KvMemory) -> Self {
        Self { memory, users: Vec::new() }
    }

    pub fn memory(&self) -> &KvMemory {
        &self.memory
    }

    /// Changes the basis in which keys and values are stored, as long as there are none.
    pub fn set_rotation(&mut self, rotation: Rotation) {
        self.memory.set_rotation(rotation);
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
        Some(page)
    }

    /// Copies the contents of a page to another of the same format.
    pub fn copy(&mut self, from: PageId, to: PageId) {
        self.memory.copy(from, to);
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

    pub fn bytes(&mut self, page: PageId) -> &[u8] {
        self.memory.bytes(page)
    }

    /// Fills a page from its saved bytes; tells whether these are as long as they should be.
    pub fn restore(&mut self, page: PageId, bytes: &[u8]) -> bool {
        self.memory.restore(page, bytes).is_ok()
    }
}
