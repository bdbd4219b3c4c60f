//! Who has which part of the cache: shares that others' load cannot take, and limits to what one can fill.

use std::collections::HashMap;

use crate::prefix::Namespace;

/// Memory for the cached prefixes of a tenant, or of several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Quota {
    /// Others' load takes nothing of this.
    pub guaranteed_bytes: usize,
    /// What goes beyond is given up at once, of the same tenant's what is worth least.
    pub limit_bytes: Option<usize>,
}

/// Names the account to which a cached page is charged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct AccountId(u32);

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    quota: Quota,
    /// Bytes of its pages in the prefix tree, and of those that no sequence uses.
    cached_bytes: usize,
    idle_bytes: usize,
}

impl Account {
    /// Bytes of idle pages that others may take.
    fn spare_bytes(&self) -> usize {
        self.idle_bytes.min(self.cached_bytes.saturating_sub(self.quota.guaranteed_bytes))
    }
}

/// All accounts. The first is that of everyone without a quota.
#[derive(Debug)]
pub(crate) struct Accounts {
    accounts: Vec<Account>,
    of: HashMap<Namespace, AccountId>,
}

impl Default for Accounts {
    fn default() -> Self {
        Self { accounts: vec![Account::default()], of: HashMap::new() }
    }
}

impl Accounts {
    pub(crate) fn open(&mut self, quota: Quota) -> AccountId {
        self.accounts.push(Account { quota, ..Account::default() });
        AccountId(self.accounts.len() as u32 - 1)
    }

    /// Charges what is cached in a namespace from now on to an account.
    pub(crate) fn assign(&mut self, namespace: Namespace, account: AccountId) {
        self.of.insert(namespace, account);
    }

    pub(crate) fn of(&self, namespace: Namespace) -> AccountId {
        self.of.get(&namespace).copied().unwrap_or_default()
    }

    pub(crate) fn cached_bytes(&self, account: AccountId) -> usize {
        self.get(account).cached_bytes
    }

    /// Returns how many pages of `page_bytes` bytes the guarantees of all accounts but `account` may take.
    pub(crate) fn pages_guaranteed_to_others(&self, account: AccountId, page_bytes: usize) -> usize {
        let others = self.accounts.iter().enumerate().filter(|(i, _)| *i != account.0 as usize);
        let guaranteed = others.map(|(_, account)| account.quota.guaranteed_bytes).filter(|bytes| *bytes > 0);
        // A page that lies across the end of a guarantee stays as well.
        guaranteed.map(|bytes| bytes / page_bytes + 1).sum()
    }

    /// Whether a page of `owner` may be given up for `asking`, or for nobody in particular.
    pub(crate) fn may_go(&self, owner: AccountId, bytes: usize, asking: Option<AccountId>) -> bool {
        let account = self.get(owner);
        asking == Some(owner) || account.cached_bytes >= account.quota.guaranteed_bytes + bytes
    }

    /// Bytes that could be given up for `asking`.
    pub(crate) fn spare_bytes(&self, asking: AccountId) -> usize {
        let others: usize = self.accounts.iter().map(Account::spare_bytes).sum();
        others - self.get(asking).spare_bytes() + self.get(asking).idle_bytes
    }

    /// Whether an account has more cached than it may.
    pub(crate) fn is_over_limit(&self, account: AccountId) -> bool {
        let account = self.get(account);
        account.quota.limit_bytes.is_some_and(|limit| account.cached_bytes > limit)
    }

    pub(crate) fn idle_bytes(&self) -> usize {
        self.accounts.iter().map(|account| account.idle_bytes).sum()
    }

    pub(crate) fn add_cached(&mut self, account: AccountId, bytes: usize) {
        self.get_mut(account).cached_bytes += bytes;
    }

    pub(crate) fn remove_cached(&mut self, account: AccountId, bytes: usize) {
        self.get_mut(account).cached_bytes -= bytes;
    }

    pub(crate) fn add_idle(&mut self, account: AccountId, bytes: usize) {
        self.get_mut(account).idle_bytes += bytes;
    }

    pub(crate) fn remove_idle(&mut self, account: AccountId, bytes: usize) {
        self.get_mut(account).idle_bytes -= bytes;
    }

    fn get(&self, account: AccountId) -> &Account {
        &self.accounts[account.0 as usize]
    }

    fn get_mut(&mut self, account: AccountId) -> &mut Account {
        &mut self.accounts[account.0 as usize]
    }
}
