//! The cache as the engine uses it, on a tiny shape.

use std::ops::{Deref, DerefMut};
use std::path::Path;

use ruvllm_runner::{FakeRunner, PageFormat, Runner};

use super::*;
use crate::disk::PageKey;

const SHAPE: KvShape = KvShape::new(1, 1, 16);

/// A cache with the bytes of its pages. As an engine does, it saves what is cached when it is dropped.
struct TestCache {
    cache: KvCache,
    bytes: FakeRunner,
}

impl TestCache {
    fn new(options: &KvOptions) -> Self {
        let mut bytes = FakeRunner::new(SHAPE, 1, 1024, 1);
        bytes.reserve_pages(options.page_memory_bytes(SHAPE), options.rotation);
        Self { cache: KvCache::new(SHAPE, options), bytes }
    }

    fn match_prefix(&mut self, namespace: Namespace, tokens: &[u32], spare: usize) -> Result<PrefixMatch, OutOfPages> {
        self.cache.match_prefix(namespace, tokens, Some(0), spare, &mut self.bytes)
    }

    fn release(&mut self, namespace: Option<Namespace>, tokens: &[u32], table: PageTable) {
        self.cache.release(namespace.map(Into::into), tokens, table, &mut self.bytes);
    }

    fn extend(&mut self, table: &mut PageTable, tokens: usize) -> Result<(), OutOfPages> {
        self.cache.extend(namespace(), table, tokens, &mut self.bytes)
    }

    fn save(&mut self) -> usize {
        self.cache.save(usize::MAX, &mut self.bytes)
    }
}

impl Deref for TestCache {
    type Target = KvCache;

    fn deref(&self) -> &KvCache {
        &self.cache
    }
}

impl DerefMut for TestCache {
    fn deref_mut(&mut self) -> &mut KvCache {
        &mut self.cache
    }
}

impl Drop for TestCache {
    fn drop(&mut self) {
        self.save();
    }
}

fn cache(pages: usize) -> TestCache {
    let budget_bytes = PageMap::budget_for(SHAPE, PageFormat::F16, pages);
    TestCache::new(&KvOptions { budget_bytes, ..KvOptions::new(Tiers::uniform(PageFormat::F16)) })
}

fn namespace() -> Namespace {
    Namespace::of(&[b"test"])
}

/// Runs a text to its end; gives how much of it was cached.
fn run(cache: &mut TestCache, tokens: &[u32]) -> Option<usize> {
    run_in(namespace(), cache, tokens)
}

fn run_in(namespace: Namespace, cache: &mut TestCache, tokens: &[u32]) -> Option<usize> {
    let start = cache.match_prefix(namespace, tokens, 1).ok()?;
    cache.release(Some(namespace), tokens, start.table);
    Some(start.tokens)
}

#[test]
fn a_text_is_computed_once() {
    let mut cache = cache(32);
    let text: Vec<u32> = (0..100).collect();
    assert_eq!(run(&mut cache, &text), Some(0));
    assert_eq!(run(&mut cache, &text), Some(99), "the last token is always computed");
    assert_eq!(run(&mut cache, &text[..50]), Some(49));
    let stats = cache.stats();
    assert_eq!((stats.lookups.lookups, stats.lookups.misses, stats.lookups.full), (3, 1, 2));
    assert_eq!(stats.lookups.tokens_saved, 99 + 49);
    assert_eq!(stats.pages, stats.cached_pages);
    cache.audit([].into_iter()).unwrap();
}

#[test]
fn cached_texts_make_room_and_running_ones_do_not() {
    let mut cache = cache(10);
    let text = |first: u32, len: u32| (first..first + len).collect::<Vec<u32>>();
    let running = cache.match_prefix(namespace(), &text(0, 64), 0).unwrap();
    assert_eq!(run(&mut cache, &text(1000, 64)), Some(0));
    assert_eq!(run(&mut cache, &text(2000, 64)), Some(0), "the text before makes room");
    assert!(cache.stats().evicted_pages > 0);
    assert_eq!(run(&mut cache, &text(3000, 7 * 16)), None, "there are six pages left beside the running text");
    assert!(cache.stats().cached_pages > 0, "what would not do is not given up");
    cache.audit([&running.table].into_iter()).unwrap();
    cache.release(None, &[], running.table);
    assert_eq!(run(&mut cache, &text(3000, 7 * 16)), Some(0));
    cache.audit([].into_iter()).unwrap();
}

#[test]
fn a_failed_extension_changes_nothing() {
    let mut cache = cache(4);
    let mut table = PageTable::default();
    cache.extend(&mut table, 40).unwrap();
    assert_eq!(cache.extend(&mut table, 100), Err(OutOfPages { needed: 4 }));
    assert_eq!((table.pages().len(), cache.stats().pages), (3, 3));
    cache.extend(&mut table, 64).unwrap();
    cache.audit([&table].into_iter()).unwrap();
}

fn with_disk(folder: &Path) -> TestCache {
    let disk = Some(DiskStore::open(folder, 1 << 20, PageKey::new(&[1; 32])).unwrap());
    let options = KvOptions { budget_bytes: 1 << 20, disk, ..KvOptions::new(Tiers::uniform(PageFormat::Q8)) };
    TestCache::new(&options)
}

/// Begins a text with what is on disk of it, loads that, and ends it without a trace in memory; gives the pages loaded.
fn load(cache: &mut TestCache, tokens: &[u32]) -> usize {
    let mut start = cache.match_prefix(namespace(), tokens, 1).unwrap();
    let pages = start.on_disk.len();
    for hash in start.on_disk {
        assert!(cache.cache.load(namespace(), &mut start.table, hash, &mut cache.bytes));
    }
    cache.audit([&start.table].into_iter()).unwrap();
    cache.release(None, &[], start.table);
    pages
}

