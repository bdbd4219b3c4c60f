//! The KV memory of a model: pages of running sequences and of cached prefixes, in memory and on disk.
//!
//! A page that the prefix tree holds is never written again. Sequences write only to pages that are theirs alone.

mod begin;
mod relief;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use ruvllm_kernels::Pool;
use ruvllm_kernels::ops::{KvMemory, KvShape, PAGE_TOKENS, PageFormat, PageId, Rotation};

pub use self::begin::Start;
use crate::accounts::{AccountId, Accounts, Quota};
use crate::disk::{DiskStore, DiskTier};
use crate::notes::Notes;
use crate::pages::Pages;
use crate::prefix::{Namespace, PageHash, PrefixTree};
use crate::stats::{CacheStats, LookupStats};
use crate::tiers::Tiers;

/// What the operator decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvOptions {
    pub budget_bytes: usize,
    pub tiers: Tiers,
    /// The basis in which keys and values are stored.
    pub rotation: Rotation,
    /// Bytes that whoever runs the model keeps about each token, beside its keys and values and within the same budget.
    pub note_bytes: usize,
    /// Where pages go that leave memory or should outlive the process.
    pub disk: Option<DiskStore>,
}

impl KvOptions {
    /// No memory yet, no rotation, no notes, no disk.
    pub fn new(tiers: Tiers) -> Self {
        Self { budget_bytes: 0, tiers, rotation: Rotation::None, note_bytes: 0, disk: None }
    }

    /// The budget in which so many hot pages fit, with the notes on them.
    pub fn budget_for(&self, shape: KvShape, pages: usize) -> usize {
        let bytes = KvMemory::budget_for(shape, self.tiers.hot, pages);
        bytes + bytes.div_ceil(shape.page_bytes(self.tiers.cold)) * self.note_bytes * PAGE_TOKENS
    }

    /// Pages of the budget that can have notes: as many as there can be at all, if all were cold.
    fn noted_pages(&self, shape: KvShape) -> usize {
        let (page_bytes, note_bytes) = (shape.page_bytes(self.tiers.cold), self.note_bytes * PAGE_TOKENS);
        if note_bytes == 0 { 0 } else { self.budget_bytes / (page_bytes + note_bytes) }
    }
}

/// The pages of one sequence, in the order of its tokens.
#[derive(Debug, Default)]
pub struct PageTable {
    pages: Vec<PageId>,
    /// Tokens up to which pages have the format of their age.
    aged_tokens: usize,
    /// Tokens up to which the prefix tree knows the sequence.
    kept_tokens: usize,
}

