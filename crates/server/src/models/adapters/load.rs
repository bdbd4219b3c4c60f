//! Loading and unloading of adapters for requests.

use std::collections::{HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ruvllm_runtime::{AdapterId, RegisteredAdapter};
use tokio::task::JoinHandle;

use super::ambiguous;
use super::hold::failed;
use crate::models::adapter_table::{NewAdapter, Put, ServedAdapter, fault_of_name};
use crate::models::{ModelError, ModelInUse, Models, Slot};

/// Adapters that are read at the same time at most.
const TOGETHER: usize = 8;

/// The model and the name of an adapter, and what its engine knows of it.
type Registered = Result<(Arc<str>, Arc<str>, RegisteredAdapter), ModelError>;

/// An adapter to load.
#[derive(Clone, Debug)]
pub struct AdapterOrder {
    /// `NAME`, or `BASE:NAME`.
    pub name: String,
    /// The model that it changes; needed if several are served.
    pub model: Option<String>,
    pub source: PathBuf,
    /// The tenant that it belongs to.
    pub owner: Option<Arc<str>>,
    pub may_replace: bool,
}

impl Models {
    /// Loads an adapter for requests.
    pub async fn load_adapter(self: &Arc<Self>, order: AdapterOrder) -> Result<Arc<ServedAdapter>, ModelError> {
        let mut loaded = None;
        self.load_adapters(vec![order], |_, result| loaded = Some(result)).await;
        let loaded = loaded.expect("one order has one result");
        loaded.inspect(|adapter| log_loaded(adapter))
    }

    /// Loads adapters for requests, some of them at a time. `done` is told what became of each, in their order.
    pub async fn load_adapters(
        self: &Arc<Self>,
        orders: Vec<AdapterOrder>,
        mut done: impl FnMut(&AdapterOrder, Result<Arc<ServedAdapter>, ModelError>),
    ) {
        let stored: HashSet<String> = self.stored().into_iter().map(|file| file.name).collect();
        let mut registering: VecDeque<(AdapterOrder, JoinHandle<Registered>)> = VecDeque::new();
        let mut orders = orders.into_iter();
        loop {
            while registering.len() < TOGETHER
                && let Some(order) = orders.next()
            {
                match self.placed(&order, &stored).await {
                    Ok((model, name)) => registering.push_back((order.clone(), self.registering(model, name, order))),
                    Err(error) => done(&order, Err(error)),
                }
            }
            let Some((order, registered)) = registering.pop_front() else { return };
            let registered = registered.await.unwrap_or_else(|_| Err(ModelError::Lost { name: order.name.clone() }));
            let loaded =
                registered.and_then(|(base, name, registered)| self.put(base, name, order.clone(), &registered));
            done(&order, loaded);
        }
    }

    /// Returns the model of an adapter and its short name, which must be free.
    async fn placed(
        self: &Arc<Self>,
        order: &AdapterOrder,
        stored: &HashSet<String>,
    ) -> Result<(ModelInUse, Arc<str>), ModelError> {
        let (base, name) = self.base_of(order)?;
        if let Some(why) = fault_of_name(&name) {
            return Err(ModelError::AdapterName { name, why });
        }
        if self.is_model(&name) || stored.contains(&name) {
            return Err(ModelError::Taken { name });
        }
        Ok((self.get(&base).await?, name.into()))
    }

    /// Forgets an adapter. Requests that have begun with it end with it.
    pub fn unload_adapter(&self, name: &str, model: Option<&str>, owner: Option<&str>) -> Result<(), ModelError> {
        let (base, short) = match (model, name.rsplit_once(':')) {
            (Some(model), _) => (Some(self.target(model).slot), name),
            (None, Some((base, short))) => (Some(self.target(base).slot), short),
            (None, None) => (None, name),
        };
        let found = self.table().find(owner.unwrap_or_default(), base.as_deref(), short);
        // A tenant's key unloads what is the tenant's, and not what is for all.
        let mut found = found.into_iter().filter(|adapter| adapter.owner.as_deref() == owner);
        let adapter = match (found.next(), found.next()) {
            (Some(adapter), None) => adapter,
            (Some(one), Some(other)) => return Err(ambiguous(name, &[one, other])),
            (None, _) => return Err(self.unknown_adapter(name, base.as_deref(), owner.unwrap_or_default())),
        };
        let removed = self.table().remove(&adapter);
        removed.iter().for_each(|removed| self.unregister_unused(&removed.base, removed.id));
        tracing::info!(adapter = %adapter.full_name(), "unloaded");
        Ok(())
    }

    /// Returns the file or folder that a client may have loaded: the name of an adapter in the store, or a path below an
    /// allowed folder. What else there is on this machine is not told.
    pub async fn allowed_adapter(self: &Arc<Self>, path: &str) -> Result<PathBuf, ModelError> {
        let (models, path, asked) = (Arc::clone(self), path.to_owned(), path.to_owned());
        let found = tokio::task::spawn_blocking(move || {
            if let Ok(stored) = models.store.adapter(&path) {
                return Ok(stored.path);
            }
            let is_allowed = |folder: &PathBuf| is_below(folder, Path::new(&path));
            if models.options.adapter_folders.iter().any(is_allowed) {
                return Ok(PathBuf::from(path));
            }
            Err(ModelError::AdapterPath { has_folders: !models.options.adapter_folders.is_empty() })
        });
        found.await.map_err(|_| ModelError::Lost { name: asked })?
    }

    /// Returns the model and the short name of an order.
    fn base_of(&self, order: &AdapterOrder) -> Result<(String, String), ModelError> {
        match (&order.model, order.name.rsplit_once(':')) {
            (Some(model), _) => {
                let short = order.name.strip_prefix(model.as_str()).and_then(|rest| rest.strip_prefix(':'));
                Ok((self.target(model).slot, short.unwrap_or(&order.name).to_owned()))
            }
            (None, Some((base, name))) => Ok((self.target(base).slot, name.to_owned())),
            (None, None) => Ok((self.only_model(&order.name)?, order.name.clone())),
        }
    }

    /// Returns the one model that is served, if there is one.
    fn only_model(&self, adapter: &str) -> Result<String, ModelError> {
        let generates = |slot: &Slot| slot.model.get().is_none_or(|model| model.runner.generator().is_some());
        let mut served: Vec<String> =
            self.slots().iter().filter(|(_, slot)| generates(slot)).map(|(name, _)| name.clone()).collect();
        served.sort();
        match &served[..] {
            [only] => Ok(only.clone()),
            _ => Err(ModelError::WhichModel { adapter: adapter.to_owned(), served }),
        }
    }

    /// Checks an adapter against its model and puts it into the table.
    pub(super) async fn register(
        self: &Arc<Self>,
        model: &ModelInUse,
        name: &str,
        order: AdapterOrder,
    ) -> Result<Arc<ServedAdapter>, ModelError> {
        let registered = self.registering(model.clone(), name.into(), order.clone()).await;
        let (base, name, registered) = registered.map_err(|_| ModelError::Lost { name: name.to_owned() })??;
        self.put(base, name, order, &registered).inspect(|adapter| log_loaded(adapter))
    }

    /// Reads an adapter and checks it against its model, on a thread that may block.
    fn registering(self: &Arc<Self>, model: ModelInUse, name: Arc<str>, order: AdapterOrder) -> JoinHandle<Registered> {
        let models = Arc::clone(self);
        tokio::task::spawn_blocking(move || {
            models.reserve_adapters(&model)?;
            let registered = model.generator()?.adapters().register(order.source.clone());
            let registered = registered.map_err(|error| failed(&name, &order.source, error))?;
            Ok((Arc::clone(&model.name), name, registered))
        })
    }

    fn put(
        &self,
        base: Arc<str>,
        name: Arc<str>,
        order: AdapterOrder,
        registered: &RegisteredAdapter,
    ) -> Result<Arc<ServedAdapter>, ModelError> {
        let AdapterOrder { source, owner, may_replace, .. } = order;
        let (id, bytes, rank) = (registered.id, registered.bytes, registered.ranks.1);
        let new = NewAdapter { name: Arc::clone(&name), base: Arc::clone(&base), owner, source, id, bytes, rank };
        let put = self.table().put(new, may_replace);
        let adapter = match put {
            Put::Added(adapter) | Put::Unchanged(adapter) => adapter,
            Put::Replaced { new, old } => {
                self.unregister_unused(&old.base, old.id);
                new
            }
            Put::Taken(_) | Put::Full => {
                self.unregister_unused(&base, id);
                let is_full = put == Put::Full;
                return Err(ModelError::AdapterTaken { name: name.to_string(), is_full });
            }
        };
        self.share_out_adapters();
        Ok(adapter)
    }

    /// Tells the engine that a content is no longer named, unless another name means it.
    pub(in crate::models) fn unregister_unused(&self, base: &Arc<str>, id: AdapterId) {
        if self.table().uses(base, id) || self.is_learned(base, id) {
            return;
        }
        let model = self.slots().get(&**base).and_then(|slot| slot.model.get().cloned());
        if let Some(engine) = model.as_ref().and_then(|model| model.runner.generator()) {
            engine.adapters().unregister(id);
        }
    }
}

fn log_loaded(adapter: &ServedAdapter) {
    tracing::info!(adapter = %adapter.full_name(), digest = adapter.digest(), rank = adapter.rank, "loaded");
}

/// Returns whether a path and the files of an adapter in it lie below a folder, wherever links lead.
fn is_below(folder: &Path, path: &Path) -> bool {
    let Ok(folder) = folder.canonicalize() else { return false };
    let lies_below = |path: &Path| path.canonicalize().is_ok_and(|real| real.starts_with(&folder));
    let files = ["adapter_config.json", "adapter_model.safetensors"];
    let beside = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
    path.is_absolute()
        && lies_below(path)
        && files.iter().map(|file| beside.join(file)).all(|file| !file.exists() || lies_below(&file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_below_a_folder_may_be_loaded() {
        let root = tempfile::tempdir().unwrap();
        let (open, closed) = (root.path().join("open"), root.path().join("closed"));
        for folder in [&open.join("a"), &closed] {
            std::fs::create_dir_all(folder).unwrap();
            std::fs::write(folder.join("adapter_config.json"), "{}").unwrap();
        }
        std::os::unix::fs::symlink(&closed, open.join("link")).unwrap();
        std::fs::create_dir(open.join("b")).unwrap();
        std::os::unix::fs::symlink(closed.join("adapter_config.json"), open.join("b/adapter_config.json")).unwrap();
        assert!(is_below(&open, &open.join("a")));
        assert!(is_below(&open, &open.join("a/adapter_config.json")));
        for path in [closed.clone(), open.join("link"), open.join("b"), open.join("../closed"), open.join("nothing")] {
            assert!(!is_below(&open, &path), "{}", path.display());
        }
        assert!(!is_below(&open, Path::new("a")) && !is_below(Path::new("/nowhere"), &open));
    }
}
