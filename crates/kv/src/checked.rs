//! Files of saved pages, read as the disk tier and the cache do. The fuzzer and its corpus come in here: what authenticates a
//! file no fuzzer can pass, and yet what follows must not rely on it for its bounds.

use std::io;

use ruvllm_runner::{FakeRunner, KvShape, PageFormat, Rotation, Runner};

use crate::disk::PageKey;
pub use crate::disk::{DamagedPage, SavedPage};
use crate::disk::{decode, encode};
use crate::page_map::PageMap;
use crate::pages::Pages;
use crate::prefix::PageHash;
use crate::sidecar::Sidecars;

const SHAPE: KvShape = KvShape::new(1, 1, 16);
const SIDECAR_BYTES: usize = 2;

/// The page in a file.
pub fn opened(key: &PageKey, hash: PageHash, file: Vec<u8>) -> Result<SavedPage, DamagedPage> {
    decode(key, hash, file)
}

/// The file of a page.
pub fn sealed(key: &PageKey, hash: PageHash, page: &SavedPage) -> io::Result<Vec<u8>> {
    encode(key, hash, page)
}

/// A small memory that saved pages are put into.
#[derive(Debug)]
pub struct Restorer {
    bytes: FakeRunner,
    pages: Pages,
}

impl Default for Restorer {
    fn default() -> Self {
        let budget_bytes = PageMap::budget_for(SHAPE, PageFormat::F16, 4);
        let mut bytes = FakeRunner::new(SHAPE, 1, 64, 1);
        bytes.reserve_pages(budget_bytes, Rotation::None);
        Self { bytes, pages: Pages::new(PageMap::new(SHAPE, budget_bytes), Sidecars::new(SIDECAR_BYTES, 1)) }
    }
}

impl Restorer {
    /// Restores a page and, if it fits, demotes it through the colder formats. Returns whether it fitted.
    pub fn restore(&mut self, saved: &SavedPage) -> bool {
        let Some(page) = self.pages.allocate(saved.format.unwrap_or(PageFormat::F16), &mut self.bytes) else {
            return false;
        };
        let is_restored = self.pages.restore(page, &saved.bytes, &mut self.bytes);
        for to in PageFormat::all().filter(|_| is_restored) {
            let from = self.pages.map().format(page);
            if to != from && from.can_become(to) {
                self.pages.convert(&[page], to, &mut self.bytes);
            }
        }
        self.pages.release(page);
        is_restored
    }
}
