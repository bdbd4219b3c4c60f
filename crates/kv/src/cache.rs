//! The KV memory of a model: pages of running sequences and of cached prefixes, in memory and on disk.
//!
//! A page that the prefix tree holds is never written again. Sequences write only to pages that are theirs alone.

mod eviction;
mod match_prefix;
mod snapshots;
mod windows;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use ruvllm_runner::{KvShape, PAGE_TOKENS, PageBytes, PageFormat, PageId, PageLocation, Rotation, StateSlot, TokenId};

pub use self::match_prefix::PrefixMatch;
use crate::accounts::{AccountId, Accounts, Quota};
use crate::disk::{DiskStore, DiskTier};
use crate::events::{CacheEvent, CacheEvents};
use crate::page_map::PageMap;
use crate::pages::Pages;
use crate::prefix::{Namespace, PageHash, PrefixTree, TakenPage, TextNamespaces};
use crate::sidecar::Sidecars;
use crate::states::States;
use crate::stats::{CacheStats, LookupStats};
use crate::tiers::Tiers;

/// What the operator decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvOptions {
    pub budget_bytes: usize,
    pub tiers: Tiers,
    /// The basis in which keys and values are stored.
    pub rotation: Rotation,
    /// Bytes of the sidecar per token, beside its keys and values and within the same budget.
    pub sidecar_bytes: usize,
    /// Slots for recurrent states within the same budget, and the bytes of each (see `reserve_states`).
    pub state_slots: usize,
    pub state_bytes: usize,
    /// Where pages go that leave memory or should outlive the process.
    pub disk: Option<DiskStore>,
}

impl KvOptions {
    /// No memory yet, no rotation, no sidecars, no states, no disk.
    pub fn new(tiers: Tiers) -> Self {
        Self {
            budget_bytes: 0,
            tiers,
            rotation: Rotation::None,
            sidecar_bytes: 0,
            state_slots: 0,
            state_bytes: 0,
            disk: None,
        }
    }

    /// Returns the budget in which `pages` hot pages fit with their sidecars.
    pub fn budget_for(&self, shape: KvShape, pages: usize) -> usize {
        let bytes = PageMap::budget_for(shape, self.tiers.hot, pages);
        bytes + bytes.div_ceil(shape.page_bytes(self.tiers.cold)) * self.sidecar_bytes * PAGE_TOKENS
    }

    /// Bytes of the budget that are for pages: the memory that a runner reserves.
    pub fn page_memory_bytes(&self, shape: KvShape) -> usize {
        self.paged_bytes() - self.pages_with_sidecar(shape) * self.sidecar_bytes * PAGE_TOKENS
    }

    /// Returns how many pages can have a sidecar: as many as fit if all were cold.
    fn pages_with_sidecar(&self, shape: KvShape) -> usize {
        let (page_bytes, sidecar_bytes) = (shape.page_bytes(self.tiers.cold), self.sidecar_bytes * PAGE_TOKENS);
        if sidecar_bytes == 0 { 0 } else { self.paged_bytes() / (page_bytes + sidecar_bytes) }
    }

    /// Bytes of the budget that are for pages and their sidecars.
    fn paged_bytes(&self) -> usize {
        // A budget below one state leaves none, and requests are refused.
        self.budget_bytes.saturating_sub(self.state_slots * self.state_bytes)
    }
}

/// The pages of one sequence, in the order of its tokens.
#[derive(Debug, Default)]
pub struct PageTable {
    pages: Vec<PageId>,
    /// Tokens up to which pages have the format of their age.
    demoted_tokens: usize,
    /// Pages at its beginning that were looked at for trimming.
    trimmed_pages: usize,
    /// Tokens up to which the prefix tree knows the sequence.
    kept_tokens: usize,
    /// Where its recurrent state is, of models that have one.
    state: Option<StateSlot>,
}

impl PageTable {
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }

    pub fn state(&self) -> Option<StateSlot> {
        self.state
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
    is_whole: bool,
    account: AccountId,
}

/// All pages of a model, and whose they are.
#[derive(Debug)]
pub struct KvCache {
    pages: Pages,
    states: States,
    /// Of each.
    state_bytes: usize,
    /// The initial budget, and its part for keys and values; the rest is for sidecars and states.
    budget_bytes: usize,
    memory_bytes: usize,
    tree: PrefixTree,
    disk: Option<DiskTier>,
    /// Time that computing a prompt token takes, once known.
    token_time: Option<Duration>,
    tiers: Tiers,
    /// What is known of each page that the tree holds, by its number.
    cached: Vec<Option<Cached>>,
    /// Pages of the tree that are not on disk yet.
    unsaved: VecDeque<PageId>,
    /// Whose pages the tree holds, and which of them can be had for others because no sequence uses them.
    accounts: Accounts,
    is_under_pressure: bool,
    events: CacheEvents,
    /// Pages of the tree that are filled.
    whole_pages: usize,
    lookups: HashMap<Namespace, LookupStats>,
    evicted_pages: u64,
    cooled_pages: u64,
    trimmed_pages: u64,
}

