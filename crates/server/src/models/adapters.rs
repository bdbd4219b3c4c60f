//! Adapters of served models: what requests name.
//!
//! An adapter is registered with the engine of its model (`load.rs`), which reads it when it is first used (`hold.rs`). An engine
//! that was loaded again is told anew. HTTP clients name adapters of the store, or files below folders that the operator has
//! opened to them.

mod hold;
mod load;

use std::path::Path;
use std::sync::{Arc, MutexGuard, PoisonError};

use ruvllm_runtime::AdapterId;
use ruvllm_store::{ListedAdapter, StoredAdapter};

use super::adapter_table::{AdapterTable, ServedAdapter, fault_of_name};
use super::learned::Asker;
use super::{ModelError, ModelInUse, Models};

pub use load::AdapterOrder;

/// Names of adapters that an error lists.
const LISTED_MAX: usize = 20;

/// What a request says of adapters.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum AskedAdapters {
    /// Nothing: the model's own, or what the operator set, or else what was learned from the tenant or the user.
    #[default]
    Default,
    /// These, by name, with their weights.
    Names(Vec<(String, f32)>),
    /// These, by llama-server's numbers.
    Numbers(Vec<(u32, f32)>),
}

/// Adapters with their weights.
pub(crate) type Chosen = Vec<(Arc<ServedAdapter>, f32)>;

impl Models {
    /// Returns the model that a request names, with the adapters that it names in the same field or in others.
    pub async fn get_adapted(
        self: &Arc<Self>,
        name: &str,
        asked: &AskedAdapters,
        asker: Asker<'_>,
    ) -> Result<ModelInUse, ModelError> {
        let tenant = asker.tenant;
        let (model, in_name) = self.split_name(name, tenant)?;
        let model = self.get(&model).await?;
        let adapters = match (in_name, asked) {
            (Some(adapter), AskedAdapters::Default) => vec![(self.adapter(&model, &adapter, tenant).await?, 1.0)],
            (Some(adapter), _) => return Err(ModelError::TwoAdapters { name: name.to_owned(), adapter }),
            (None, AskedAdapters::Names(names)) => {
                let mut chosen = Vec::new();
                for (name, weight) in names {
                    chosen.push((self.adapter(&model, name, tenant).await?, *weight));
                }
                chosen
            }
            (None, AskedAdapters::Numbers(numbers)) => self.by_number(&model, numbers, tenant)?,
            (None, AskedAdapters::Default) => {
                let own = self.of_settings(&model, tenant).await?;
                let learned = if own.is_empty() { self.learned_for(&model, asker) } else { None };
                learned.map_or(own, |learned| vec![(learned, 1.0)])
            }
        };
        Ok(model.with_adapters(adapters))
    }

    /// Returns a name of an adapter by the digest of its content.
    pub fn adapter_name(&self, id: AdapterId) -> Option<Arc<str>> {
        self.table().name_of(id)
    }

    /// Returns the adapters that a tenant may use, by name.
    pub fn visible_adapters(&self, tenant: &str) -> Vec<Arc<ServedAdapter>> {
        self.table().visible(tenant)
    }

    /// Returns the same with how much of each is used by default.
    pub fn scaled_adapters(&self, tenant: &str) -> Chosen {
        let table = self.table();
        let mut all: Chosen = table
            .visible(tenant)
            .into_iter()
            .map(|adapter| (Arc::clone(&adapter), table.scale(adapter.number)))
            .collect();
        all.sort_by_key(|(adapter, _)| adapter.number);
        all
    }

    /// Sets how much of each adapter of an owner is used by default.
    pub fn set_adapter_scales(&self, owner: Option<&str>, scales: &[(u32, f32)]) {
        self.table().set_scales(owner, scales);
    }

