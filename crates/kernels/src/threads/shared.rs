//! Buffers that the threads of a region read together or write in disjoint parts.
//!
//! What makes this sound: within one phase a buffer is used in one way only (all read, or all write by the same
//! partition), checked at every access and remembered by phase; and views end before the next barrier, because they
//! borrow the worker that the barrier needs mutably. Only functions of this crate can take views, and each derives
//! its part from the partition that it declares: from the worker's index, or from the units of one work queue. A second queue gives
//! the same units to other workers, so it is another partition.

use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::pool::QUEUES_MAX;
use super::{Pool, Worker};
use crate::aligned::{AlignedVec, Number};

/// How a buffer is used in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Access {
    Read = 1,
    /// Each worker writes the rows (of the batch) whose number falls to it.
    WriteRows = 2,
    /// Each worker writes the columns of the weight tiles that it takes from the work queue.
    WriteTiles = 3,
    /// Each worker writes the (row block, head) items that fall to it.
    WriteHeads = 4,
    /// Each worker writes the layers of KV pages that it takes from the work queue.
    WritePages = 5,
    /// Each worker writes the channels or heads of a sequence that it takes from the work queue.
    WriteStates = 6,
    /// Each worker writes the (rows, ranks of an adapter) items that fall to it.
    WriteRanks = 7,
}

impl Access {
    /// Whether workers take their parts from a queue (`Worker::units`), not by their index.
    fn is_queued(self) -> bool {
        matches!(self, Self::WriteTiles | Self::WritePages | Self::WriteStates)
    }
}

/// Bits of the tag below the phase: two for the work queue's number, three for the access.
const USE_BITS: u32 = 5;
const ACCESS_BITS: u32 = 3;
const _: () = assert!(QUEUES_MAX < 1 << (USE_BITS - ACCESS_BITS));

/// A buffer for the threads of one pool.
#[derive(Debug)]
pub struct Shared<T: Number> {
    data: UnsafeCell<AlignedVec<T>>,
    /// Kept beside the cell so that workers never form a reference to the vector itself.
    start: *mut T,
    len: usize,
    pool: u64,
    /// The phase of the last access, the number of its work queue, and which `Access` it was, from the highest bits to the lowest.
    last: AtomicU64,
}

// SAFETY: `start` points into the buffer that the struct owns.
unsafe impl<T: Number> Send for Shared<T> {}
// SAFETY: concurrent access goes through `claim`, which allows only compatible uses in a phase.
unsafe impl<T: Number> Sync for Shared<T> {}

impl<T: Number> Shared<T> {
    /// `len` zeros for the threads of `pool`.
    pub fn zeroed(pool: &Pool, len: usize) -> Self {
        let mut data = AlignedVec::zeroed(len);
        let start = data.as_mut_ptr();
        Self { data: UnsafeCell::new(data), start, len, pool: pool.id(), last: AtomicU64::new(0) }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The whole buffer, between regions.
    pub fn as_mut_slice(&mut self) -> &mut [T] {
        self.data.get_mut()
    }

    /// Gives the memory of a part back to the system, between regions: it holds zeros then, or what it held before.
    pub(crate) fn release_to_os(&mut self, part: Range<usize>) {
        self.data.get_mut().release_to_os(part);
    }

    /// The whole buffer, read by all workers in this phase.
    pub(crate) fn read<'w>(&'w self, worker: &'w Worker<'_>) -> &'w [T] {
        self.claim(worker, Access::Read);
        // SAFETY: in this phase nobody writes (checked by `claim`), and the view ends before the next barrier.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    /// The start of the buffer, for writing this worker's part of the partition that `access` names.
    pub(crate) fn write(&self, worker: &Worker<'_>, access: Access) -> *mut T {
        assert_ne!(access, Access::Read);
        self.claim(worker, access);
        self.start
    }

    /// Notes the use in this phase; panics if another use of the same phase does not go with it.
    fn claim(&self, worker: &Worker<'_>, access: Access) {
        assert_eq!(self.pool, worker.pool_id(), "buffer belongs to another pool");
        let queue = if access.is_queued() { worker.queues_used() as u64 } else { 0 };
        let wanted = worker.phase() << USE_BITS | queue << ACCESS_BITS | access as u64;
        let mut last = self.last.load(Ordering::Relaxed);
        while last != wanted {
            assert_ne!(last >> USE_BITS, worker.phase(), "buffer used in two ways in one phase");
            match self.last.compare_exchange_weak(last, wanted, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => last = now,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::KernelSet;

    #[test]
    fn reading_what_is_written_in_the_same_phase_is_refused() {
        let mut pool = Pool::new(2, KernelSet::Scalar);
        let buffer = Shared::<f32>::zeroed(&pool, 16);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.run(|worker| {
                buffer.write(worker, Access::WriteRows);
                buffer.read(worker);
            });
        }));
        assert!(outcome.is_err());
        pool.run(|worker| {
            buffer.write(worker, Access::WriteRows);
            worker.barrier();
            assert_eq!(buffer.read(worker).len(), 16);
        });
    }

    #[test]
    fn two_queues_that_write_into_one_buffer_in_one_phase_are_refused() {
        let mut pool = Pool::new(2, KernelSet::Scalar);
        let buffer = Shared::<f32>::zeroed(&pool, 16);
        let write_units = |worker: &Worker<'_>| {
            for _ in worker.units().take_while(|unit| *unit < 4) {
                buffer.write(worker, Access::WriteTiles);
            }
            // Also by those who came too late for a unit.
            buffer.write(worker, Access::WriteTiles);
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.run(|worker| {
                write_units(worker);
                write_units(worker);
            });
        }));
        assert!(outcome.is_err(), "a unit of the second may be another worker's than in the first");
        pool.run(|worker| {
            write_units(worker);
            worker.barrier();
            write_units(worker);
        });
    }

    #[test]
    fn a_buffer_of_another_pool_is_refused() {
        let (mut one, other) = (Pool::new(1, KernelSet::Scalar), Pool::new(1, KernelSet::Scalar));
        let buffer = Shared::<f32>::zeroed(&other, 1);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            one.run(|worker| {
                buffer.read(worker);
            });
        }));
        assert!(outcome.is_err());
    }
}
