//! Pools of one process take leases on its cores.
//!
//! A parallel region wants its cores for itself: two regions on the same cores keep each other waiting at every barrier and
//! spill each other's caches. So a pool holds its cores for a lease of some milliseconds, over several regions, and hands
//! them on when another waits: between regions, or at a barrier in the middle of a long one. Pools that fit side by side
//! run side by side.
//!
//! Leases are long, because the weights of a small model stay in the last cache for as long as nobody else reads his: the
//! first pass of a lease takes twice as long as the others. Who comes from a rest does not wait for that long: somebody
//! waits there for a first token.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Long enough that handing on costs little, short enough that the tokens of several models seem to come evenly.
const LEASE: Duration = Duration::from_millis(64);
/// While somebody waits who comes from a rest.
const SHORT_LEASE: Duration = Duration::from_millis(8);

/// The cores of a process, for pools that share them.
#[derive(Debug)]
pub struct Cores {
    count: usize,
    state: Mutex<State>,
    changed: Condvar,
    /// Whether any pool waits; looked at without the lock.
    is_wanted: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    leases: Vec<CoreLease>,
    /// Pools that wait, in their order.
    waiting: VecDeque<Waiting>,
    /// Pools that have had a lease since their last rest.
    busy: Vec<u64>,
}

#[derive(Debug, PartialEq, Eq)]
struct Waiting {
    pool: u64,
    cores: usize,
    is_rested: bool,
}

/// A pool's use of its cores.
#[derive(Debug)]
struct CoreLease {
    pool: u64,
    cores: usize,
    since: Instant,
    /// Between regions it can lose the cores when its lease is over.
    is_in_region: bool,
}

impl Cores {
    pub fn new(count: usize) -> Self {
        let (state, changed, is_wanted) = (Mutex::default(), Condvar::new(), AtomicBool::new(false));
        Self { count: count.max(1), state, changed, is_wanted }
    }

