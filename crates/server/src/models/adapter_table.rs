//! The adapters that requests can name: which there are, whose they are, and what is used by default.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use ruvllm_runtime::AdapterId;

/// Maximum number of adapters of a server.
const ADAPTERS_MAX: usize = 100_000;
/// Maximum length of a name.
pub(crate) const NAME_BYTES_MAX: usize = 128;

/// An adapter that requests can name. One that is replaced is another value: requests that have begun keep the old one.
#[derive(Debug, PartialEq)]
pub struct ServedAdapter {
    /// What llama-server's clients call it.
    pub number: u32,
    pub name: Arc<str>,
    /// The model that it changes.
    pub base: Arc<str>,
    /// The tenant that it belongs to; `None` is for all.
    pub owner: Option<Arc<str>>,
    pub source: PathBuf,
    /// Digest of its content.
    pub id: AdapterId,
    /// In memory, once it is used.
    pub bytes: usize,
    pub rank: usize,
    pub loaded_at: SystemTime,
}

/// What is known of an adapter before it has a place in the table.
#[derive(Debug, Clone)]
pub(crate) struct NewAdapter {
    pub name: Arc<str>,
    pub base: Arc<str>,
    pub owner: Option<Arc<str>>,
    pub source: PathBuf,
    pub id: AdapterId,
    pub bytes: usize,
    pub rank: usize,
}

/// What became of an adapter that was put into the table.
#[derive(Debug, PartialEq)]
pub(crate) enum Put {
    Added(Arc<ServedAdapter>),
    /// It is there already, with the same content.
    Unchanged(Arc<ServedAdapter>),
    Replaced {
        new: Arc<ServedAdapter>,
        old: Arc<ServedAdapter>,
    },
    /// The name means something else, and was not to be replaced.
    Taken(Arc<ServedAdapter>),
    Full,
}

#[derive(Debug, Default)]
pub(crate) struct AdapterTable {
    by_name: BTreeMap<Arc<str>, Vec<Arc<ServedAdapter>>>,
    by_number: BTreeMap<u32, Arc<ServedAdapter>>,
    /// How many names of a model mean a content.
    names_of: HashMap<(AdapterId, Arc<str>), usize>,
    /// How much of an adapter is used for requests that name none, by number.
    scales: BTreeMap<u32, f32>,
    next_number: u32,
}

impl AdapterTable {
    /// Adds an adapter, or replaces the one of the same name, model and owner if it `may_replace` it.
    pub fn put(&mut self, new: NewAdapter, may_replace: bool) -> Put {
        let same = |old: &Arc<ServedAdapter>| old.base == new.base && old.owner == new.owner;
        let place = self.by_name.get(&new.name).and_then(|all| all.iter().position(same));
        let old = place.and_then(|index| Some(Arc::clone(self.by_name.get(&new.name)?.get(index)?)));
        match (place, old) {
            (Some(_), Some(old)) if !may_replace => Put::Taken(old),
            (Some(_), Some(old)) if old.id == new.id && old.source == new.source => Put::Unchanged(old),
            (Some(index), Some(old)) => {
                let new = Arc::new(new.numbered(old.number));
                if let Some(all) = self.by_name.get_mut(&new.name) {
                    all[index] = Arc::clone(&new);
                }
                self.leave(&old);
                self.enter(&new);
                Put::Replaced { new, old }
            }
            _ if self.by_number.len() >= ADAPTERS_MAX => Put::Full,
            _ => {
                let new = Arc::new(new.numbered(self.next_number));
                // More loads than this many are not reached: each one hashes a file.
                self.next_number = self.next_number.saturating_add(1);
                self.by_name.entry(Arc::clone(&new.name)).or_default().push(Arc::clone(&new));
                self.enter(&new);
                Put::Added(new)
            }
        }
    }

    /// Returns a name of a content.
    pub fn name_of(&self, id: AdapterId) -> Option<Arc<str>> {
        let named = self.by_number.values().find(|adapter| adapter.id == id);
        named.map(|adapter| Arc::clone(&adapter.name))
    }

    /// Takes out what has the adapter's number now: it may have been replaced since it was found.
    pub fn remove(&mut self, adapter: &ServedAdapter) -> Option<Arc<ServedAdapter>> {
        let current = self.by_number.get(&adapter.number).cloned()?;
        if let Some(all) = self.by_name.get_mut(&current.name) {
            all.retain(|other| other.number != current.number);
            if all.is_empty() {
                self.by_name.remove(&current.name);
            }
        }
        self.leave(&current);
        self.scales.remove(&current.number);
        Some(current)
    }

