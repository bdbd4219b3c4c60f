use ruvllm_runner::{KeyFormat, KvShape, ValueFormat};

use super::*;

const COLD: PageFormat = PageFormat::new(KeyFormat::Q4, ValueFormat::Q4);

fn sizes(cells: usize, head_dim: usize) -> PageSizes {
    KvShape::new(cells, 1, head_dim).page_sizes()
}

#[test]
fn little_of_a_slab_is_wasted_whatever_the_model() {
    for (cells, head_dim) in [(30 * 3, 64), (22 * 4, 64), (24 * 2, 64), (28 * 2, 128), (32 * 8, 128), (32 * 32, 80)] {
        let sizes = sizes(cells, head_dim);
        let slab = slab_bytes(4 << 30, &sizes);
        assert!(slab.is_multiple_of(HUGE_PAGE) && slab <= 64 << 20, "{slab}");
        for page in PageFormat::TIERS.map(|format| sizes[format.index()]) {
            let waste = (slab % page) as f64 / slab as f64;
            assert!(waste < WASTE_MAX, "{cells} cells of {head_dim}: {waste} of {slab} for {page}");
        }
    }
    assert_eq!(sizes(90, 64)[0], 368_640);
    assert_eq!(slab_bytes(1 << 30, &sizes(90, 64)), 6 << 20);
}

#[test]
fn a_slab_is_never_larger_than_the_memory() {
    let sizes = sizes(90, 64);
    for bytes in [0, 1, 368_640, 1 << 20, 5 << 20, 40 << 20] {
        let slabs = Slabs::new(bytes, sizes);
        assert!(slabs.slab_bytes <= bytes.max(1));
        assert_eq!(slabs.could_allocate(PageFormat::F16, 1), bytes >= 368_640);
    }
}

#[test]
fn bytes_for_pages_hold_them_and_no_more() {
    let sizes = sizes(90, 64);
    for pages in [0, 1, 3, 17, 18, 100, 1000] {
        let bytes = Slabs::bytes_for(pages, PageFormat::F16, &sizes);
        let slabs = Slabs::new(bytes, sizes);
        assert!(slabs.could_allocate(PageFormat::F16, pages) && !slabs.could_allocate(PageFormat::F16, pages + 1));
    }
}

#[test]
fn low_pages_come_first_and_a_slab_changes_its_format_when_it_is_empty() {
    let sizes = sizes(90, 64);
    let mut slabs = Slabs::new(16 << 20, sizes);
    let per_slab = slabs.slab_bytes / sizes[0];
    let hot: Vec<usize> = std::iter::from_fn(|| slabs.allocate(PageFormat::F16)).collect();
    assert!(hot.is_sorted() && hot[0] == 0 && hot.len() == per_slab * slabs.slabs.len());
    slabs.free(hot[3]);
    assert_eq!(slabs.allocate(COLD), None, "formats do not share a slab");
    slabs.free(hot[per_slab + 1]);
    assert_eq!(slabs.allocate(PageFormat::F16), Some(hot[3]));
    hot[..per_slab].iter().for_each(|offset| slabs.free(*offset));
    assert_eq!(slabs.bytes_held(), (slabs.slabs.len() - 1) * slabs.slab_bytes);
    assert_eq!(slabs.allocate(PageFormat::F16), Some(hot[per_slab + 1]), "a slab in use comes before an empty one");
    assert_eq!(slabs.allocate(COLD), Some(0));
    assert_eq!(slabs.bytes_held(), slabs.limit());
}

#[test]
fn scattered_pages_leave_a_slab_to_another_format() {
    let sizes = sizes(90, 64);
    let mut slabs = Slabs::new(24 << 20, sizes);
    let (per_slab, count) = (slabs.slab_bytes / sizes[0], slabs.slabs.len());
    let hot: Vec<usize> = std::iter::from_fn(|| slabs.allocate(PageFormat::F16)).collect();
    assert!(!slabs.could_allocate(COLD, 1) && slabs.take_scattered(Some(COLD)).is_none());
    slabs.free(hot[0]);
    hot[per_slab + 1..2 * per_slab].iter().for_each(|offset| slabs.free(*offset));
    assert!(count > 2 && slabs.could_allocate(COLD, slabs.slab_bytes / sizes[COLD.index()]));
    let emptied = slabs.take_scattered(Some(COLD)).unwrap();
    assert_eq!(emptied, slabs.slab_bytes..2 * slabs.slab_bytes, "the one with the fewest pages");
    assert_eq!(slabs.allocate(PageFormat::F16), Some(hot[0]), "a page moves to where there is room");
    slabs.free(hot[per_slab]);
    assert_eq!(slabs.allocate(COLD), Some(emptied.start));
}

#[test]
fn a_lower_limit_holds_when_pages_are_given_back_and_memory_beyond_it_is_named() {
    let sizes = sizes(90, 64);
    let mut slabs = Slabs::new(40 << 20, sizes);
    let (slab, per_slab) = (slabs.slab_bytes, slabs.slab_bytes / sizes[0]);
    let pages: Vec<usize> = std::iter::from_fn(|| slabs.allocate(PageFormat::F16)).collect();
    assert_eq!((slabs.bytes_held(), slabs.take_surplus()), (40 << 20, None));
    slabs.set_limit(2 * slab);
    assert_eq!(slabs.pages_within_limit(PageFormat::F16), 2 * per_slab);
    assert!(!slabs.could_allocate(PageFormat::F16, 1) && slabs.take_surplus().is_none(), "all are in use");
    pages[per_slab..].iter().for_each(|offset| slabs.free(*offset));
    assert_eq!(slabs.bytes_held(), slab);
    assert!(slabs.could_allocate(PageFormat::F16, per_slab) && !slabs.could_allocate(PageFormat::F16, per_slab + 1));
    let surplus: Vec<_> = std::iter::from_fn(|| slabs.take_surplus()).collect();
    assert_eq!(surplus.iter().map(ExactSizeIterator::len).sum::<usize>(), (40 << 20) - 2 * slab);
    let again: Vec<usize> = std::iter::from_fn(|| slabs.allocate(PageFormat::F16)).collect();
    assert_eq!(again.len(), per_slab);
    assert_eq!(again[0], slab, "memory that was kept is used before any that must be had anew");
    slabs.set_limit(usize::MAX);
    assert_eq!(std::iter::from_fn(|| slabs.allocate(PageFormat::F16)).count(), pages.len() - 2 * per_slab);
}
