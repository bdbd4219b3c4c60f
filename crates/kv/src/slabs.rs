//! The slab allocator: memory is divided into slabs, and a slab into pages of one format for as long as any is in use.
//!
//! Slabs with free pages are used up before another is opened, and low addresses before high ones, so that memory which
//! was touched once is used again first.

mod bit_set;

use std::ops::Range;

use ruvllm_runner::{HUGE_PAGE, PageFormat};

use self::bit_set::BitSet;

/// The share of a slab that may be left at its end.
const WASTE_MAX: f64 = 0.03;
/// Slabs of a memory at least, where one holds the largest page: formats do not share a slab.
const SLABS_MIN: usize = 8;
/// Larger slabs are not tried.
const SLAB_BYTES_MAX: usize = 64 * HUGE_PAGE;

/// Bytes of a page of each format, by `PageFormat::index`.
type PageSizes = [usize; PageFormat::COUNT];

/// The pages of a range of bytes, all by their offset.
#[derive(Debug)]
pub(crate) struct Slabs {
    bytes: usize,
    /// Maximum bytes of slabs with pages in use.
    limit: usize,
    slab_bytes: usize,
    page_bytes: PageSizes,
    slabs: Vec<Slab>,
    /// Slabs without pages in use: those that take memory of the system, and those that do not, never or no longer.
    empty: BitSet,
    fresh: BitSet,
    /// Of both.
    empty_count: usize,
    classes: [Class; PageFormat::COUNT],
}

#[derive(Clone, Debug)]
struct Slab {
    /// This and `pages` mean something while pages are in use.
    format: PageFormat,
    pages: usize,
    used: usize,
    free: BitSet,
}

/// What is known of the pages of one format.
#[derive(Clone, Debug)]
struct Class {
    /// Slabs of this format with pages in use and free ones.
    partial: BitSet,
    /// Pages in use, and free ones in slabs of this format.
    used: usize,
    free: usize,
}

impl Slabs {
    /// Cuts `bytes` bytes for pages of these sizes.
    pub(crate) fn new(bytes: usize, page_bytes: PageSizes) -> Self {
        let slab_bytes = slab_bytes(bytes, &page_bytes);
        let count = bytes.div_ceil(slab_bytes);
        let pages_max = page_bytes.iter().map(|page| slab_bytes / page).max().unwrap_or(0);
        let slab = Slab { format: PageFormat::F16, pages: 0, used: 0, free: BitSet::new(pages_max) };
        let mut fresh = BitSet::new(count);
        fresh.fill(count);
        let class = Class { partial: BitSet::new(count), used: 0, free: 0 };
        let classes = std::array::from_fn(|_| class.clone());
        Self {
            bytes,
            limit: bytes,
            slab_bytes,
            page_bytes,
            slabs: vec![slab; count],
            empty: BitSet::new(count),
            fresh,
            empty_count: count,
            classes,
        }
    }

