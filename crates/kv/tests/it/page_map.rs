//! Pages come and go, are copied, converted, saved and restored: never two in one place, never more than the budget.

use std::collections::BTreeMap;
use std::ops::{Deref, Range};

use ruvllm_kv::{ConvertError, PageMap};
use ruvllm_runner::{FakeRunner, KeyFormat, KvShape, PageBytes, PageFormat, PageId, Rotation, Runner, ValueFormat};

const SHAPE: KvShape = KvShape::new(3, 2, 80);
const COLD: PageFormat = PageFormat::new(KeyFormat::Q4, ValueFormat::Q4);

/// A map with the bytes that it is of.
struct Memory {
    map: PageMap,
    bytes: FakeRunner,
}

impl Memory {
    fn new(shape: KvShape, bytes: usize) -> Self {
        let mut runner = FakeRunner::new(shape, 1, 64, 1);
        runner.reserve_pages(bytes, Rotation::None);
        Self { map: PageMap::new(shape, bytes), bytes: runner }
    }

    fn allocate(&mut self, format: PageFormat) -> Option<PageId> {
        self.map.allocate(format, &mut self.bytes)
    }

    fn free(&mut self, page: PageId) {
        self.map.free(page);
    }

    fn convert(&mut self, pages: &[PageId], to: PageFormat) -> Result<usize, ConvertError> {
        self.map.convert(pages, to, &mut self.bytes)
    }

    fn copy(&mut self, from: PageId, to: PageId) {
        self.map.copy(from, to, &mut self.bytes);
    }

    fn fill(&mut self, page: PageId, content: u8) {
        let range = self.map.range(page);
        self.bytes.write(range.start, &vec![content; range.len()]);
    }

    fn contents(&mut self, page: PageId) -> Vec<u8> {
        self.bytes.read(self.map.range(page)).into_owned()
    }
}

impl Deref for Memory {
    type Target = PageMap;

    fn deref(&self) -> &PageMap {
        &self.map
    }
}

/// Reproducible noise.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    fn below(&mut self, bound: usize) -> usize {
        self.next() as usize % bound
    }
}

fn memory(budget: usize) -> Memory {
    Memory::new(SHAPE, budget)
}

/// What must hold of a memory in which these pages are in use.
fn check(kv: &mut Memory, used: &BTreeMap<PageId, (PageFormat, u8)>) {
    let mut bytes = 0;
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (page, (format, content)) in used {
        assert_eq!(kv.format(*page), *format);
        bytes += kv.page_bytes(*format);
        if format.is_appendable() {
            assert!(kv.contents(*page).iter().all(|byte| byte == content), "{page} was overwritten");
        }
        assert!(kv.range(*page).start.is_multiple_of(64));
        ranges.push(kv.range(*page));
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
        let mut kv = memory((17 << 20) + 4321 * seed as usize);
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
                        kv.fill(page, content);
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
                _ => convert_some(&mut random, &mut kv, &mut used),
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

fn convert_some(random: &mut Random, kv: &mut Memory, used: &mut BTreeMap<PageId, (PageFormat, u8)>) {
    let to = [PageFormat::Q8, COLD][random.below(2)];
    let chosen: Vec<PageId> = used
        .iter()
        .filter(|(_, (format, _))| format.is_appendable() && format.can_become(to))
        .map(|(page, _)| *page)
        .filter(|_| random.below(3) == 0)
        .collect();
    for page in &chosen {
        kv.fill(*page, 0x11);
        used.get_mut(page).unwrap().1 = 0x11;
    }
    match kv.convert(&chosen, to) {
        Ok(_) => {}
        Err(ConvertError::NoRoom { .. }) => assert!(!kv.could_allocate(to, 1)),
        Err(error) => panic!("{error}"),
    }
    for page in &chosen {
        let format = kv.format(*page);
        // What a converted page holds is another test's business.
        let content = if format == used[page].0 { 0x11 } else { 0x22 };
        if content == 0x22 {
            kv.fill(*page, 0x22);
        }
        used.insert(*page, (format, content));
    }
}

#[test]
fn memory_freed_by_one_format_serves_another() {
    let mut kv = memory(20 << 20);
    let hot: Vec<PageId> = std::iter::from_fn(|| kv.allocate(PageFormat::F16)).collect();
    assert_eq!(hot.len() * kv.page_bytes(PageFormat::F16) / (1 << 20), 19);
    assert_eq!(kv.allocate(COLD), None);
    hot.iter().for_each(|page| kv.free(*page));
    let cold: Vec<PageId> = std::iter::from_fn(|| kv.allocate(COLD)).collect();
    assert!(cold.len() > 3 * hot.len());
    cold.iter().for_each(|page| kv.free(*page));
    // A quarter is left free: enough to convert all, some at a time.
    let hot: Vec<PageId> = (0..hot.len() * 3 / 4).map(|_| kv.allocate(PageFormat::F16).unwrap()).collect();
    assert_eq!(kv.convert(&hot, COLD), Ok(hot.len()));
    assert_eq!(kv.bytes_in_use(), hot.len() * kv.page_bytes(COLD));
}

#[test]
fn refusals_change_nothing() {
    let mut kv = memory(1 << 20);
    let hot: Vec<PageId> = std::iter::from_fn(|| kv.allocate(PageFormat::F16)).collect();
    let before = (kv.bytes_in_use(), kv.pages_in_use(), kv.contents(hot[0]));
    let no_room = ConvertError::NoRoom { to: PageFormat::Q8, converted: 0 };
    assert_eq!(kv.convert(&hot, PageFormat::Q8), Err(no_room));
    assert_eq!(before, (kv.bytes_in_use(), kv.pages_in_use(), kv.contents(hot[0])));

    hot.iter().for_each(|page| kv.free(*page));
    let (warm, cold) = (kv.allocate(PageFormat::Q8).unwrap(), PageFormat::F16);
    let refused = ConvertError::Warmer { page: warm, from: PageFormat::Q8, to: cold };
    assert_eq!(kv.convert(&[warm], cold), Err(refused));
    assert_eq!(kv.format(warm), PageFormat::Q8);
}

#[test]
fn pages_that_are_not_in_use_are_told_apart() {
    let mut kv = memory(8 << 20);
    let (page, other) = (kv.allocate(PageFormat::F16).unwrap(), kv.allocate(PageFormat::F16).unwrap());
    kv.free(page);
    let panics = |kv: &mut Memory, change: &dyn Fn(&mut Memory)| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| change(kv))).is_err()
    };
    assert!(panics(&mut kv, &|kv| kv.free(page)));
    assert!(panics(&mut kv, &|kv| _ = kv.location(page)));
    // The number comes again, for another page.
    assert_eq!(kv.allocate(COLD), Some(page));
    assert!(panics(&mut kv, &|kv| kv.copy(page, other)), "formats differ");
}

#[test]
fn a_page_larger_than_a_huge_page_finds_its_place() {
    let shape = KvShape::new(80, 8, 128);
    for format in [PageFormat::F16, PageFormat::Q8, COLD] {
        for count in [1, 3, 40] {
            let budget = PageMap::budget_for(shape, format, count);
            let mut kv = Memory::new(shape, budget);
            assert!(kv.page_bytes(format) > 1 << 20);
            let pages = std::iter::from_fn(|| kv.allocate(format)).count();
            assert_eq!(pages, count);
            assert!(budget < (count + 1) * kv.page_bytes(format) + budget / 8);
        }
    }
}
