//! Which of several models answers a request that leaves it open.
//!
//! Each tenant that takes part in learning has a router of its own, made from what the witness log says of its own
//! requests: so nobody's feedback steers another's choices, and what is forgotten is gone from it. A thread keeps
//! routers up to date; requests only take a reference.

mod outcomes;
mod seen;
mod worker;

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ruvllm_learning::routing::{Bandit, Decision, EXPLORATION_MAX, Features, Network, RewardRule, drawn, explored};
use ruvllm_memory::{Memory, MemoryError, ModelChoice, Routing};

pub use outcomes::{RoutedOutcome, routed_outcomes};
pub use seen::features_of;
use worker::Worker;

/// Tenants whose routers are known at a time.
const TENANTS_MAX: usize = 1024;
/// Memory of all routers together: those that were not used for longest make room, and are made again.
const BYTES_MAX: usize = 32 << 20;

/// What an operator decides about choices.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RouterOptions {
    /// Share of the choices that are made by chance, so that the log says what others would have given. At most a half.
    pub exploration: f64,
    pub rule: RewardRule,
}

/// A model that was chosen, or that a request named where there was a choice.
#[derive(Clone, Debug, PartialEq)]
pub struct RoutedModel {
    pub model: String,
    /// Of all candidates, by their names.
    pub probabilities: BTreeMap<String, f64>,
    pub confidence: f64,
    pub choice: ModelChoice,
    pub took: Duration,
}

/// The routers of all tenants, and the thread that keeps them up to date. Dropping it ends the thread.
#[derive(Debug)]
pub struct ModelRouter {
    shared: Arc<Shared>,
    exploration: f64,
    random: RandomState,
    // `None` only while this is dropped.
    tasks: Option<Sender<String>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    tenants: HashMap<String, Known>,
    /// Counts uses, to tell which router was used last.
    uses: u64,
    /// Counts choices, which random numbers follow from.
    choices: u64,
    is_closing: bool,
}

#[derive(Debug)]
struct Known {
    /// `None` until it was made.
    router: Option<Arc<TenantRouter>>,
    used: u64,
}

/// What was learned from a tenant's choices.
#[derive(Debug, Default)]
struct TenantRouter {
    bandit: Bandit,
    /// With its version, if it has beaten the bandit.
    network: Option<(i64, Network)>,
}

impl ModelRouter {
    /// Starts the thread.
    pub fn start(memory: Arc<Memory>, options: RouterOptions) -> Result<Self, MemoryError> {
        let shared = Arc::new(Shared::default());
        let (tasks, received) = channel();
        let worker = Worker::new(Arc::clone(&shared), memory, options.rule, received)?;
        let thread = std::thread::Builder::new().name("router".into()).spawn(move || worker.run());
        let thread = Some(thread.map_err(MemoryError::Thread)?);
        let exploration = options.exploration.clamp(0.0, EXPLORATION_MAX);
        Ok(Self { shared, exploration, random: RandomState::new(), tasks: Some(tasks), thread })
    }

    /// Chooses one of `models`, of which the one at `default` answers where nothing is known. Where nothing is known of
    /// a tenant yet, that is read meanwhile, for the requests to come.
    pub fn choose(&self, tenant: &str, models: &[&str], default: usize, features: &Features) -> RoutedModel {
        let started = Instant::now();
        let router = self.router_of(tenant);
        let (decision, by) = match router.as_deref() {
            Some(router) => (router.decide(features, models, default), router.name()),
            None => (Decision { place: default, confidence: 0.0 }, "default".to_owned()),
        };
        let probabilities = explored(decision.place, models.len(), self.exploration);
        let place = drawn(&probabilities, self.unit());
        RoutedModel {
            model: models[place].to_owned(),
            probabilities: models.iter().map(|model| (*model).to_owned()).zip(probabilities).collect(),
            confidence: decision.confidence,
            choice: ModelChoice { by, default: models[default].to_owned(), features: features.to_text() },
            took: started.elapsed(),
        }
    }

    /// Returns the router of a tenant, or has it made and returns `None`.
    fn router_of(&self, tenant: &str) -> Option<Arc<TenantRouter>> {
        let mut state = self.shared.state();
        state.uses += 1;
        let used = state.uses;
        if let Some(known) = state.tenants.get_mut(tenant) {
            known.used = used;
            return known.router.clone();
        }
        if state.tenants.len() >= TENANTS_MAX {
            state.remove_least_recent();
        }
        state.tenants.insert(tenant.to_owned(), Known { router: None, used });
        drop(state);
        self.prepare(tenant);
        None
    }

    /// Has the router of a tenant made.
    fn prepare(&self, tenant: &str) {
        if let Some(tasks) = &self.tasks {
            // The thread has panicked if nobody receives it; that was logged.
            let _ = tasks.send(tenant.to_owned());
        }
    }

    /// Returns a random number from 0 to below 1.
    fn unit(&self) -> f64 {
        let mut state = self.shared.state();
        state.choices += 1;
        (self.random.hash_one(state.choices) >> 11) as f64 / (1u64 << 53) as f64
    }
}

impl RoutedModel {
    /// Returns the record of a request that names its model: what it was worth is learned from, and nobody has drawn it.
    pub fn named(model: &str, features: &Features) -> Self {
        Self {
            model: model.to_owned(),
            probabilities: [(model.to_owned(), 1.0)].into(),
            confidence: 0.0,
            choice: ModelChoice {
                by: outcomes::NAMED.to_owned(),
                default: model.to_owned(),
                features: features.to_text(),
            },
            took: Duration::ZERO,
        }
    }

    /// Returns how likely this model was to be chosen.
    pub fn probability(&self) -> f64 {
        self.probabilities.get(&self.model).copied().unwrap_or_default()
    }

    /// Puts the choice into the log's record of what was decided.
    pub(crate) fn note(&self, routing: &mut Routing) {
        routing.probabilities.clone_from(&self.probabilities);
        if self.choice.by != outcomes::NAMED {
            routing.confidence = self.confidence;
        }
        routing.choice = Some(self.choice.clone());
    }
}

impl TenantRouter {
    fn decide(&self, features: &Features, models: &[&str], default: usize) -> Decision {
        match &self.network {
            Some((_, network)) => network.decide(features, models, default),
            None => self.bandit.decide(features, models, default),
        }
    }

    /// Returns the log's name of what decides.
    fn name(&self) -> String {
        match &self.network {
            Some((version, _)) => format!("fastgrnn/{version}"),
            None => format!("bandit/{}", self.bandit.observations()),
        }
    }

    fn bytes(&self) -> usize {
        self.bandit.bytes() + self.network.as_ref().map_or(0, |(_, network)| network.bytes())
    }
}

impl Drop for ModelRouter {
    fn drop(&mut self) {
        self.shared.state().is_closing = true;
        self.tasks = None;
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, that was logged.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No operation under the lock can leave it inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remove_least_recent(&mut self) -> bool {
        let oldest = self.tenants.iter().min_by_key(|(_, known)| known.used).map(|(tenant, _)| tenant.clone());
        oldest.is_some_and(|tenant| self.tenants.remove(&tenant).is_some())
    }

    /// Publishes a router, unless its tenant made room for others meanwhile.
    fn publish(&mut self, tenant: &str, router: TenantRouter) {
        if let Some(known) = self.tenants.get_mut(tenant) {
            known.router = Some(Arc::new(router));
        }
        while self.bytes() > BYTES_MAX && self.remove_least_recent() {}
    }

    fn bytes(&self) -> usize {
        self.tenants.values().filter_map(|known| known.router.as_ref()).map(|router| router.bytes()).sum()
    }
}
