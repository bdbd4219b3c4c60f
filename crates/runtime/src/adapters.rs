//! The adapters of an engine: registered (known, on disk), and hot (in memory, ready to multiply).
//!
//! Adapters are loaded on the thread that asks for one, never on the engine's, which finds them by id in a table
//! ([`ResidentAdapters`]). What a request holds stays there; of the rest, what was not used for longest makes room.

mod hot;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use hot::{HotAdapters, Reserved};
use ruvllm_engine::{AdapterId, HeldAdapter, TokenId};
use ruvllm_model::adapters::{AdapterBuffers, AdapterError, AdapterFile, AdapterTargets, ResidentAdapters, pack};

/// Memory for hot adapters where nothing else is said.
const BUDGET_BYTES: usize = 512 << 20;
/// Adapters that are known at most: each takes a few hundred bytes.
const REGISTERED_MAX: usize = 1 << 20;
/// Adapters of one request at most.
const COMBINED_MAX: usize = 8;

/// The adapters of one engine. Clones share them. Everything is cheap except [`Adapters::register`] and [`Adapters::hold`], which
/// may read a file.
#[derive(Clone, Debug)]
pub struct Adapters(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    backend: &'static str,
    base: Option<AdapterBase>,
    state: Mutex<State>,
    /// Notified when a load has ended.
    loaded: Condvar,
}

/// What adapters are held against, and where the runner finds them.
#[derive(Debug)]
pub(crate) struct AdapterBase {
    pub targets: AdapterTargets,
    pub resident: Arc<ResidentAdapters>,
    pub buffers: AdapterBuffers,
}

#[derive(Debug, Default)]
struct State {
    registered: HashMap<AdapterId, RegisteredAdapter>,
    hot: HotAdapters,
    /// Whether something in memory may have been unregistered.
    may_be_forgotten: bool,
}

/// What is known of an adapter that was registered.
#[derive(Clone, Debug, PartialEq)]
pub struct RegisteredAdapter {
    pub id: AdapterId,
    pub source: PathBuf,
    /// Memory that it takes while it is hot.
    pub bytes: usize,
    /// Whether keys and values differ from the model's own, so that prefixes are cached apart.
    pub changes_kv: bool,
    /// Tokens that switch it on, of an activated adapter.
    pub invocation: Option<Arc<[TokenId]>>,
    /// The smallest and the largest rank of its matrices.
    pub ranks: (usize, usize),
    /// The most ranks that are multiplied with one input, those of all matrices that take it.
    pub ranks_together: usize,
}

/// Figures of an engine's adapters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdapterStats {
    pub registered: usize,
    /// Adapters in memory, and the bytes that they take.
    pub hot: usize,
    pub hot_bytes: usize,
    /// What batches with adapters take beside them, of which `budget_bytes` covers what depends on the ranks.
    pub buffer_bytes: usize,
    pub budget_bytes: usize,
    /// How often one was loaded, dropped from memory, or found there.
    pub loads: u64,
    pub evictions: u64,
    pub hits: u64,
}

/// Adapters that a request asks for, as one.
struct Wanted {
    id: AdapterId,
    /// Those that it is made of, with their weights.
    parts: Vec<(RegisteredAdapter, f32)>,
}

impl Adapters {
    /// `base` is absent where the backend runs no adapters.
    pub(crate) fn new(backend: &'static str, base: Option<AdapterBase>) -> Self {
        let mut state = State::default();
        state.hot.set_budget(BUDGET_BYTES, |_| {});
        Self(Arc::new(Inner { backend, base, state: Mutex::new(state), loaded: Condvar::new() }))
    }

    /// Checks an adapter against the model and makes it known. Reads and hashes the file; its weights stay on disk. One with the
    /// same contents is the same adapter, wherever it is.
    pub fn register(&self, source: PathBuf) -> Result<RegisteredAdapter, AdapterError> {
        let base = self.base()?;
        // The process may change its folder.
        let source = std::path::absolute(&source).unwrap_or(source);
        let file = AdapterFile::open(&source)?;
        let facts = file.check(&base.targets)?;
        let adapter = RegisteredAdapter {
            id: file.id,
            source,
            bytes: facts.bytes,
            changes_kv: facts.changes_kv,
            invocation: file.invocation.map(Into::into),
            ranks: file.ranks,
            ranks_together: facts.ranks,
        };
        let mut state = self.0.lock();
        if state.registered.len() >= REGISTERED_MAX && !state.registered.contains_key(&adapter.id) {
            return Err(AdapterError::Count { count: state.registered.len() + 1, max: REGISTERED_MAX });
        }
        state.registered.insert(adapter.id, adapter.clone());
        Ok(adapter)
    }

    /// Returns what is known of a registered adapter.
    pub fn get(&self, id: AdapterId) -> Option<RegisteredAdapter> {
        self.0.lock().registered.get(&id).cloned()
    }

    /// Returns up to `count` adapters that are in memory, those first that were used last.
    pub fn recent(&self, count: usize) -> Vec<AdapterId> {
        self.0.lock().hot.recent().take(count).collect()
    }

    /// Forgets an adapter. Requests that hold it go on with it; its memory is free when the last of them has ended and another
    /// adapter is asked for.
    pub fn unregister(&self, id: AdapterId) {
        let mut state = self.0.lock();
        state.registered.remove(&id);
        state.may_be_forgotten = true;
        self.0.drop_forgotten(&mut state);
    }

