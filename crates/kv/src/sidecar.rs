//! Page sidecars: some bytes per token that travel with its page, in memory and on disk. Only their writer knows what they
//! mean; all zero means that nobody wrote them.

use ruvllm_runner::{PAGE_TOKENS, PageId};

/// Sidecars on the tokens of pages.
#[derive(Debug)]
pub struct Sidecars {
    token_bytes: usize,
    /// Pages with higher ids have none, so that they never exceed the memory set aside for them.
    pages_max: usize,
    /// By page id; allocated when first written. `[tokens, token_bytes]`
    pages: Vec<Box<[u8]>>,
}

impl Sidecars {
    /// Sidecars of `token_bytes` bytes per token, possibly 0, for up to `pages_max` pages.
    pub fn new(token_bytes: usize, pages_max: usize) -> Self {
        Self { token_bytes, pages_max: if token_bytes == 0 { 0 } else { pages_max }, pages: Vec::new() }
    }

    /// Returns the bytes of one page's sidecar.
    pub fn page_bytes(&self) -> usize {
        self.token_bytes * PAGE_TOKENS
    }

    /// Returns the memory that they take.
    pub fn bytes(&self) -> usize {
        self.pages.iter().map(|notes| notes.len()).sum()
    }

    /// Returns the sidecar of a page, if it has one.
    pub fn page(&self, page: PageId) -> Option<&[u8]> {
        self.pages.get(page.0 as usize).map(|notes| &notes[..]).filter(|notes| !notes.is_empty())
    }

    /// Returns the sidecar of a page for writing, if it may have one.
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

    /// Returns the bytes of one token of a page.
    pub fn token(&self, page: PageId, token: usize) -> Option<&[u8]> {
        self.page(page).map(|notes| &notes[token * self.token_bytes..][..self.token_bytes])
    }

    pub fn token_mut(&mut self, page: PageId, token: usize) -> Option<&mut [u8]> {
        let bytes = self.token_bytes;
        self.page_mut(page).map(|notes| &mut notes[token * bytes..][..bytes])
    }

    /// Clears the sidecar of a page that is handed out anew.
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
        let mut notes = Sidecars::new(3, 4);
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
        let mut notes = Sidecars::new(3, 4);
        assert!(notes.page_mut(PageId(3)).is_some() && notes.page_mut(PageId(4)).is_none());
        notes.copy(PageId(3), PageId(9));
        assert_eq!(notes.page(PageId(9)), None);
        assert!(Sidecars::new(0, 4).page_mut(PageId(0)).is_none());
    }
}