    fn enter(&mut self, adapter: &Arc<ServedAdapter>) {
        self.by_number.insert(adapter.number, Arc::clone(adapter));
        *self.names_of.entry((adapter.id, Arc::clone(&adapter.base))).or_default() += 1;
    }

    fn leave(&mut self, adapter: &ServedAdapter) {
        self.by_number.remove(&adapter.number);
        let key = (adapter.id, Arc::clone(&adapter.base));
        if let Some(names) = self.names_of.get_mut(&key) {
            *names -= 1;
            if *names == 0 {
                self.names_of.remove(&key);
            }
        }
    }

    /// Returns the adapters that a name means for a tenant: its own rather than those of all, one for each model.
    pub fn find(&self, tenant: &str, base: Option<&str>, name: &str) -> Vec<Arc<ServedAdapter>> {
        let all = self.by_name.get(name).map(Vec::as_slice).unwrap_or_default();
        let mut found: Vec<Arc<ServedAdapter>> = Vec::new();
        for adapter in all.iter().filter(|adapter| adapter.is_visible_to(tenant)) {
            if base.is_some_and(|base| base != &*adapter.base) {
                continue;
            }
            match found.iter_mut().find(|other| other.base == adapter.base) {
                Some(other) if adapter.owner.is_some() => *other = Arc::clone(adapter),
                Some(_) => {}
                None => found.push(Arc::clone(adapter)),
            }
        }
        found
    }

    /// Returns the adapter of llama-server's number, if the tenant may see it.
    pub fn numbered(&self, tenant: &str, number: u32) -> Option<Arc<ServedAdapter>> {
        self.by_number.get(&number).filter(|adapter| adapter.is_visible_to(tenant)).cloned()
    }

    /// Returns what a tenant may see, by name.
    pub fn visible(&self, tenant: &str) -> Vec<Arc<ServedAdapter>> {
        self.all().filter(|adapter| adapter.is_visible_to(tenant)).cloned().collect()
    }

    /// Returns what requests of a tenant for a model use if they name nothing.
    pub fn defaults(&self, tenant: &str, base: &str) -> Vec<(Arc<ServedAdapter>, f32)> {
        let scaled = self.scales.iter().filter_map(|(number, scale)| Some((self.by_number.get(number)?, *scale)));
        let used = scaled.filter(|(adapter, _)| &*adapter.base == base && adapter.is_visible_to(tenant));
        used.map(|(adapter, scale)| (Arc::clone(adapter), scale)).collect()
    }

    pub fn scale(&self, number: u32) -> f32 {
        self.scales.get(&number).copied().unwrap_or(0.0)
    }

    /// Sets how much of each adapter of an owner is used by default; those that are not named are not used. A tenant decides
    /// about its own adapters only: those of all are used by others too.
    pub fn set_scales(&mut self, owner: Option<&str>, scales: &[(u32, f32)]) {
        let all = &self.by_number;
        let is_own = |number: &u32| all.get(number).is_some_and(|adapter| adapter.owner.as_deref() == owner);
        self.scales.retain(|number, _| !is_own(number));
        let used = scales.iter().filter(|(number, scale)| *scale != 0.0 && is_own(number));
        self.scales.extend(used.copied());
    }

    /// Returns whether some name of a model means this content.
    pub fn uses(&self, base: &Arc<str>, id: AdapterId) -> bool {
        self.names_of.contains_key(&(id, Arc::clone(base)))
    }

    pub fn holds(&self, adapter: &ServedAdapter) -> bool {
        self.by_name.get(&adapter.name).is_some_and(|all| all.iter().any(|other| **other == *adapter))
    }

    fn all(&self) -> impl Iterator<Item = &Arc<ServedAdapter>> {
        self.by_name.values().flatten()
    }
}

impl NewAdapter {
    fn numbered(self, number: u32) -> ServedAdapter {
        let Self { name, base, owner, source, id, bytes, rank } = self;
        ServedAdapter { number, name, base, owner, source, id, bytes, rank, loaded_at: SystemTime::now() }
    }
}

impl ServedAdapter {
    pub(crate) fn is_visible_to(&self, tenant: &str) -> bool {
        self.owner.as_ref().is_none_or(|owner| &**owner == tenant)
    }

    /// Returns the name under which any client finds it: that of its model and its own.
    pub fn full_name(&self) -> String {
        format!("{}:{}", self.base, self.name)
    }