impl KvCache {
    /// An empty cache. The bytes of its pages, `KvOptions::page_memory_bytes` of them, are handed to whatever reads or
    /// writes them; they must always be the same ones.
    pub fn new(shape: KvShape, options: &KvOptions) -> Self {
        let map = PageMap::new(shape, options.page_memory_bytes(shape));
        Self {
            states: States::new(options.state_slots),
            state_bytes: options.state_bytes,
            budget_bytes: options.budget_bytes,
            memory_bytes: map.bytes_budget(),
            pages: Pages::new(map, Sidecars::new(options.sidecar_bytes, options.pages_with_sidecar(shape))),
            tree: PrefixTree::new(),
            disk: options.disk.clone().map(DiskTier::new),
            token_time: None,
            tiers: options.tiers,
            cached: Vec::new(),
            unsaved: VecDeque::new(),
            accounts: Accounts::default(),
            is_under_pressure: false,
            events: CacheEvents::default(),
            whole_pages: 0,
            lookups: HashMap::new(),
            evicted_pages: 0,
            cooled_pages: 0,
            trimmed_pages: 0,
        }
    }

    pub fn map(&self) -> &PageMap {
        self.pages.map()
    }

    /// Returns where the pages of a sequence are at the moment.
    pub fn locations<'a>(&'a self, table: &'a PageTable) -> impl Iterator<Item = PageLocation> + 'a {
        table.pages.iter().map(|page| self.map().location(*page))
    }

    pub fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    /// Pages that `tokens` tokens take.
    pub fn pages_for(tokens: usize) -> usize {
        tokens.div_ceil(PAGE_TOKENS)
    }

