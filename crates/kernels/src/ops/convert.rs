//! Making pages colder.

use super::kv_memory::Place;
use super::{KvMemory, PageFormat, PageId};
use crate::Pool;
use crate::threads::Access;

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConvertError {
    #[error("{page} is in {from} and cannot become {to}")]
    Warmer { page: PageId, from: PageFormat, to: PageFormat },
    /// Those that were converted before stay so.
    #[error("no room for pages in {to} after {converted} of them")]
    NoRoom { to: PageFormat, converted: usize },
}

/// A page on its way to a new place.
struct Move {
    id: PageId,
    from: Place,
}

impl KvMemory {
    /// Stores pages in another format, all of whose tokens have been written. Their ids stay the same. Gives back how many
    /// were not in that format before.
    ///
    /// The new pages need room beside the old ones. If there is not enough for all, they follow each other in turns. If
    /// any page cannot become `to`, nothing is changed.
    pub fn convert(&mut self, pool: &mut Pool, pages: &[PageId], to: PageFormat) -> Result<usize, ConvertError> {
        for page in pages {
            let from = self.format(*page);
            if !from.can_become(to) {
                return Err(ConvertError::Warmer { page: *page, from, to });
            }
        }
        let mut converted = 0;
        let mut rest = pages.iter().copied().peekable();
        while rest.peek().is_some() {
            let mut moves = Vec::new();
            while let Some(id) = rest.peek().copied() {
                let from = self.place(id);
                // A page may be named twice.
                if from.format != to {
                    if !self.relocate(id, to) {
                        break;
                    }
                    moves.push(Move { id, from });
                }
                rest.next();
            }
            if moves.is_empty() && rest.peek().is_some() && !self.empty_scattered_slab(Some(to)) {
                return Err(ConvertError::NoRoom { to, converted });
            }
            self.rewrite(pool, &moves);
            converted += moves.len();
            moves.iter().for_each(|page| self.leave(page.from));
        }
        Ok(converted)
    }

    /// Writes pages to their new places, each layer of a page as one unit of work.
    fn rewrite(&self, pool: &mut Pool, moves: &[Move]) {
        let (layers, dim) = (self.shape.layers, self.shape.head_dim);
        pool.run(|worker| {
            let start = self.data.write(worker, Access::WritePages).cast_const();
            for unit in worker.deal().take_while(|unit| *unit < moves.len() * layers) {
                let (Move { id, from }, layer) = (&moves[unit / layers], unit % layers);
                for head in 0..self.shape.kv_heads {
                    let mut cells = self.cells(start, layer, head);
                    let (old, new) = (cells.at(*from), cells.of(*id));
                    // SAFETY: both pages are in use, so they do not overlap; each layer of a page is dealt to one worker.
                    // The formats were checked.
                    unsafe { (worker.kernels().convert)(old, new, dim) };
                }
            }
        });
    }
}
