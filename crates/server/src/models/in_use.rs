//! Who uses a model. One that nobody uses may be unloaded to make room for others.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ruvllm_runtime::RoutedModel;
use ruvllm_store::ModelSettings;

use super::adapters::Chosen;
use super::{ServedAdapter, ServedModel};

/// Counts the users of a model.
#[derive(Debug, Default)]
pub(super) struct Users(Arc<AtomicUsize>);

impl Users {
    /// Counts one user more, until the returned value is dropped.
    pub(super) fn enter(&self) -> User {
        self.0.fetch_add(1, Ordering::Relaxed);
        User(Arc::clone(&self.0))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.0.load(Ordering::Acquire) == 0
    }
}

/// One counted user.
#[derive(Debug)]
pub(super) struct User(Arc<AtomicUsize>);

impl Drop for User {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl Clone for User {
    fn clone(&self) -> Self {
        Users(Arc::clone(&self.0)).enter()
    }
}

/// A model that is in use: it is not unloaded for others while this value exists.
#[derive(Clone, Debug)]
pub struct ModelInUse {
    // Dropped first: a model without users has no other owner than its slot.
    pub(super) model: Arc<ServedModel>,
    _user: User,
    /// Defaults for the requests of this user: those of the model, or of one that is made from it.
    pub defaults: Arc<ModelSettings>,
    /// Adapters of the requests of this user, with their weights.
    pub(crate) adapters: Chosen,
    /// How it was chosen, where that is learned from.
    pub(crate) routed: Option<Arc<RoutedModel>>,
    /// Whether the request left the model to the server.
    pub(crate) is_auto: bool,
}

impl ModelInUse {
    pub(super) fn new(model: Arc<ServedModel>, user: User) -> Self {
        let defaults = Arc::clone(&model.settings);
        Self { model, _user: user, defaults, adapters: Vec::new(), routed: None, is_auto: false }
    }

    pub(super) fn with_settings(self, defaults: Arc<ModelSettings>) -> Self {
        Self { defaults, ..self }
    }

    pub(super) fn with_adapters(self, adapters: Chosen) -> Self {
        Self { adapters, ..self }
    }

    pub(crate) fn with_choice(self, routed: Option<RoutedModel>, is_auto: bool) -> Self {
        Self { routed: routed.map(Arc::new), is_auto, ..self }
    }

    /// Returns what the witness log calls the adapters: names with digests, and weights where they are not 1.
    pub(crate) fn adapter_label(&self) -> Option<String> {
        let one = |(adapter, weight): &(Arc<ServedAdapter>, f32)| match *weight {
            1.0 => format!("{}@{}", adapter.name, adapter.digest()),
            weight => format!("{weight}*{}@{}", adapter.name, adapter.digest()),
        };
        let all: Vec<String> = self.adapters.iter().map(one).collect();
        (!all.is_empty()).then(|| all.join("+"))
    }
}

impl Deref for ModelInUse {
    type Target = ServedModel;

    fn deref(&self) -> &ServedModel {
        &self.model
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_idle_when_its_last_user_is_gone() {
        let users = Users::default();
        assert!(users.is_idle());
        let first = users.enter();
        let second = first.clone();
        drop(first);
        assert!(!users.is_idle());
        drop(second);
        assert!(users.is_idle());
    }
}