    /// Returns the adapters of the store that belong to a model by their names, as model and name.
    pub fn stored_adapters(&self) -> Vec<(String, String, StoredAdapter)> {
        let listed = self.store.adapters().unwrap_or_else(|error| {
            tracing::warn!("cannot list the adapters in the store: {error}");
            Vec::new()
        });
        let of_model = |item| match item {
            ListedAdapter::Adapter(adapter) => {
                let (base, name) = adapter.name.rsplit_once(':')?;
                Some((base.to_owned(), name.to_owned(), adapter))
            }
            ListedAdapter::Unusable { .. } => None,
        };
        listed.into_iter().filter_map(of_model).collect()
    }

    /// Returns the names in the store of adapters that are given by name or by the digest of a file.
    pub async fn named_adapters(self: &Arc<Self>, given: Vec<String>) -> Result<Vec<String>, ModelError> {
        let models = Arc::clone(self);
        let found = tokio::task::spawn_blocking(move || {
            let listed = models.store.adapters()?;
            let by_digest = |digest: &str| {
                let has = |adapter: &StoredAdapter| adapter.manifest.files().any(|file| file.sha256 == digest);
                listed.iter().find_map(|item| match item {
                    ListedAdapter::Adapter(adapter) if has(adapter) => Some(adapter.name.clone()),
                    _ => None,
                })
            };
            let one = |given: &String| match given.strip_prefix("sha256:").and_then(by_digest) {
                Some(name) => Ok(name),
                None => Ok(models.store.adapter(given)?.name),
            };
            given.iter().map(one).collect()
        });
        found.await.map_err(|_| ModelError::Lost { name: "with an adapter".to_owned() })?
    }

    /// Splits a name into that of a model and that of an adapter, where it has both or means one.
    fn split_name(&self, name: &str, tenant: &str) -> Result<(String, Option<String>), ModelError> {
        let alias = |name: &str| self.options.aliases.get(name).cloned();
        let name = alias(name).unwrap_or_else(|| name.to_owned());
        if self.is_model(&name) {
            return Ok((name, None));
        }
        let short = name.strip_suffix(":latest").unwrap_or(&name);
        let found = self.table().find(tenant, None, short);
        match &found[..] {
            [] => {}
            [adapter] => return Ok((adapter.base.to_string(), Some(adapter.name.to_string()))),
            several => return Err(ambiguous(short, several)),
        }
        let Some((base, adapter)) = short.rsplit_once(':') else { return Ok((name, None)) };
        let both = (base.to_owned(), Some(adapter.to_owned()));
        // What is loaded is found without a look into the store.
        if self.is_model(base) && !self.table().find(tenant, Some(&self.target(base).slot), adapter).is_empty() {
            return Ok(both);
        }
        let is_stored = |name: &str| self.is_stored(name) || self.store.derived(name).is_some();
        let is_adapter = !is_stored(&name) && !is_stored(short) && (self.is_model(base) || is_stored(base));
        Ok(if is_adapter { both } else { (name, None) })
    }

    /// Returns whether a name is that of a slot or an alias.
    pub(crate) fn is_model(&self, name: &str) -> bool {
        let short = name.strip_suffix(":latest").unwrap_or(name);
        let slots = self.slots();
        [name, short].iter().any(|name| slots.contains_key(*name) || self.options.aliases.contains_key(*name))
    }

    /// Returns the adapter of a name for a model; one in the store is loaded.
    async fn adapter(
        self: &Arc<Self>,
        model: &ModelInUse,
        name: &str,
        tenant: &str,
    ) -> Result<Arc<ServedAdapter>, ModelError> {
        let base = &*model.name;
        let short = name.strip_prefix(base).and_then(|rest| rest.strip_prefix(':')).unwrap_or(name);
        if let Some(adapter) = self.table().find(tenant, Some(base), short).pop() {
            return Ok(adapter);
        }
        let unknown = || self.unknown_adapter(name, Some(base), tenant);
        if fault_of_name(short).is_some() {
            return Err(unknown());
        }
        let (models, names) = (Arc::clone(self), [format!("{base}:{short}"), short.to_owned()]);
        let stored = tokio::task::spawn_blocking(move || names.iter().find_map(|name| models.store.adapter(name).ok()));
        let stored = stored.await.map_err(|_| ModelError::Lost { name: name.to_owned() })?.ok_or_else(unknown)?;
        let (source, model_name) = (stored.path, Some(base.to_owned()));
        // Another request may have loaded it meanwhile.
        let order = AdapterOrder { name: short.to_owned(), model: model_name, source, owner: None, may_replace: true };
        self.register(model, short, order).await
    }

