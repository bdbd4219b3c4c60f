//! Files of saved pages, read as the disk tier and the cache do. The fuzzer and its corpus come in here: what authenticates a
//! file no fuzzer can pass, and yet what follows must not rely on it for its bounds.

use std::io;

use ruvllm_kernels::ops::{KvMemory, KvShape, PageFormat, Rotation};
use ruvllm_kernels::{KernelSet, Pool};

use crate::disk::PageKey;
pub use crate::disk::{DamagedPage, SavedPage};
use crate::disk::{decode, encode};
use crate::notes::Notes;
use crate::pages::Pages;
use crate::prefix::PageHash;

const SHAPE: KvShape = KvShape { layers: 1, kv_heads: 1, head_dim: 16 };
const NOTE_BYTES: usize = 2;

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
    pool: Pool,
    pages: Pages,
}

impl Default for Restorer {
    fn default() -> Self {
        let pool = Pool::new(1, KernelSet::Scalar);
        let budget_bytes = KvMemory::budget_for(SHAPE, PageFormat::F16, 4);
        let memory = KvMemory::new(&pool, SHAPE, Rotation::None, budget_bytes);
        Self { pool, pages: Pages::new(memory, Notes::new(NOTE_BYTES, 1)) }
    }
}

impl Restorer {
    /// Puts a page into memory and, if it fits, through its colder formats. Tells whether it did.
    pub fn restore(&mut self, saved: &SavedPage) -> bool {
        let Some(page) = self.pages.take(saved.format) else { return false };
        let is_restored = self.pages.restore(page, &saved.bytes);
        for to in PageFormat::all().filter(|_| is_restored) {
            let from = self.pages.memory().format(page);
            if to != from && from.can_become(to) {
                self.pages.convert(&mut self.pool, &[page], to);
            }
        }
        self.pages.release(page);
        is_restored
    }
}