impl PageTable {
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }

    /// Tokens that fit into the pages held.
    pub fn capacity_tokens(&self) -> usize {
        self.pages.len() * PAGE_TOKENS
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the KV memory has no room for {needed} pages more")]
pub struct OutOfPages {
    pub needed: usize,
}

/// A page of the prefix tree.
#[derive(Clone, Copy, Debug)]
struct Cached {
    hash: PageHash,
    account: AccountId,
}

/// All pages of a model, and whose they are.
#[derive(Debug)]
pub struct KvCache {
    pages: Pages,
    /// The budget at first, and what of it is for keys and values: the rest is for notes.
    budget_bytes: usize,
    memory_bytes: usize,
    tree: PrefixTree,
    disk: Option<DiskTier>,
    /// What computing a token takes, once somebody has told.
    token_time: Option<Duration>,
    tiers: Tiers,
    /// What is known of each page that the tree holds, by its number.
    cached: Vec<Option<Cached>>,
    /// Pages of the tree that are not on disk yet.
    unsaved: VecDeque<PageId>,
    /// Whose pages the tree holds, and which of them can be had for others because no sequence uses them.
    accounts: Accounts,
    is_under_pressure: bool,
    lookups: HashMap<Namespace, LookupStats>,
    evicted_pages: u64,
    cooled_pages: u64,
}

impl KvCache {
    /// Memory for the threads of `pool`.
    pub fn new(pool: &Pool, shape: KvShape, options: &KvOptions) -> Self {
        let noted_pages = options.noted_pages(shape);
        let for_notes = noted_pages * options.note_bytes * PAGE_TOKENS;
        let memory = KvMemory::new(pool, shape, options.rotation, options.budget_bytes - for_notes);
        Self {
            budget_bytes: options.budget_bytes,
            memory_bytes: memory.bytes_budget(),
            pages: Pages::new(memory, Notes::new(options.note_bytes, noted_pages)),
            tree: PrefixTree::new(),
            disk: options.disk.clone().map(DiskTier::new),
            token_time: None,
            tiers: options.tiers,
            cached: Vec::new(),
            unsaved: VecDeque::new(),
            accounts: Accounts::default(),
            is_under_pressure: false,
            lookups: HashMap::new(),
            evicted_pages: 0,
            cooled_pages: 0,
        }
    }

    pub fn memory(&self) -> &KvMemory {
        self.pages.memory()
    }

    pub fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    /// Pages that `tokens` tokens take.
    pub fn pages_for(tokens: usize) -> usize {
        tokens.div_ceil(PAGE_TOKENS)
    }

    /// Hot pages that a sequence can have at most: those of the budget that are not guaranteed to other accounts.
    pub fn pages_max(&self, namespace: Namespace) -> usize {
        let (account, page_bytes) = (self.accounts.of(namespace), self.memory().page_bytes(self.tiers.hot));
        let pages_max = self.memory().pages_max(self.tiers.hot);
        pages_max.saturating_sub(self.accounts.pages_guaranteed_to_others(account, page_bytes))
    }

    /// Opens an account for the cached pages of some namespaces.
    pub fn open_account(&mut self, quota: Quota) -> AccountId {
        self.accounts.open(quota)
    }

    /// Charges what is cached in a namespace from now on to an account.
    pub fn assign(&mut self, namespace: Namespace, account: AccountId) {
        self.accounts.assign(namespace, account);
    }

    /// Bytes of the cached pages of an account.
    pub fn cached_bytes(&self, account: AccountId) -> usize {
        self.accounts.cached_bytes(account)
    }

    /// Gives `table` room for `tokens` tokens in all, or changes nothing of it. Cached prefixes make room.
    pub fn extend(&mut self, namespace: Namespace, table: &mut PageTable, tokens: usize) -> Result<(), OutOfPages> {
        let asking = self.accounts.of(namespace);
        let held = table.pages.len();
        let needed = Self::pages_for(tokens).saturating_sub(held);
        for _ in 0..needed {
            let Some(page) = self.take_page(self.tiers.hot, asking) else {
                table.pages.drain(held..).for_each(|page| self.release(page));
                return Err(OutOfPages { needed });
            };
            table.pages.push(page);
        }
        Ok(())
    }

    /// A page, made free by giving up cached ones if it must be.
    fn take_page(&mut self, format: PageFormat, asking: AccountId) -> Option<PageId> {
        loop {
            if let Some(page) = self.pages.take(format) {
                return Some(page);
            }
            self.give_up_page(Some(asking))?;
        }
    }

    /// Lets others find the filled pages of a sequence whose first tokens, all of them computed, are `tokens`.
    pub fn keep(&mut self, namespace: Namespace, tokens: &[u32], table: &mut PageTable) {
        let filled = tokens.len() / PAGE_TOKENS * PAGE_TOKENS;
        if filled > table.kept_tokens {
            self.insert(namespace, &tokens[..filled], table);
            table.kept_tokens = filled;
        }
    }

    /// Takes back the pages of a sequence that has ended. With a namespace, others find them.
    pub fn end(&mut self, namespace: Option<Namespace>, tokens: &[u32], table: PageTable) {
        if let Some(namespace) = namespace {
            self.insert(namespace, tokens, &table);
        }
        table.pages.into_iter().for_each(|page| self.release(page));
        if let Some(namespace) = namespace {
            self.keep_within_limit(self.accounts.of(namespace));
        }
    }

    fn insert(&mut self, namespace: Namespace, tokens: &[u32], table: &PageTable) {
        let change = self.tree.insert(namespace, tokens, &table.pages[..Self::pages_for(tokens.len())]);
        let account = self.accounts.of(namespace);
        for (page, hash) in change.taken {
            self.share(page);
            let at = page.0 as usize;
            if at >= self.cached.len() {
                self.cached.resize(at + 1, None);
            }
            self.cached[at] = Some(Cached { hash, account });
            self.accounts.add_cached(account, self.page_bytes(page));
            if self.disk.is_some() {
                self.unsaved.push_back(page);
            }
        }
        change.dropped.into_iter().for_each(|page| self.drop_cached(page));
        self.keep_within_limit(account);
    }

    /// Gives up the tree's hold of a page.
    fn drop_cached(&mut self, page: PageId) {
        let bytes = self.page_bytes(page);
        if let Some(account) = self.idle_account(page) {
            self.accounts.remove_idle(account, bytes);
        }
        if let Some(cached) = self.cached[page.0 as usize].take() {
            self.accounts.remove_cached(cached.account, bytes);
        }
        self.pages.release(page);
    }

    /// Adds a user to a page that has one.
    fn share(&mut self, page: PageId) {
        if let Some(account) = self.idle_account(page) {
            self.accounts.remove_idle(account, self.page_bytes(page));
        }
        self.pages.share(page);
    }

    /// Takes a sequence's use of a page away.
    fn release(&mut self, page: PageId) {
        let bytes = self.page_bytes(page);
        self.pages.release(page);
        if let Some(account) = self.idle_account(page) {
            self.accounts.add_idle(account, bytes);
        }
    }

    /// Room for a note on a token of a sequence, if it may have one. Panics if the token's page is cached already.
    pub fn note_mut(&mut self, table: &PageTable, token: usize) -> Option<&mut [u8]> {
        self.pages.note_mut(table.pages[token / PAGE_TOKENS], token % PAGE_TOKENS)
    }

    /// The note on a token of a sequence; none, or all zero, if nobody wrote any.
    pub fn note(&self, table: &PageTable, token: usize) -> Option<&[u8]> {
        self.pages.notes().token(table.pages[token / PAGE_TOKENS], token % PAGE_TOKENS)
    }

    fn cached(&self, page: PageId) -> Option<Cached> {
        self.cached.get(page.0 as usize).copied().flatten()
    }

    /// Whose page it is, if only the prefix tree holds it.
    fn idle_account(&self, page: PageId) -> Option<AccountId> {
        self.cached(page).filter(|_| self.pages.users(page) == 1).map(|cached| cached.account)
    }

    fn page_bytes(&self, page: PageId) -> usize {
        self.memory().page_bytes(self.memory().format(page))
    }

    /// Puts the pages of a sequence of `tokens` tokens into the format of their age.
    pub fn age(&mut self, pool: &mut Pool, table: &mut PageTable, tokens: usize) {
        self.age_in(&self.tiers.clone(), pool, table, tokens);
    }

    /// The same in other tiers, for measurements.
    pub fn age_in(&mut self, tiers: &Tiers, pool: &mut Pool, table: &mut PageTable, tokens: usize) {
        let mut by_format: Vec<(_, Vec<PageId>)> = Vec::new();
        for (page, format) in tiers.aged(table.aged_tokens, tokens) {
            let page = table.pages[page];
            // A page that others share may be colder than it need be.
            if !self.memory().format(page).can_become(format) || self.memory().format(page) == format {
                continue;
            }
            match by_format.iter_mut().find(|(of, _)| *of == format) {
                Some((_, pages)) => pages.push(page),
                None => by_format.push((format, vec![page])),
            }
        }
        table.aged_tokens = tokens;
        for (format, pages) in by_format {
            self.cool(pool, &pages, format);
        }
    }

    /// Puts different pages into a colder format as far as there is room to do so, and the books right; tells how many.
    fn cool(&mut self, pool: &mut Pool, pages: &[PageId], to: PageFormat) -> usize {
        let before: Vec<usize> = pages.iter().map(|page| self.page_bytes(*page)).collect();
        let cooled = self.pages.convert(pool, pages, to);
        for (page, before) in pages.iter().zip(before) {
            let saved = before - self.page_bytes(*page);
            if let Some(cached) = self.cached(*page) {
                self.accounts.remove_cached(cached.account, saved);
            }
            if let Some(account) = self.idle_account(*page) {
                self.accounts.remove_idle(account, saved);
            }
        }
        self.cooled_pages += cooled as u64;
        cooled
    }

    /// Changes the format of cold pages and the basis of all, as long as nothing is cached.
    pub fn set_cold(&mut self, cold: PageFormat, rotation: Rotation) {
        self.pages.set_rotation(rotation);
        self.tiers.cold = cold;
    }

    /// Keeps a cached prefix in memory until it is unpinned; gives its length.
    pub fn pin(&mut self, namespace: Namespace, tokens: &[u32]) -> usize {
        self.tree.pin(namespace, tokens)
    }

    pub fn unpin(&mut self, namespace: Namespace, tokens: &[u32]) {
        self.tree.unpin(namespace, tokens);
    }

    pub fn stats(&self) -> CacheStats {
        let memory = self.memory();
        let mut pages_by_format = [0; PageFormat::COUNT];
        for (pages, format) in pages_by_format.iter_mut().zip(PageFormat::all()) {
            *pages = memory.pages_of(format);
        }
        CacheStats {
            lookups: self.lookups.values().copied().sum(),
            budget_bytes: memory.bytes_budget(),
            used_bytes: memory.bytes_in_use(),
            held_bytes: memory.bytes_held(),
            bookkeeping_bytes: self.tree.bookkeeping_bytes(),
            note_bytes: self.pages.notes().bytes(),
            pages: memory.pages_in_use(),
            cached_pages: self.tree.pages(),
            pages_by_format,
            evicted_pages: self.evicted_pages,
            regretted_pages: self.tree.regretted(),
            cooled_pages: self.cooled_pages,
            disk: self.disk.as_ref().map(DiskTier::stats),
        }
    }

    /// Look-ups of one namespace.
    pub fn lookups_of(&self, namespace: Namespace) -> LookupStats {
        self.lookups.get(&namespace).copied().unwrap_or_default()
    }
}

/// What is cached outlives the process, where there is a disk tier.
impl Drop for KvCache {
    fn drop(&mut self) {
        self.save(usize::MAX);
    }
}

impl KvCache {
    pub fn users(&self, page: PageId) -> u32 {
        self.pages.users(page)
    }

    /// Checks the books against each other and against the tables of all running sequences. For tests: it looks at every
    /// page.
    pub fn audit<'a>(&self, tables: impl Iterator<Item = &'a PageTable>) -> Result<(), String> {
        let mut users: HashMap<PageId, u32> = HashMap::new();
        for page in tables.flat_map(|table| &table.pages) {
            *users.entry(*page).or_default() += 1;
        }
        let mut idle_bytes = 0;
        let mut cached = 0;
        let mut cached_bytes: HashMap<AccountId, usize> = HashMap::new();
        for (at, entry) in self.cached.iter().enumerate().filter_map(|(at, cached)| Some((at, (*cached)?))) {
            let page = PageId(at as u32);
            cached += 1;
            *cached_bytes.entry(entry.account).or_default() += self.page_bytes(page);
            if !users.contains_key(&page) {
                idle_bytes += self.page_bytes(page);
            }
            *users.entry(page).or_default() += 1;
        }
        let expect = |what: &str, got: usize, expected: usize| {
            if got == expected { Ok(()) } else { Err(format!("{what}: {got} instead of {expected}")) }
        };
        expect("cached pages", self.tree.pages(), cached)?;
        expect("bytes that only the tree holds", self.accounts.idle_bytes(), idle_bytes)?;
        for (account, bytes) in cached_bytes {
            expect(&format!("bytes of {account:?}"), self.cached_bytes(account), bytes)?;
        }
        expect("pages in use", self.memory().pages_in_use(), users.len())?;
        let bytes = users.keys().map(|page| self.page_bytes(*page)).sum();
        expect("bytes in use", self.memory().bytes_in_use(), bytes)?;
        for (page, users) in users {
            expect(&format!("users of {page:?}"), self.pages.users(page) as usize, users as usize)?;
        }
        if bytes > self.memory().bytes_budget() {
            return Err(format!("{bytes} bytes are in use, more than the budget"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
