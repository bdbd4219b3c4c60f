//! How long a model stays loaded after its last use.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::{Models, ServedModel};

/// What a request wants to happen to the model after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepAlive {
    /// Zero unloads it at once.
    For(Duration),
    /// Until its memory is needed for others.
    Forever,
}

impl ServedModel {
    /// Sets how long it stays loaded; `None` is what the server does by default.
    pub fn keep_alive(&self, keep_alive: Option<KeepAlive>) {
        *self.keep_alive.lock().unwrap_or_else(PoisonError::into_inner) = keep_alive;
    }

    /// Returns when it may be unloaded, unless it is kept. `server` is the default of the server.
    pub(super) fn expires(&self, server: Option<Duration>) -> Option<Instant> {
        let kept = match *self.keep_alive.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(KeepAlive::For(time)) => Some(time),
            Some(KeepAlive::Forever) => None,
            None => server,
        };
        self.used_at.lock().unwrap_or_else(PoisonError::into_inner).checked_add(kept?)
    }
}

impl Models {
    /// Returns when a model is going to be unloaded; `None` if it stays.
    pub fn expires_at(&self, model: &ServedModel) -> Option<SystemTime> {
        if self.is_pinned(&model.name) {
            return None;
        }
        let left = model.expires(self.options.keep_alive)?.saturating_duration_since(Instant::now());
        SystemTime::now().checked_add(left)
    }

    /// Begins the time until a model is unloaded anew. Returns whether that time is none.
    pub fn touch(&self, name: &str) -> bool {
        let model = self.slots().get(name).and_then(|slot| slot.model.get().cloned());
        let Some(model) = model else { return false };
        *model.used_at.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
        *model.keep_alive.lock().unwrap_or_else(PoisonError::into_inner) == Some(KeepAlive::For(Duration::ZERO))
    }

    /// Returns whether a model is loaded now.
    pub fn is_loaded(&self, name: &str) -> bool {
        self.loaded_as(name).is_some()
    }

    /// Returns the loaded model that requests for this name get, without using it.
    pub fn loaded_as(&self, name: &str) -> Option<Arc<ServedModel>> {
        let slot = self.target(name).slot;
        self.slots().get(&slot).and_then(|slot| slot.model.get().cloned())
    }

    /// Returns whether a model was named at the start, and so stays loaded.
    pub fn is_pinned(&self, name: &str) -> bool {
        self.slots().get(name).is_some_and(|slot| slot.is_pinned)
    }
}