    /// Returns the maximum number of hot pages of a sequence: those that are not guaranteed to other accounts.
    pub fn pages_max(&self, namespace: Namespace) -> usize {
        let (account, page_bytes) = (self.accounts.of(namespace), self.map().page_bytes(self.tiers.hot));
        let pages_max = self.map().pages_max(self.tiers.hot);
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

    /// Extends `table` to hold `tokens` tokens, evicting cached prefixes if needed, or leaves it unchanged.
    pub fn extend(
        &mut self,
        namespace: Namespace,
        table: &mut PageTable,
        tokens: usize,
        bytes: &mut dyn PageBytes,
    ) -> Result<(), OutOfPages> {
        let asking = self.accounts.of(namespace);
        let held = table.pages.len();
        let needed = Self::pages_for(tokens).saturating_sub(held);
        for _ in 0..needed {
            let Some(page) = self.allocate_page(self.tiers.hot, asking, bytes) else {
                table.pages.drain(held..).for_each(|page| self.release_page(page));
                return Err(OutOfPages { needed });
            };
            table.pages.push(page);
        }
        Ok(())
    }

    /// Allocates a page, evicting cached ones if needed.
    fn allocate_page(&mut self, format: PageFormat, asking: AccountId, bytes: &mut dyn PageBytes) -> Option<PageId> {
        loop {
            if let Some(page) = self.pages.allocate(format, bytes) {
                return Some(page);
            }
            self.evict_page(Some(asking), bytes)?;
        }
    }

    /// Inserts the full pages of a sequence into the prefix tree. All of `tokens` have been computed.
    pub fn insert_prefix(
        &mut self,
        namespaces: impl Into<TextNamespaces>,
        tokens: &[TokenId],
        table: &mut PageTable,
        bytes: &mut dyn PageBytes,
    ) {
        let filled = tokens.len() / PAGE_TOKENS * PAGE_TOKENS;
        if filled > table.kept_tokens {
            self.insert(&namespaces.into(), &tokens[..filled], table, bytes);
            table.kept_tokens = filled;
        }
    }

    /// Releases the pages of a sequence that has ended, inserting them into the prefix tree if namespaces are given.
    pub fn release(
        &mut self,
        namespaces: Option<TextNamespaces>,
        tokens: &[TokenId],
        table: PageTable,
        bytes: &mut dyn PageBytes,
    ) {
        if let Some(namespaces) = &namespaces {
            self.insert(namespaces, tokens, &table, bytes);
        }
        table.pages.into_iter().for_each(|page| self.release_page(page));
        if let Some(slot) = table.state {
            self.states.release(slot);
        }
        if let Some(namespaces) = namespaces {
            self.enforce_limit(self.accounts.of(namespaces.first()), bytes);
        }
    }

    fn insert(&mut self, of: &TextNamespaces, tokens: &[TokenId], table: &PageTable, bytes: &mut dyn PageBytes) {
        let change = self.tree.insert_text(of, tokens, &table.pages[..Self::pages_for(tokens.len())]);
        let account = self.accounts.of(of.first());
        self.events.stored(of, tokens, &change);
        for TakenPage { page, number, hash, .. } in change.taken {
            self.share(page);
            let at = page.0 as usize;
            if at >= self.cached.len() {
                self.cached.resize(at + 1, None);
            }
            let is_whole = (number + 1) * PAGE_TOKENS <= tokens.len();
            self.whole_pages += usize::from(is_whole);
            self.cached[at] = Some(Cached { hash, is_whole, account });
            self.accounts.add_cached(account, self.page_bytes(page));
            if self.disk.is_some() {
                self.unsaved.push_back(page);
            }
        }
        change.dropped.into_iter().for_each(|page| self.drop_cached(page));
        self.enforce_limit(account, bytes);
    }

    /// Drops the prefix tree's reference to a page.
    fn drop_cached(&mut self, page: PageId) {
        let bytes = self.page_bytes(page);
        if let Some(account) = self.idle_account(page) {
            self.accounts.remove_idle(account, bytes);
        }
        if let Some(cached) = self.cached[page.0 as usize].take() {
            self.accounts.remove_cached(cached.account, bytes);
            if cached.is_whole {
                self.whole_pages -= 1;
                self.events.removed(cached.hash);
            }
            // Of no use without the page.
            self.states.forget(cached.hash);
        }
        self.pages.release(page);
    }

    /// Adds a reference to a page in use.
    fn share(&mut self, page: PageId) {
        if let Some(account) = self.idle_account(page) {
            self.accounts.remove_idle(account, self.page_bytes(page));
        }
        self.pages.share(page);
    }

    /// Drops a sequence's reference to a page.
    fn release_page(&mut self, page: PageId) {
        let bytes = self.page_bytes(page);
        self.pages.release(page);
        if let Some(account) = self.idle_account(page) {
            self.accounts.add_idle(account, bytes);
        }
    }

    /// Returns the sidecar of a token of a sequence for writing, if it may have one. Panics if its page is cached already.
    pub fn sidecar_mut(&mut self, table: &PageTable, token: usize) -> Option<&mut [u8]> {
        self.pages.sidecar_mut(table.pages[token / PAGE_TOKENS], token % PAGE_TOKENS)
    }

    /// Returns the sidecar of a token of a sequence; `None`, or all zero, if it was never written.
    pub fn sidecar(&self, table: &PageTable, token: usize) -> Option<&[u8]> {
        self.pages.sidecars().token(table.pages[token / PAGE_TOKENS], token % PAGE_TOKENS)
    }

    fn cached(&self, page: PageId) -> Option<Cached> {
        self.cached.get(page.0 as usize).copied().flatten()
    }

    /// Returns the account of a page that only the prefix tree references.
    fn idle_account(&self, page: PageId) -> Option<AccountId> {
        self.cached(page).filter(|_| self.pages.users(page) == 1).map(|cached| cached.account)
    }

    fn page_bytes(&self, page: PageId) -> usize {
        self.map().page_bytes(self.map().format(page))
    }

    /// Demotes the pages of a sequence of `tokens` tokens to the format of their age.
    pub fn demote_by_age(&mut self, table: &mut PageTable, tokens: usize, bytes: &mut dyn PageBytes) {
        self.demote_by_age_in(&self.tiers.clone(), table, tokens, bytes);
    }

    /// The same in other tiers, for measurements.
    pub fn demote_by_age_in(&mut self, tiers: &Tiers, table: &mut PageTable, tokens: usize, bytes: &mut dyn PageBytes) {
        let mut by_format: Vec<(_, Vec<PageId>)> = Vec::new();
        for (page, format) in tiers.aged(table.demoted_tokens, tokens) {
            let page = table.pages[page];
            let format = PageFormat { layers: self.map().format(page).layers, ..format };
            // A page that others share may be colder than it need be.
            if !self.map().format(page).can_become(format) || self.map().format(page) == format {
                continue;
            }
            match by_format.iter_mut().find(|(of, _)| *of == format) {
                Some((_, pages)) => pages.push(page),
                None => by_format.push((format, vec![page])),
            }
        }
        table.demoted_tokens = tokens;
        for (format, pages) in by_format {
            self.demote(&pages, format, bytes);
        }
    }

    /// Demotes distinct pages to `to` as far as there is room, and updates the accounts. Returns how many were demoted.
    fn demote(&mut self, pages: &[PageId], to: PageFormat, bytes: &mut dyn PageBytes) -> usize {
        let cooled = self.shrink(pages, |all| all.convert(pages, to, bytes));
        self.cooled_pages += cooled as u64;
        cooled
    }

    /// Does something that makes pages smaller, and updates the accounts.
    fn shrink<T>(&mut self, pages: &[PageId], change: impl FnOnce(&mut Pages) -> T) -> T {
        let before: Vec<usize> = pages.iter().map(|page| self.page_bytes(*page)).collect();
        let outcome = change(&mut self.pages);
        for (page, before) in pages.iter().zip(before) {
            let saved = before - self.page_bytes(*page);
            if let Some(cached) = self.cached(*page) {
                self.accounts.remove_cached(cached.account, saved);
            }
            if let Some(account) = self.idle_account(*page) {
                self.accounts.remove_idle(account, saved);
            }
        }
        outcome
    }

    /// Changes the format of cold pages.
    pub fn set_cold(&mut self, cold: PageFormat) {
        self.tiers.cold = cold;
    }

    /// Records from now on what `take_events` returns. Nothing must be cached yet.
    pub fn record_events(&mut self) {
        self.events.record();
    }

    /// Returns how the whole pages that are cached have changed since this was called last.
    pub fn take_events(&mut self) -> Vec<CacheEvent> {
        self.events.take()
    }

    pub fn stats(&self) -> CacheStats {
        let map = self.map();
        let mut pages_by_format = [0; PageFormat::COUNT];
        for (pages, format) in pages_by_format.iter_mut().zip(PageFormat::every()) {
            *pages = map.pages_of(format);
        }
        CacheStats {
            lookups: self.lookups.values().copied().sum(),
            budget_bytes: map.bytes_budget(),
            used_bytes: map.bytes_in_use(),
            idle_bytes: self.accounts.idle_bytes(),
            page_bytes: map.page_bytes(self.tiers.hot),
            held_bytes: map.bytes_held(),
            bookkeeping_bytes: self.tree.bookkeeping_bytes(),
            sidecar_bytes: self.pages.sidecars().bytes(),
            state_bytes: self.states.in_use() * self.state_bytes,
            snapshots: self.states.snapshots(),
            pages: map.pages_in_use(),
            cached_pages: self.tree.pages(),
            whole_pages: self.whole_pages,
            pages_by_format,
            evicted_pages: self.evicted_pages,
            regretted_pages: self.tree.regretted(),
            cooled_pages: self.cooled_pages,
            trimmed_pages: self.trimmed_pages,
            disk: self.disk.as_ref().map(DiskTier::stats),
        }
    }

    /// Look-ups of one namespace.
    pub fn lookups_of(&self, namespace: Namespace) -> LookupStats {
        self.lookups.get(&namespace).copied().unwrap_or_default()
    }
}

impl KvCache {
    pub fn users(&self, page: PageId) -> u32 {
        self.pages.users(page)
    }

