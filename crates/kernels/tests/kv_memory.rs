//! Pages come and go, are copied, converted, saved and restored: never two in one place, never more than the budget.

mod support;

use std::collections::BTreeMap;
use std::ops::Range;

use ruvllm_kernels::ops::{
    Batch, BatchError, ConvertError, KeyFormat, KvMemory, KvShape, PageFormat, PageId, RestoreError, Rotation,
    SequenceRows, ValueFormat,
};
use ruvllm_kernels::{KernelSet, Pool};
use support::{Random, pages};

const SHAPE: KvShape = KvShape { layers: 3, kv_heads: 2, head_dim: 80 };
const COLD: PageFormat = PageFormat { keys: KeyFormat::Q4, values: ValueFormat::Q4 };

fn memory(pool: &Pool, budget: usize) -> KvMemory {
    KvMemory::new(pool, SHAPE, Rotation::None, budget)
}

/// Where a page's bytes are in this process.
fn range(kv: &mut KvMemory, page: PageId) -> Range<usize> {
    let bytes = kv.bytes(page).as_ptr_range();
    bytes.start.addr()..bytes.end.addr()
}

/// What must hold of a memory in which these pages are in use.
fn check(kv: &mut KvMemory, used: &BTreeMap<PageId, (PageFormat, u8)>) {
    let mut bytes = 0;
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (page, (format, content)) in used {
        assert_eq!(kv.format(*page), *format);
        let size = pages::page_bytes(*format, SHAPE);
        assert_eq!(kv.page_bytes(*format), size);
        bytes += size;
        if format.is_appendable() {
            assert!(kv.bytes(*page).iter().all(|byte| byte == content), "{page} was overwritten");
        }
        assert!(kv.bytes(*page).as_ptr().addr().is_multiple_of(64));
        ranges.push(range(kv, *page));
    }
    ranges.sort_by_key(|range| range.start);
    assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "pages overlap");
    assert_eq!((kv.bytes_in_use(), kv.pages_in_use()), (bytes, used.len()));
    assert!(kv.bytes_in_use() <= kv.bytes_held() && kv.bytes_held() <= kv.bytes_budget());
    for format in PageFormat::all() {
        assert_eq!(kv.pages_of(format), used.values().filter(|(of, _)| *of == format).count());
    }
}

#[test]
fn any_sequence_of_changes_keeps_pages_apart_and_the_accounts_exact() {
    let formats: Vec<PageFormat> = PageFormat::all().collect();
    for seed in 0..6 {
        let mut random = Random(seed);
        let mut pool = Pool::new(1 + random.below(3), KernelSet::best());
        let mut kv = memory(&pool, (17 << 20) + 4321 * seed as usize);
        let mut used: BTreeMap<PageId, (PageFormat, u8)> = BTreeMap::new();
        for step in 0..600 {
            let pick = |random: &mut Random| used.keys().copied().nth(random.below(used.len().max(1)));
            // Phases of growing and of shrinking.
            let grows = random.below(10) < if step / 100 % 2 == 0 { 7 } else { 3 };
            match random.below(4) {
                0 | 1 if grows => {
                    for _ in 0..random.below(60) {
                        let format = formats[random.below(formats.len())];
                        let could = kv.could_allocate(format, 1);
                        let page = kv.allocate(format);
                        assert_eq!(page.is_some(), could);
                        let Some(page) = page else { break };
                        let content = random.next() as u8;
                        kv.restore(page, &vec![content; kv.page_bytes(format)]).unwrap();
                        assert_eq!(used.insert(page, (format, content)), None, "{page} was given out twice");
                    }
                }
                0 | 1 => {
                    for _ in 0..random.below(60) {
                        let Some(page) = used.keys().copied().nth(random.below(used.len().max(1))) else { break };
                        kv.free(page);
                        used.remove(&page);
                    }
                }
                2 => {
                    let (Some(from), Some(to)) = (pick(&mut random), pick(&mut random)) else { continue };
                    if used[&from].0 == used[&to].0 && from != to {
                        kv.copy(from, to);
                        used.insert(to, used[&from]);
                    }
                }
                _ => convert_some(&mut random, &mut pool, &mut kv, &mut used),
            }
            if step % 20 == 0 {
                check(&mut kv, &used);
            }
        }
        used.keys().for_each(|page| kv.free(*page));
        check(&mut kv, &BTreeMap::new());
        assert_eq!(kv.bytes_held(), 0);
    }
}