    /// Returns adapters for a request, with weights, ready to multiply: several are added up and count as one. Loads what is not
    /// in memory, on this thread. They stay in memory while the result or a clone of it lives.
    pub fn hold(&self, adapters: &[(AdapterId, f32)]) -> Result<HeldAdapter, AdapterError> {
        let base = self.base()?;
        let mut state = self.0.lock();
        let wanted = Wanted::new(&state, adapters)?;
        self.0.drop_forgotten(&mut state);
        loop {
            if let Some(guard) = state.hot.find(wanted.id) {
                return Ok(wanted.held(guard));
            }
            if !state.hot.is_loading(wanted.id) {
                break;
            }
            state = self.0.loaded.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let bytes = wanted.parts.iter().map(|(part, _)| part.bytes).sum();
        let made_of = wanted.parts.iter().map(|(part, _)| part.id).collect();
        let ranks: usize = wanted.parts.iter().map(|(part, _)| part.ranks_together).sum();
        let products = ranks.saturating_mul(base.buffers.rank_bytes);
        state.hot.reserve(wanted.id, made_of, bytes, products, |id| base.resident.remove(id))?;
        drop(state);
        let loading = Loading { inner: &self.0, id: wanted.id };
        let adapter = Arc::new(wanted.load(base)?);
        let bytes = adapter.bytes();
        base.resident.insert(wanted.id, adapter);
        let guard = self.0.lock().hot.publish(wanted.id, bytes);
        drop(loading);
        Ok(wanted.held(guard))
    }

    /// Changes the memory for hot adapters; those that no request holds are dropped first.
    pub fn set_budget(&self, bytes: usize) {
        let mut state = self.0.lock();
        self.0.drop_forgotten(&mut state);
        state.hot.set_budget(bytes, |id| self.0.remove_resident(id));
    }

    pub fn stats(&self) -> AdapterStats {
        let mut state = self.0.lock();
        self.0.drop_forgotten(&mut state);
        let hot = state.hot.stats();
        let inputs = if hot.loads > 0 { self.input_buffer_bytes() } else { 0 };
        AdapterStats { registered: state.registered.len(), buffer_bytes: inputs + hot.buffer_bytes, ..hot }
    }

    /// Returns the memory that the first batch with an adapter takes and keeps, which no budget of adapters covers.
    pub fn input_buffer_bytes(&self) -> usize {
        self.0.base.as_ref().map_or(0, |base| base.buffers.input_bytes)
    }

    /// Returns the matrices of the model that adapters can change.
    pub fn targets(&self) -> Result<&AdapterTargets, AdapterError> {
        Ok(&self.base()?.targets)
    }

    fn base(&self) -> Result<&AdapterBase, AdapterError> {
        self.0.base.as_ref().ok_or(AdapterError::Backend(self.0.backend))
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove_resident(&self, id: AdapterId) {
        if let Some(base) = &self.base {
            base.resident.remove(id);
        }
    }

    /// Drops what was unregistered from memory, unless a request holds it.
    fn drop_forgotten(&self, state: &mut State) {
        let State { registered, hot, may_be_forgotten } = state;
        if *may_be_forgotten {
            let is_wanted = |parts: &[AdapterId]| parts.iter().all(|id| registered.contains_key(id));
            *may_be_forgotten = hot.drop_unless(is_wanted, |id| self.remove_resident(id));
        }
    }
}

/// Ends a load, however it ends.
struct Loading<'a> {
    inner: &'a Inner,
    id: AdapterId,
}

impl Drop for Loading<'_> {
    fn drop(&mut self) {
        self.inner.lock().hot.end_loading(self.id);
        self.inner.loaded.notify_all();
    }
}

impl Wanted {
    /// Finds what was asked for, and refuses what does not go together.
    fn new(state: &State, adapters: &[(AdapterId, f32)]) -> Result<Self, AdapterError> {
        if !(1..=COMBINED_MAX).contains(&adapters.len()) {
            return Err(AdapterError::Count { count: adapters.len(), max: COMBINED_MAX });
        }
        let mut parts = Vec::with_capacity(adapters.len());
        for (id, weight) in adapters {
            if !weight.is_finite() {
                return Err(AdapterError::Weight { id: *id, weight: *weight });
            }
            let part = state.registered.get(id).ok_or(AdapterError::NotRegistered(*id))?;
            parts.push((part.clone(), *weight));
        }
        if let Some((other, _)) = parts.iter().find(|(part, _)| part.invocation != parts[0].0.invocation) {
            let id = if other.invocation.is_some() { other.id } else { parts[0].0.id };
            return Err(AdapterError::MixedInvocation(id));
        }
        Ok(Self { id: combined_id(adapters), parts })
    }

    /// Reads and packs the weights.
    fn load(&self, base: &AdapterBase) -> Result<ruvllm_model::adapters::Adapter, AdapterError> {
        let mut files = Vec::with_capacity(self.parts.len());
        for (part, weight) in &self.parts {
            let file = AdapterFile::open(&part.source)?;
            if file.id != part.id {
                return Err(AdapterError::Changed(part.source.clone()));
            }
            files.push((file, *weight));
        }
        let files: Vec<(&AdapterFile, f32)> = files.iter().map(|(file, weight)| (file, *weight)).collect();
        pack(&files, &base.targets)
    }

    fn held(&self, guard: Reserved) -> HeldAdapter {
        let changes_kv = self.parts.iter().any(|(part, _)| part.changes_kv);
        HeldAdapter::new(self.id, changes_kv, self.parts[0].0.invocation.clone(), guard)
    }
}

/// Names adapters with weights: one alone, as it is, by its own name.
fn combined_id(adapters: &[(AdapterId, f32)]) -> AdapterId {
    if let [(id, 1.0)] = adapters {
        return *id;
    }
    let mut hasher = blake3::Hasher::new_derive_key("ruvllm adapters combined 1");
    for (AdapterId(digest), weight) in adapters {
        hasher.update(digest);
        hasher.update(&weight.to_le_bytes());
    }
    AdapterId(*hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests;