    /// Blocks until a pool may begin a region on `cores` cores. Returns how long that took.
    pub(super) fn enter(&self, pool: u64, cores: usize) -> Duration {
        let mut state = self.state();
        let lease_max = state.lease_max();
        if let Some(lease) = state.lease_of(pool) {
            if !self.is_wanted.load(Ordering::Relaxed) || lease.since.elapsed() < lease_max {
                lease.is_in_region = true;
                return Duration::ZERO;
            }
            state.leases.retain(|lease| lease.pool != pool);
        }
        let asked = Instant::now();
        state.queue(pool, cores);
        self.update(&state);
        while state.waiting.front().is_none_or(|first| first.pool != pool) || !state.make_room(self.count, cores) {
            state = match state.next_end() {
                Some(left) => self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
        state.waiting.pop_front();
        let now = Instant::now();
        state.leases.push(CoreLease { pool, cores, since: now, is_in_region: true });
        if !state.busy.contains(&pool) {
            state.busy.push(pool);
        }
        self.update(&state);
        now - asked
    }

    /// The region is over. The rest of the lease is kept for the next one.
    pub(super) fn leave(&self, pool: u64) {
        let mut state = self.state();
        if let Some(lease) = state.lease_of(pool) {
            lease.is_in_region = false;
        }
        if !state.waiting.is_empty() {
            self.changed.notify_all();
        }
    }

    /// No region will follow soon: others need not wait for the end of the lease.
    pub(super) fn rest(&self, pool: u64) {
        let mut state = self.state();
        state.leases.retain(|lease| lease.pool != pool);
        state.busy.retain(|busy| *busy != pool);
        self.update(&state);
    }

    /// Whether a pool should hand on its cores in the middle of a region.
    pub(super) fn is_due(&self, pool: u64) -> bool {
        if !self.is_wanted.load(Ordering::Relaxed) {
            return false;
        }
        let mut state = self.state();
        let lease_max = state.lease_max();
        state.lease_of(pool).is_some_and(|lease| lease.since.elapsed() >= lease_max)
    }

    /// Hands on the cores and waits until they come back. Gives how long that took.
    pub(super) fn give_way(&self, pool: u64, cores: usize) -> Duration {
        self.state().leases.retain(|lease| lease.pool != pool);
        self.enter(pool, cores)
    }

    /// Waits while a pool that is in a region does not have its lease.
    pub(super) fn wait_for_turn(&self, pool: u64) {
        drop(self.changed.wait_while(self.state(), |state| state.lease_of(pool).is_none()));
    }

    fn update(&self, state: &State) {
        self.is_wanted.store(!state.waiting.is_empty(), Ordering::Relaxed);
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn lease_of(&mut self, pool: u64) -> Option<&mut CoreLease> {
        self.leases.iter_mut().find(|lease| lease.pool == pool)
    }

    /// Those that come from a rest are before the others.
    fn queue(&mut self, pool: u64, cores: usize) {
        let is_rested = !self.busy.contains(&pool);
        let after = self.waiting.iter().take_while(|other| other.is_rested || !is_rested).count();
        self.waiting.insert(after, Waiting { pool, cores, is_rested });
    }

    /// How long a lease takes while others wait.
    fn lease_max(&self) -> Duration {
        if self.waiting.front().is_some_and(|first| first.is_rested) { SHORT_LEASE } else { LEASE }
    }

    /// Ends leases that are over, and returns whether `cores` cores are free. A pool that wants more than there are has to have
    /// all of them.
    fn make_room(&mut self, count: usize, wanted: usize) -> bool {
        let lease_max = self.lease_max();
        self.leases.retain(|lease| lease.is_in_region || lease.since.elapsed() < lease_max);
        let taken: usize = self.leases.iter().map(|lease| lease.cores).sum();
        taken == 0 || taken + wanted <= count
    }

    /// How long until a lease is over that nobody will report the end of.
    fn next_end(&self) -> Option<Duration> {
        let between = self.leases.iter().filter(|lease| !lease.is_in_region);
        between.map(|lease| self.lease_max().saturating_sub(lease.since.elapsed())).min()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::thread;

    use super::*;

    const SHORT: Duration = Duration::from_millis(30);
    const LONG: Duration = Duration::from_secs(60);

    /// Enters on a thread of its own; tells when it is in.
    fn entering(cores: &Arc<Cores>, pool: u64, wanted: usize) -> std::sync::mpsc::Receiver<Duration> {
        let (tell, told) = channel();
        let cores = Arc::clone(cores);
        thread::spawn(move || tell.send(cores.enter(pool, wanted)));
        told
    }

    #[test]
    fn a_region_is_not_disturbed_by_another_pool() {
        let cores = Arc::new(Cores::new(2));
        cores.enter(1, 2);
        let other = entering(&cores, 2, 2);
        assert_eq!(other.recv_timeout(SHORT), Err(RecvTimeoutError::Timeout));
        cores.leave(1);
        assert!(other.recv_timeout(LONG).unwrap() > Duration::ZERO);
    }

    #[test]
    fn pools_that_fit_side_by_side_do_not_wait() {
        let cores = Arc::new(Cores::new(3));
        cores.enter(1, 1);
        assert_eq!(entering(&cores, 2, 2).recv_timeout(LONG).map(|waited| waited < LONG), Ok(true));
        let third = entering(&cores, 3, 1);
        assert_eq!(third.recv_timeout(SHORT), Err(RecvTimeoutError::Timeout));
        cores.rest(2);
        third.recv_timeout(LONG).unwrap();
    }

    #[test]
    fn a_pool_with_more_threads_than_cores_gets_all_of_them() {
        let cores = Arc::new(Cores::new(2));
        cores.enter(1, 8);
        let other = entering(&cores, 2, 1);
        assert_eq!(other.recv_timeout(SHORT), Err(RecvTimeoutError::Timeout));
        cores.rest(1);
        other.recv_timeout(LONG).unwrap();
    }

    #[test]
    fn a_turn_is_kept_over_several_regions_and_then_handed_on() {
        let cores = Arc::new(Cores::new(2));
        cores.enter(1, 2);
        let other = entering(&cores, 2, 2);
        while !cores.is_due(1) {
            thread::yield_now();
        }
        // Both have been in when this returns: the other one, and this one again.
        let left = Arc::clone(&cores);
        let second = thread::spawn(move || {
            other.recv_timeout(LONG).unwrap();
            left.leave(2);
        });
        cores.leave(1);
        cores.enter(1, 2);
        second.join().unwrap();
        assert!(!cores.is_due(1));
    }

    #[test]
    fn who_comes_from_a_rest_is_before_those_that_work_all_the_time() {
        let cores = Arc::new(Cores::new(1));
        // Both have had a lease.
        cores.enter(1, 1);
        cores.leave(1);
        thread::sleep(LEASE);
        cores.enter(2, 1);
        let first = entering(&cores, 1, 1);
        while cores.state().waiting.is_empty() {
            thread::yield_now();
        }
        assert_eq!(cores.state().lease_max(), LEASE);
        let rested = entering(&cores, 3, 1);
        while cores.state().waiting.len() < 2 {
            thread::yield_now();
        }
        assert_eq!(cores.state().lease_max(), SHORT_LEASE);
        cores.rest(2);
        rested.recv_timeout(LONG).unwrap();
        assert_eq!(first.recv_timeout(SHORT), Err(RecvTimeoutError::Timeout));
        cores.rest(3);
        first.recv_timeout(LONG).unwrap();
    }

    #[test]
    fn who_rests_keeps_nobody_waiting() {
        let cores = Arc::new(Cores::new(1));
        cores.enter(1, 1);
        let other = entering(&cores, 2, 1);
        cores.leave(1);
        cores.rest(1);
        other.recv_timeout(LONG).unwrap();
        cores.rest(2);
        assert!(cores.state().leases.is_empty());
    }

    #[test]
    fn everybody_has_a_turn_before_anybody_has_another() {
        let cores = Arc::new(Cores::new(1));
        cores.enter(0, 1);
        let order = Arc::new(Mutex::new(Vec::new()));
        let waiting: Vec<_> = (1..4)
            .map(|pool| {
                let (shared, order) = (Arc::clone(&cores), Arc::clone(&order));
                let thread = thread::spawn(move || {
                    shared.enter(pool, 1);
                    order.lock().unwrap().push(pool);
                    shared.rest(pool);
                });
                while cores.state().waiting.len() < pool as usize {
                    thread::yield_now();
                }
                thread
            })
            .collect();
        cores.give_way(0, 1);
        order.lock().unwrap().push(0);
        cores.rest(0);
        waiting.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*order.lock().unwrap(), [1, 2, 3, 0]);
    }
}