fn convert_some(
    random: &mut Random,
    pool: &mut Pool,
    kv: &mut KvMemory,
    used: &mut BTreeMap<PageId, (PageFormat, u8)>,
) {
    let to = [PageFormat::Q8, COLD][random.below(2)];
    let chosen: Vec<PageId> = used
        .iter()
        .filter(|(_, (format, _))| format.is_appendable() && format.can_become(to))
        .map(|(page, _)| *page)
        .filter(|_| random.below(3) == 0)
        .collect();
    // Sensible numbers: conversion reads them.
    for page in &chosen {
        let bytes = vec![0x11; kv.page_bytes(used[page].0)];
        kv.restore(*page, &bytes).unwrap();
        used.get_mut(page).unwrap().1 = 0x11;
    }
    match kv.convert(pool, &chosen, to) {
        Ok(_) => {}
        Err(ConvertError::NoRoom { .. }) => assert!(!kv.could_allocate(to, 1)),
        Err(error) => panic!("{error}"),
    }
    for page in &chosen {
        let format = kv.format(*page);
        // What a converted page holds is another test's business.
        let content = if format == used[page].0 { 0x11 } else { 0x22 };
        if content == 0x22 {
            kv.restore(*page, &vec![0x22; kv.page_bytes(format)]).unwrap();
        }
        used.insert(*page, (format, content));
    }
}

#[test]
fn memory_freed_by_one_format_serves_another() {
    let mut pool = Pool::new(2, KernelSet::Scalar);
    let mut kv = memory(&pool, 20 << 20);
    let hot: Vec<PageId> = std::iter::from_fn(|| kv.allocate(PageFormat::F16)).collect();
    assert_eq!(hot.len() * kv.page_bytes(PageFormat::F16) / (1 << 20), 19);
    assert_eq!(kv.allocate(COLD), None);
    hot.iter().for_each(|page| kv.free(*page));
    let cold: Vec<PageId> = std::iter::from_fn(|| kv.allocate(COLD)).collect();
    assert!(cold.len() > 3 * hot.len());
    cold.iter().for_each(|page| kv.free(*page));
    // A quarter is left free: enough to convert all, some at a time.
    let hot: Vec<PageId> = (0..hot.len() * 3 / 4).map(|_| kv.allocate(PageFormat::F16).unwrap()).collect();
    assert_eq!(kv.convert(&mut pool, &hot, COLD), Ok(hot.len()));
    assert_eq!(kv.bytes_in_use(), hot.len() * kv.page_bytes(COLD));
}

#[test]
fn refusals_change_nothing() {
    let mut pool = Pool::new(1, KernelSet::Scalar);
    let mut kv = memory(&pool, 1 << 20);
    let hot: Vec<PageId> = std::iter::from_fn(|| kv.allocate(PageFormat::F16)).collect();
    let before = (kv.bytes_in_use(), kv.pages_in_use(), kv.bytes(hot[0]).to_vec());
    let no_room = ConvertError::NoRoom { to: PageFormat::Q8, converted: 0 };
    assert_eq!(kv.convert(&mut pool, &hot, PageFormat::Q8), Err(no_room));
    let size = kv.page_bytes(PageFormat::F16);
    let wrong = kv.restore(hot[0], &[1; 64]);
    assert_eq!(wrong, Err(RestoreError { expected: size, got: 64 }));
    assert_eq!(before, (kv.bytes_in_use(), kv.pages_in_use(), kv.bytes(hot[0]).to_vec()));

    hot.iter().for_each(|page| kv.free(*page));
    let (warm, cold) = (kv.allocate(PageFormat::Q8).unwrap(), PageFormat::F16);
    let refused = ConvertError::Warmer { page: warm, from: PageFormat::Q8, to: cold };
    assert_eq!(kv.convert(&mut pool, &[warm], cold), Err(refused));
    assert_eq!(kv.format(warm), PageFormat::Q8);
}

#[test]
fn pages_that_are_not_in_use_are_told_apart() {
    let pool = Pool::new(1, KernelSet::Scalar);
    let mut kv = memory(&pool, 8 << 20);
    let (page, other) = (kv.allocate(PageFormat::F16).unwrap(), kv.allocate(PageFormat::F16).unwrap());
    let batch = |kv: &KvMemory| {
        let sequence = SequenceRows { rows: 0..1, start: 0, pages: &[page] };
        Batch::new(vec![sequence], kv).map(|batch| batch.rows())
    };
    assert_eq!(batch(&kv), Ok(1));
    kv.free(page);
    assert_eq!(batch(&kv), Err(BatchError::NoSuchPage(page)));
    let freed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| kv.free(page)));
    assert!(freed.is_err());
    // The number comes again, for another page.
    assert_eq!(kv.allocate(COLD), Some(page));
    assert_eq!(batch(&kv), Err(BatchError::PageNotAppendable(page)));
    let differ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| kv.copy(page, other)));
    assert!(differ.is_err());
}

#[test]
fn a_page_larger_than_a_huge_page_finds_its_place() {
    let shape = KvShape { layers: 80, kv_heads: 8, head_dim: 128 };
    let pool = Pool::new(1, KernelSet::Scalar);
    for format in [PageFormat::F16, PageFormat::Q8, COLD] {
        for count in [1, 3, 40] {
            let budget = KvMemory::budget_for(shape, format, count);
            let mut kv = KvMemory::new(&pool, shape, Rotation::None, budget);
            assert!(kv.page_bytes(format) > 1 << 20);
            let pages = std::iter::from_fn(|| kv.allocate(format)).count();
            assert_eq!(pages, count);
            assert!(budget < (count + 1) * kv.page_bytes(format) + budget / 8);
        }
    }
}
