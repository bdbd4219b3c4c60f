//! Keeps routers up to date on a thread of its own: follows the log, learns, publishes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use ruvllm_learning::routing::{Bandit, CHOICES_MAX, LoggedChoice, Network, RewardRule};
use ruvllm_memory::{ChoiceChanges, Memory, MemoryError, ServedRouter};

use super::outcomes::routed_outcomes;
use super::{Shared, TenantRouter};

/// Interval at which the log is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Interval at which everything is made again: entries of the log expire.
const MAKE_AGAIN_EVERY: Duration = Duration::from_secs(600);
/// How long it rests after work, as a multiple of the time that it took: answers need the cores.
const REST: u32 = 20;

pub(super) struct Worker {
    shared: Arc<Shared>,
    memory: Arc<Memory>,
    rule: RewardRule,
    /// Tenants that have asked for a router.
    tasks: Receiver<String>,
    /// Where the log is looked at from, and the memory's count of changes of what is served.
    mark: i64,
    served_change: i64,
    networks: Vec<ServedRouter>,
    /// Tenants whose router is not what the log says.
    outdated: BTreeSet<String>,
    rests_until: Instant,
    made_at: Instant,
    is_failing: bool,
}

impl Worker {
    pub fn new(
        shared: Arc<Shared>,
        memory: Arc<Memory>,
        rule: RewardRule,
        tasks: Receiver<String>,
    ) -> Result<Self, MemoryError> {
        let learning = memory.learning();
        let (mark, served_change) = (learning.changes_mark()?, learning.served_change()?);
        let networks = learning.served_routers()?;
        let (outdated, now) = (BTreeSet::new(), Instant::now());
        let worker = Self {
            shared,
            memory,
            rule,
            tasks,
            mark,
            served_change,
            networks,
            outdated,
            rests_until: now,
            made_at: now,
            is_failing: false,
        };
        Ok(worker)
    }

    /// Runs until the sender of tasks is dropped.
    pub fn run(mut self) {
        while !self.shared.state().is_closing {
            match self.tasks.recv_timeout(LOOK_EVERY) {
                Ok(tenant) => {
                    self.outdated.insert(tenant);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let worked = self.work();
            if let (Err(error), false) = (&worked, self.is_failing) {
                tracing::warn!("routers cannot follow the log now; choices are made as before: {error}");
            }
            self.is_failing = worked.is_err();
        }
    }

    fn work(&mut self) -> Result<(), MemoryError> {
        if self.shared.state().tenants.is_empty() {
            return Ok(());
        }
        self.look()?;
        if Instant::now() < self.rests_until {
            return Ok(());
        }
        let began = Instant::now();
        while let Some(tenant) = self.outdated.first().cloned() {
            if self.shared.state().is_closing {
                return Ok(());
            }
            self.make(&tenant)?;
            self.outdated.remove(&tenant);
        }
        self.rests_until = Instant::now() + REST * began.elapsed();
        Ok(())
    }

    /// Notes whose routers are not what the log says any more.
    fn look(&mut self) -> Result<(), MemoryError> {
        let learning = self.memory.learning();
        let ChoiceChanges { mark, tenants, has_forgotten } = learning.choice_changes(self.mark)?;
        let served_change = learning.served_change()?;
        if served_change != self.served_change {
            self.networks = learning.served_routers()?;
            self.served_change = served_change;
            self.all_are_outdated();
        }
        self.mark = mark;
        if has_forgotten {
            // At once, whatever the rest: what it was learned from is gone.
            self.shared.state().tenants.values_mut().for_each(|known| known.router = None);
            self.rests_until = Instant::now();
        }
        if has_forgotten || self.made_at.elapsed() > MAKE_AGAIN_EVERY {
            self.made_at = Instant::now();
            self.all_are_outdated();
        }
        let state = self.shared.state();
        self.outdated.extend(tenants.into_iter().filter(|tenant| state.tenants.contains_key(tenant)));
        Ok(())
    }

    fn all_are_outdated(&mut self) {
        self.outdated.extend(self.shared.state().tenants.keys().cloned());
    }

    fn make(&self, tenant: &str) -> Result<(), MemoryError> {
        let outcomes = routed_outcomes(&self.memory, tenant, self.rule, CHOICES_MAX)?;
        let choices: Vec<LoggedChoice> = outcomes.into_iter().map(|outcome| outcome.logged).collect();
        let served = self.networks.iter().find(|served| served.tenant == tenant);
        let network = served.and_then(|served| Some((served.version, network_of(served)?)));
        let router = TenantRouter { bandit: Bandit::of(&choices), network };
        self.shared.state().publish(tenant, router);
        Ok(())
    }
}

/// Returns a network as it was stored; one that cannot be used is told of, and the bandit chooses.
fn network_of(served: &ServedRouter) -> Option<Network> {
    let ServedRouter { tenant, version, router } = served;
    let network = serde_json::from_value::<Network>(router.clone()).map_err(|error| error.to_string());
    let checked = network.and_then(|network| network.check().map(|()| network).map_err(|error| error.to_string()));
    checked
        .inspect_err(|error| tracing::error!(version, tenant, "a router is not used, and the bandit chooses: {error}"))
        .ok()
}