    /// The least number of bytes in which `pages` pages of one format fit.
    pub(crate) fn bytes_for(pages: usize, format: PageFormat, page_bytes: &PageSizes) -> usize {
        let page = page_bytes[format.index()];
        let mut bytes = pages * page;
        loop {
            let slab = slab_bytes(bytes, page_bytes);
            let fit = bytes / slab * (slab / page) + bytes % slab / page;
            if fit >= pages {
                return bytes;
            }
            bytes += (pages - fit) * page;
        }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Changes how many bytes slabs with pages in use may have. What is in use stays so, beyond the limit if need be.
    pub(crate) fn set_limit(&mut self, bytes: usize) {
        self.limit = bytes.min(self.bytes);
    }

    /// Pages of a format that the limit has room for, while there are no others.
    pub(crate) fn pages_within_limit(&self, format: PageFormat) -> usize {
        let last = if self.limit == self.bytes { self.bytes % self.slab_bytes / self.page_bytes(format) } else { 0 };
        self.limit / self.slab_bytes * self.per_slab(format) + last
    }

    /// An empty slab that takes memory of the system beyond the limit: it is to be given back.
    pub(crate) fn take_surplus(&mut self) -> Option<Range<usize>> {
        // Then there is none beyond it.
        if self.limit == self.bytes {
            return None;
        }
        let index = self.empty.iter().last()?;
        let resident = self.bytes_held() + self.empty.iter().map(|slab| self.slab_len(slab)).sum::<usize>();
        if resident <= self.limit {
            return None;
        }
        self.empty.remove(index);
        self.fresh.insert(index);
        let start = index * self.slab_bytes;
        Some(start..start + self.slab_len(index))
    }

    pub(crate) fn page_bytes(&self, format: PageFormat) -> usize {
        self.page_bytes[format.index()]
    }

    /// Pages of a format in use.
    pub(crate) fn used(&self, format: PageFormat) -> usize {
        self.classes[format.index()].used
    }

    /// Bytes of all slabs with pages in use.
    pub(crate) fn bytes_held(&self) -> usize {
        let last = self.slabs.len().saturating_sub(1);
        let short =
            if last < self.slabs.len() && !self.is_empty(last) { self.slab_bytes - self.slab_len(last) } else { 0 };
        (self.slabs.len() - self.empty_count) * self.slab_bytes - short
    }

    /// Takes a free page; none if there is no room.
    pub(crate) fn allocate(&mut self, format: PageFormat) -> Option<usize> {
        let class = format.index();
        let index = match self.classes[class].partial.first() {
            Some(index) => index,
            None => self.open(format)?,
        };
        let slab = &mut self.slabs[index];
        let page = slab.free.first().expect("a slab of this set has a free page");
        slab.free.remove(page);
        slab.used += 1;
        let is_full = slab.used == slab.pages;
        let class = &mut self.classes[class];
        if is_full {
            class.partial.remove(index);
        }
        class.used += 1;
        class.free -= 1;
        Some(index * self.slab_bytes + page * self.page_bytes(format))
    }

    /// Makes the first empty slab one of this format.
    fn open(&mut self, format: PageFormat) -> Option<usize> {
        let index = self.empty.first().or_else(|| self.fresh.first())?;
        let pages = self.capacity(index, format);
        // Only the last slab can be too short.
        if pages == 0 || self.bytes_held() + self.slab_len(index) > self.limit {
            return None;
        }
        self.empty.remove(index);
        self.fresh.remove(index);
        self.empty_count -= 1;
        let slab = &mut self.slabs[index];
        (slab.format, slab.pages) = (format, pages);
        slab.free.fill(pages);
        let class = &mut self.classes[format.index()];
        class.partial.insert(index);
        class.free += pages;
        Some(index)
    }

    /// Gives back the page at `offset`, which is in use.
    pub(crate) fn free(&mut self, offset: usize) {
        let index = offset / self.slab_bytes;
        let format = self.slabs[index].format;
        let page = offset % self.slab_bytes / self.page_bytes(format);
        let (slab, class) = (&mut self.slabs[index], &mut self.classes[format.index()]);
        debug_assert!(!slab.free.contains(page) && slab.used > 0);
        slab.free.insert(page);
        slab.used -= 1;
        class.used -= 1;
        class.free += 1;
        class.partial.insert(index);
        if slab.used == 0 {
            class.partial.remove(index);
            class.free -= slab.pages;
            self.empty.insert(index);
            self.empty_count += 1;
        }
    }

    /// Whether `count` pages of a format could be had, after emptying scattered slabs if it must be.
    pub(crate) fn could_allocate(&self, format: PageFormat, count: usize) -> bool {
        let Some(last) = self.slabs.len().checked_sub(1) else { return count == 0 };
        let has_last = usize::from(self.is_empty(last));
        let others = PageFormat::every().filter(|other| *other != format);
        let scattered: usize = others.map(|other| self.scattered_slabs(other)).sum();
        // Slabs that are emptied make room within the limit first.
        let room = (self.limit + scattered * self.slab_bytes).saturating_sub(self.bytes_held());
        let whole = (self.empty_count - has_last + scattered).min(room / self.slab_bytes);
        let room = room - whole * self.slab_bytes;
        let last = if has_last == 1 && room >= self.slab_len(last) { self.capacity(last, format) } else { 0 };
        count <= self.classes[format.index()].free + whole * self.per_slab(format) + last
    }

    fn is_empty(&self, slab: usize) -> bool {
        self.empty.contains(slab) || self.fresh.contains(slab)
    }

    /// Picks a slab whose pages fit into the free places of others, not of the given format, and gives none of its own out
    /// until one of its pages is freed. Returns its range of bytes.
    pub(crate) fn take_scattered(&mut self, but: Option<PageFormat>) -> Option<Range<usize>> {
        let other = PageFormat::every().find(|other| Some(*other) != but && self.scattered_slabs(*other) > 0)?;
        let per_slab = self.per_slab(other);
        let candidates = self.classes[other.index()].partial.iter().filter(|slab| self.slabs[*slab].pages == per_slab);
        let slab = candidates.min_by_key(|slab| self.slabs[*slab].used)?;
        self.classes[other.index()].partial.remove(slab);
        Some(slab * self.slab_bytes..(slab + 1) * self.slab_bytes)
    }

    /// Slabs that the free places of a format come to.
    fn scattered_slabs(&self, format: PageFormat) -> usize {
        self.classes[format.index()].free / self.per_slab(format).max(1)
    }

    /// Pages of a whole slab.
    fn per_slab(&self, format: PageFormat) -> usize {
        self.slab_bytes / self.page_bytes(format)
    }

    /// Pages that a slab holds. The last slab may be shorter than the others.
    fn capacity(&self, slab: usize, format: PageFormat) -> usize {
        self.slab_len(slab) / self.page_bytes(format)
    }

    fn slab_len(&self, slab: usize) -> usize {
        self.slab_bytes.min(self.bytes - slab * self.slab_bytes)
    }
}

/// The smallest slab with little waste for every tier; the least wasteful if there is none within the limits.
fn slab_bytes(bytes: usize, page_bytes: &PageSizes) -> usize {
    let largest = page_bytes.iter().copied().max().unwrap_or(1).next_multiple_of(HUGE_PAGE);
    let most = (bytes / SLABS_MIN).min(SLAB_BYTES_MAX).max(largest);
    let pages = PageFormat::TIERS.map(|format| page_bytes[format.index()]);
    let waste = |slab: usize| pages.iter().map(|page| (slab % page) as f64 / slab as f64).fold(0.0, f64::max);
    let tried = || (largest..=most).step_by(HUGE_PAGE);
    let slab = tried().find(|slab| waste(*slab) < WASTE_MAX);
    let slab = slab.or_else(|| tried().min_by(|a, b| waste(*a).total_cmp(&waste(*b))));
    slab.unwrap_or(largest).min(bytes).max(1)
}

#[cfg(test)]
mod tests;