#[test]
fn pages_outlive_the_process_on_disk() {
    let text: Vec<u32> = (0..100).collect();
    for is_killed in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let mut cache = with_disk(folder.path());
        run(&mut cache, &text);
        if is_killed {
            assert_eq!(cache.save(), 0);
            std::mem::forget(cache);
        } else {
            drop(cache);
        }
        let mut cache = with_disk(folder.path());
        assert_eq!(load(&mut cache, &text), 6, "the unfilled last page is not looked for");
        assert_eq!(cache.stats().disk.unwrap().read, 6);
    }
}

#[test]
fn a_disk_that_fails_is_left_alone_and_nothing_else_changes() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("kv");
    let mut cache = with_disk(&folder);
    std::fs::remove_dir_all(&folder).unwrap();
    std::fs::write(&folder, b"not a folder").unwrap();
    let text: Vec<u32> = (0..100).collect();
    assert_eq!(run(&mut cache, &text), Some(0));
    assert_eq!(cache.save(), 0);
    let disk = cache.stats().disk.unwrap();
    assert_eq!((disk.pages, disk.is_paused), (0, true));
    assert_eq!(run(&mut cache, &text), Some(99), "what is in memory is still there");
    let other: Vec<u32> = (1000..1100).collect();
    assert_eq!(run(&mut cache, &other), Some(0));
    cache.audit([].into_iter()).unwrap();
}

#[test]
fn pages_stay_on_disk_where_computing_them_is_faster() {
    let folder = tempfile::tempdir().unwrap();
    let text: Vec<u32> = (0..100).collect();
    run(&mut with_disk(folder.path()), &text);
    let mut cache = with_disk(folder.path());
    cache.set_token_time(Duration::from_nanos(1));
    assert_eq!(load(&mut cache, &text), 6, "nothing is known of the disk");
    assert_eq!((load(&mut cache, &text), cache.stats().disk.unwrap().skipped), (0, 6));
    let tries = (0..1000).filter(|_| load(&mut cache, &text) > 0).count();
    assert!((1..500).contains(&tries), "now and then it is tried again, {tries} times");
    cache.set_token_time(Duration::from_secs(1));
    assert_eq!(load(&mut cache, &text), 6);
}

#[test]
fn what_is_guaranteed_to_a_tenant_survives_the_load_of_others() {
    let mut cache = cache(40);
    let page = cache.map().page_bytes(PageFormat::F16);
    let [quiet, busy] = [b"quiet", b"busy!"].map(|name| Namespace::of(&[name]));
    let account = cache.open_account(Quota { guaranteed_bytes: 10 * page, limit_bytes: None });
    cache.assign(quiet, account);
    let text = |first: u32, len: u32| (first..first + len).collect::<Vec<u32>>();
    assert_eq!(run_in(quiet, &mut cache, &text(0, 12 * 16)), Some(0));
    for round in 1..50 {
        assert_eq!(run_in(busy, &mut cache, &text(round * 1000, 20 * 16)), Some(0));
        cache.cache.maintain(&mut cache.bytes);
    }
    assert_eq!(cache.cached_bytes(account), 10 * page, "what goes beyond the guarantee is anyone's");
    assert_eq!(run_in(quiet, &mut cache, &text(0, 160)), Some(159));
    let others = cache.pages_max(quiet) - cache.pages_max(busy);
    assert_eq!(others, 11, "no request of others can be that large");
    assert_eq!(run_in(busy, &mut cache, &text(77_000, 31 * 16)), None);
    assert!(cache.stats().cached_pages > 20, "what would not do is not given up");
    for round in 1..10 {
        assert_eq!(run_in(quiet, &mut cache, &text(round * 9000, 12 * 16)), Some(0), "its own load may take it");
    }
    cache.audit([].into_iter()).unwrap();
}

#[test]
fn a_tenant_with_a_limit_keeps_what_is_worth_most_within_it() {
    let mut cache = cache(40);
    let page = cache.map().page_bytes(PageFormat::F16);
    let account = cache.open_account(Quota { guaranteed_bytes: 0, limit_bytes: Some(6 * page) });
    cache.assign(namespace(), account);
    let text = |first: u32, len: u32| (first..first + len).collect::<Vec<u32>>();
    for round in 0..10 {
        run(&mut cache, &text(round * 1000, 4 * 16));
        assert!(cache.cached_bytes(account) <= 6 * page);
        assert_eq!(run(&mut cache, &text(0, 33)), Some(32), "what is used stays");
    }
    run(&mut cache, &text(50_000, 15 * 16));
    assert_eq!(cache.cached_bytes(account), 6 * page, "a text that is longer alone is kept in part");
    cache.audit([].into_iter()).unwrap();
}

#[test]
fn notes_are_part_of_the_budget() {
    let mut options = KvOptions { sidecar_bytes: 40, ..KvOptions::new(Tiers::uniform(PageFormat::F16)) };
    options.budget_bytes = options.budget_for(SHAPE, 20);
    let mut cache = TestCache::new(&options);
    assert!(cache.pages_max(namespace()) >= 20, "there is room for what was asked for");
    let mut table = PageTable::default();
    let tokens = cache.pages_max(namespace()) * PAGE_TOKENS;
    cache.extend(&mut table, tokens).unwrap();
    (0..tokens).for_each(|token| cache.sidecar_mut(&table, token).expect("every page has room for notes").fill(1));
    let stats = cache.stats();
    assert_eq!(stats.sidecar_bytes, tokens * 40);
    assert!(stats.used_bytes + stats.sidecar_bytes <= options.budget_bytes, "{stats:?}");
    cache.release(None, &[], table);
}