    /// Returns the name of its file or folder, without those that it lies in.
    pub fn file_name(&self) -> String {
        self.source.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Returns the digest of its content.
    pub fn digest(&self) -> String {
        self.id.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Says what is wrong with a name, if anything is.
pub(crate) fn fault_of_name(name: &str) -> Option<&'static str> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-@/".contains(c);
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        Some("it must have 1 to 128 bytes")
    } else if !name.chars().all(is_plain) {
        Some("only letters, digits and . _ - @ / are allowed")
    } else if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
        Some("it must begin with a letter or a digit")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new(name: &str, base: &str, owner: Option<&str>, content: u8) -> NewAdapter {
        let (name, base, owner) = (name.into(), base.into(), owner.map(Into::into));
        NewAdapter { name, base, owner, source: "x".into(), id: AdapterId([content; 32]), bytes: 1, rank: 8 }
    }

    fn found(table: &AdapterTable, tenant: &str, base: Option<&str>, name: &str) -> Vec<(String, u8)> {
        let found = table.find(tenant, base, name);
        found.iter().map(|adapter| (adapter.full_name(), adapter.id.0[0])).collect()
    }

    #[test]
    fn tenants_see_their_own_adapters_and_those_of_all() {
        let mut table = AdapterTable::default();
        table.put(new("a", "m", None, 1), false);
        table.put(new("a", "m", Some("acme"), 2), false);
        table.put(new("b", "m", Some("acme"), 3), false);
        assert_eq!(found(&table, "acme", None, "a"), [("m:a".to_owned(), 2)]);
        assert_eq!(found(&table, "other", Some("m"), "a"), [("m:a".to_owned(), 1)]);
        assert_eq!(found(&table, "other", None, "b"), []);
        assert_eq!(found(&table, "acme", Some("other"), "a"), []);
        assert_eq!((table.visible("acme").len(), table.visible("").len()), (3, 1));
        assert!(table.numbered("other", 1).is_none() && table.numbered("acme", 1).is_some());
    }

    #[test]
    fn a_name_is_replaced_only_if_asked_and_keeps_its_number() {
        let mut table = AdapterTable::default();
        let Put::Added(first) = table.put(new("a", "m", None, 1), false) else { panic!("it is new") };
        assert!(matches!(table.put(new("a", "m", None, 2), false), Put::Taken(_)));
        assert_eq!(table.put(new("a", "m", None, 1), true), Put::Unchanged(Arc::clone(&first)));
        let Put::Replaced { new: second, old } = table.put(new("a", "m", None, 2), true) else { panic!("it changed") };
        assert_eq!((old, second.number), (Arc::clone(&first), first.number));
        assert!(table.holds(&second) && !table.holds(&first));
        assert!(table.uses(&"m".into(), second.id) && !table.uses(&"m".into(), first.id));
        assert!(matches!(table.put(new("a", "n", None, 2), false), Put::Added(_)));
        assert_eq!(found(&table, "", None, "a").len(), 2, "one for each model");
        assert_eq!(table.remove(&first), Some(second), "whatever has the number");
        assert_eq!(found(&table, "", None, "a"), [("n:a".to_owned(), 2)]);
    }

    #[test]
    fn scales_are_those_that_were_named_last() {
        let mut table = AdapterTable::default();
        for name in ["a", "b"] {
            table.put(new(name, "m", None, 1), false);
        }
        table.put(new("c", "m", Some("acme"), 1), false);
        table.set_scales(None, &[(0, 0.5), (2, 1.0), (9, 1.0)]);
        let defaults = table.defaults("acme", "m");
        let defaults: Vec<_> = defaults.iter().map(|(adapter, scale)| (&*adapter.name, *scale)).collect();
        assert_eq!(defaults, [("a", 0.5)]);
        table.set_scales(Some("acme"), &[(0, 3.0), (2, 2.0)]);
        assert_eq!((table.scale(0), table.scale(2)), (0.5, 2.0), "what is for all is not a tenant's to change");
        table.set_scales(None, &[]);
        assert_eq!((table.scale(0), table.scale(2)), (0.0, 2.0));
        assert!(table.defaults("", "m").is_empty() && table.defaults("acme", "n").is_empty());
    }

    #[test]
    fn names_are_plain() {
        for name in ["a", "my-adapter_2.0@v1", "owner/repo"] {
            assert_eq!(fault_of_name(name), None, "{name}");
        }
        let long = "a".repeat(129);
        for name in ["", "a:b", "../x", "/etc", "a b", "a\n", "ä", &long] {
            assert!(fault_of_name(name).is_some(), "{name}");
        }
    }
}
