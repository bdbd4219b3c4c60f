//! Keeps the threads of a pool from sharing a core when they get their cores back.
//!
//! They wake up while those of another pool are about to fall asleep, so the system may put two of them on the core that
//! happens to be free first, and does not part them for milliseconds: then one spins for what the other cannot compute.

use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

/// Where the threads of a pool run.
#[derive(Debug)]
pub(super) struct Spread {
    /// Counts up each time that the pool gets its cores.
    turn: AtomicU64,
    places: Vec<Place>,
}

/// Where a thread was found when it came to a turn.
#[derive(Debug, Default)]
struct Place {
    turn: AtomicU64,
    core: AtomicI32,
}

impl Spread {
    pub(super) fn new(threads: usize) -> Self {
        Self { turn: AtomicU64::new(0), places: (0..threads).map(|_| Place::default()).collect() }
    }

    /// The pool has its cores again.
    pub(super) fn next_turn(&self) {
        self.turn.fetch_add(1, Ordering::Release);
    }

    /// Moves the calling thread, number `index`, to a core where none of the others is, once in each turn.
    pub(super) fn settle(&self, index: usize) {
        let (turn, own) = (self.turn.load(Ordering::Acquire), &self.places[index]);
        if own.turn.load(Ordering::Relaxed) == turn {
            return;
        }
        let others = || {
            let others = self.places.iter().enumerate().filter(move |(i, _)| *i != index);
            others.filter(|(_, place)| place.turn.load(Ordering::Acquire) == turn)
        };
        let is_taken = |core: i32| others().any(|(_, place)| place.core.load(Ordering::Relaxed) == core);
        let core = system::current_core();
        let core = match core {
            Some(core) if is_taken(core) => system::move_to(|core| !is_taken(core)).unwrap_or(core),
            Some(core) => core,
            None => -1,
        };
        own.core.store(core, Ordering::Relaxed);
        own.turn.store(turn, Ordering::Release);
    }
}

#[cfg(target_os = "linux")]
mod system {
    use std::mem::{MaybeUninit, size_of};

    pub(super) fn current_core() -> Option<i32> {
        // SAFETY: takes nothing and touches nothing of ours.
        let core = unsafe { libc::sched_getcpu() };
        (core >= 0).then_some(core)
    }

    /// Moves the calling thread to the first core that is allowed to it and wanted, and leaves it free to move on.
    pub(super) fn move_to(is_wanted: impl Fn(i32) -> bool) -> Option<i32> {
        let mut allowed = MaybeUninit::<libc::cpu_set_t>::zeroed();
        let bytes = size_of::<libc::cpu_set_t>();
        // SAFETY: the set is a plain array of bits that has the given size; 0 names the calling thread.
        if unsafe { libc::sched_getaffinity(0, bytes, allowed.as_mut_ptr()) } != 0 {
            return None;
        }
        // SAFETY: all zero is a valid set, and the call has filled it.
        let allowed = unsafe { allowed.assume_init() };
        let cores = 0..libc::CPU_SETSIZE;
        // SAFETY: the number is below the size of the set.
        let core =
            cores.into_iter().find(|core| unsafe { libc::CPU_ISSET(*core as usize, &allowed) } && is_wanted(*core))?;
        let mut wanted = MaybeUninit::<libc::cpu_set_t>::zeroed();
        // SAFETY: as above, for a set that is all zero; then the calling thread gets back the set that it had.
        let is_moved = unsafe {
            libc::CPU_SET(core as usize, wanted.assume_init_mut());
            let is_moved = libc::sched_setaffinity(0, bytes, wanted.as_ptr()) == 0;
            libc::sched_setaffinity(0, bytes, &raw const allowed);
            is_moved
        };
        is_moved.then_some(core)
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    pub(super) fn current_core() -> Option<i32> {
        None
    }

    pub(super) fn move_to(_is_wanted: impl Fn(i32) -> bool) -> Option<i32> {
        None
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_leaves_the_core_of_another_and_may_use_all_cores_afterwards() {
        let spread = Spread::new(2);
        spread.next_turn();
        let first = system::current_core().unwrap();
        spread.places[0].core.store(first, Ordering::Relaxed);
        spread.places[0].turn.store(1, Ordering::Relaxed);
        let before = std::thread::available_parallelism().unwrap().get();
        spread.settle(1);
        // It may be moved by the system between any two looks, but never to where it is told not to go.
        assert!(before == 1 || spread.places[1].core.load(Ordering::Relaxed) != first);
        assert_eq!(std::thread::available_parallelism().unwrap().get(), before);
        assert_eq!(system::move_to(|_| false), None);
    }
}