    /// Returns the adapters that the model was made with, or else those that the operator set.
    async fn of_settings(self: &Arc<Self>, model: &ModelInUse, tenant: &str) -> Result<Chosen, ModelError> {
        let own = [&model.defaults.adapters, &model.settings.adapters].into_iter().find(|own| !own.is_empty());
        let Some(own) = own else { return Ok(self.table().defaults(tenant, &model.name)) };
        let mut chosen = Vec::new();
        for name in own {
            let adapter = match Path::new(name).is_absolute() {
                true => self.adapter_in_place(model, Path::new(name)).await?,
                false => self.adapter(model, name, tenant).await?,
            };
            chosen.push((adapter, 1.0));
        }
        Ok(chosen)
    }

    /// Returns an adapter of an Ollama installation. Only manifests of the store lead here.
    async fn adapter_in_place(
        self: &Arc<Self>,
        model: &ModelInUse,
        file: &Path,
    ) -> Result<Arc<ServedAdapter>, ModelError> {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Some(adapter) = self.table().find("", Some(&model.name), &name).pop() {
            return Ok(adapter);
        }
        let (source, base) = (file.to_owned(), Some(model.name.to_string()));
        let order = AdapterOrder { name: name.clone(), model: base, source, owner: None, may_replace: true };
        self.register(model, &name, order).await
    }

    fn by_number(&self, model: &ModelInUse, numbers: &[(u32, f32)], tenant: &str) -> Result<Chosen, ModelError> {
        let table = self.table();
        let find = |(number, weight): &(u32, f32)| match table.numbered(tenant, *number) {
            Some(adapter) if adapter.base == model.name => Ok((adapter, *weight)),
            _ => Err(ModelError::UnknownAdapter {
                name: number.to_string(),
                base: Some(model.name.to_string()),
                known: listed(
                    table.visible(tenant).iter().map(|adapter| format!("{} ({})", adapter.number, adapter.name)),
                ),
            }),
        };
        numbers.iter().map(find).collect()
    }

    fn unknown_adapter(&self, name: &str, base: Option<&str>, tenant: &str) -> ModelError {
        let is_of_base = |of: &str| base.is_none_or(|base| base == of);
        let loaded = self.table().visible(tenant).into_iter().filter(|adapter| is_of_base(&adapter.base));
        let stored = self.stored_adapters().into_iter().filter(|(of, ..)| is_of_base(of));
        let mut known: Vec<String> =
            loaded.map(|adapter| adapter.name.to_string()).chain(stored.map(|(_, name, _)| name)).collect();
        known.sort();
        known.dedup();
        let name = name.chars().take(128).collect();
        ModelError::UnknownAdapter { name, base: base.map(str::to_owned), known: listed(known.into_iter()) }
    }

    pub(super) fn table(&self) -> MutexGuard<'_, AdapterTable> {
        // No operation under the lock can leave it inconsistent.
        self.adapters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ambiguous(name: &str, several: &[Arc<ServedAdapter>]) -> ModelError {
    let names = several.iter().map(|adapter| adapter.full_name()).collect();
    ModelError::AmbiguousAdapter { name: name.to_owned(), names }
}

/// Returns some of the names, and how many more there are.
fn listed(names: impl Iterator<Item = String>) -> Vec<String> {
    let all: Vec<String> = names.collect();
    let more = all.len().saturating_sub(LISTED_MAX);
    let more = (more > 0).then(|| format!("and {more} more"));
    all.into_iter().take(LISTED_MAX).chain(more).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_cut() {
        let many = listed((0..25).map(|index| index.to_string()));
        assert_eq!((many.len(), many.last().map(String::as_str)), (21, Some("and 5 more")));
        assert_eq!(listed(["a".to_owned()].into_iter()), ["a"]);
    }
}