    /// The whole pages that are cached. For tests: it visits every page.
    pub fn whole_pages(&self) -> impl Iterator<Item = PageHash> {
        self.cached.iter().flatten().filter(|cached| cached.is_whole).map(|cached| cached.hash)
    }

    /// Checks the accounting against itself and against the page tables of all running sequences. For tests: it visits every
    /// page.
    pub fn audit<'a>(&self, tables: impl Iterator<Item = &'a PageTable>) -> Result<(), String> {
        let mut users: HashMap<PageId, u32> = HashMap::new();
        let mut states = self.states.snapshots();
        for table in tables {
            states += usize::from(table.state.is_some());
            table.pages.iter().for_each(|page| *users.entry(*page).or_default() += 1);
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
        expect("filled cached pages", self.whole_pages, self.whole_pages().count())?;
        expect("state slots in use", self.states.in_use(), states)?;
        expect("bytes that only the tree holds", self.accounts.idle_bytes(), idle_bytes)?;
        for (account, bytes) in cached_bytes {
            expect(&format!("bytes of {account:?}"), self.cached_bytes(account), bytes)?;
        }
        expect("pages in use", self.map().pages_in_use(), users.len())?;
        let bytes = users.keys().map(|page| self.page_bytes(*page)).sum();
        expect("bytes in use", self.map().bytes_in_use(), bytes)?;
        for (page, users) in users {
            expect(&format!("users of {page:?}"), self.pages.users(page) as usize, users as usize)?;
        }
        if bytes > self.map().bytes_budget() {
            return Err(format!("{bytes} bytes are in use, more than the budget"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
