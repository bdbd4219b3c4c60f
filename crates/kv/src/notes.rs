//! Some bytes about each token, kept beside its page and going wherever the page goes. What they mean is the business of
//! who writes them; all zero is what nobody wrote.

use ruvllm_kernels::ops::{PAGE_TOKENS, PageId};

/// Notes on the tokens of pages.
#[derive(Debug)]
pub struct Notes {
    token_bytes: usize,
    /// Pages with higher numbers have none, lest they take more memory than was counted on.
    pages_max: usize,
    /// By number of the page; made when it is first written. `[tokens, token_bytes]`
    pages: Vec<Box<[u8]>>,
}

impl Notes {
    /// Notes of so many bytes, possibly none, on the tokens of so many pages.
    pub fn new(token_bytes: usize, pages_max: usize) -> Self {
        Self { token_bytes, pages_max: if token_bytes == 0 { 0 } else { pages_max }, pages: Vec::new() }
    }

    /// Bytes of the notes on one page.
    pub fn page_bytes(&self) -> usize {
        self.token_bytes * PAGE_TOKENS
    }

    /// Memory that they take.
    pub fn bytes(&self) -> usize {
        self.pages.iter().map(|notes| notes.len()).sum()
    }

    /// All notes on a page; none if there never were any.
    pub fn page(&self, page: PageId) -> Option<&[u8]> {
        self.pages.get(page.0 as usize).map(|notes| &notes[..]).filter(|notes| !notes.is_empty())
    }

    /// Room for the notes on a page, if it may have any.
    pub fn page_mut(&mut self, page: PageId) -> Option<&mut [u8]> {
        let (at, bytes) = (page.0 as usize, self.page_bytes());
        if at >= self.pages_max {
            return None;
        }
        if at >= self.pages.len() {
            self.pages.resize_with(at + 1, Box::default);
        }
        let notes = &mut self.pages[at];
        if notes.is_empty() {
            *notes = vec![0; bytes].into();
        }
        Some(notes)
    }

    /// The note on a token of a page.
    pub fn token(&self, page: PageId, token: usize) -> Option<&[u8]> {
        self.page(page).map(|notes| &notes[token * self.token_bytes..][..self.token_bytes])
    }

    pub fn token_mut(&mut self, page: PageId, token: usize) -> Option<&mut [u8]> {
        let bytes = self.token_bytes;
        self.page_mut(page).map(|notes| &mut notes[token * bytes..][..bytes])
    }

    /// Forgets the notes on a page that somebody else has from now on.
    pub fn clear(&mut self, page: PageId) {
        if let Some(notes) = self.pages.get_mut(page.0 as usize) {
            notes.fill(0);
        }
    }

    pub fn copy(&mut self, from: PageId, to: PageId) {
        let Some(notes) = self.page(from).map(<[u8]>::to_vec) else { return };
        if let Some(copy) = self.page_mut(to) {
            copy.copy_from_slice(&notes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_copied_and_cleared_with_their_page() {
        let mut notes = Notes::new(3, 4);
        assert_eq!((notes.page(PageId(2)), notes.bytes()), (None, 0));
        notes.token_mut(PageId(2), 5).unwrap().copy_from_slice(&[1, 2, 3]);
        notes.copy(PageId(2), PageId(0));
        assert_eq!(notes.token(PageId(0), 5), Some(&[1, 2, 3][..]));
        assert_eq!(notes.token(PageId(0), 6), Some(&[0; 3][..]));
        notes.clear(PageId(2));
        assert_eq!(notes.token(PageId(2), 5), Some(&[0; 3][..]));
        assert_eq!((notes.page(PageId(1)), notes.bytes()), (None, 2 * 3 * PAGE_TOKENS));
    }

    #[test]
    fn there_are_never_more_than_were_counted_on() {
        let mut notes = Notes::new(3, 4);
        assert!(notes.page_mut(PageId(3)).is_some() && notes.page_mut(PageId(4)).is_none());
        notes.copy(PageId(3), PageId(9));
        assert_eq!(notes.page(PageId(9)), None);
        assert!(Notes::new(0, 4).page_mut(PageId(0)).is_none());
    }
}
