//! The threads that a run computes on, and whether it is still wanted.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ruvllm_kernels::ops::{Factor, Gemm, Matrix, Product};
use ruvllm_kernels::{Cores, KernelSet, Pool};

use crate::TrainError;

/// Rows that a thread takes at a time.
const ROWS_EACH: usize = 8;

/// The part of the machine that a run may use.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Pools that share the cores take turns: a run lets others have them between its products.
    pub cores: Arc<Cores>,
    pub threads: usize,
    pub kernels: KernelSet,
    /// Once set, the run stops within a few milliseconds.
    pub stop: Arc<AtomicBool>,
    /// Bytes that a run may take.
    pub memory_budget: usize,
}

impl Machine {
    /// Makes a machine with cores of its own that nothing stops, and all memory.
    pub fn new(threads: usize) -> Self {
        Self {
            cores: Arc::new(Cores::new(threads)),
            threads,
            kernels: KernelSet::best(),
            stop: Arc::default(),
            memory_budget: usize::MAX,
        }
    }
}

pub(crate) struct Compute {
    pub pool: Pool,
    pub kernels: KernelSet,
    gemm: Gemm,
    stop: Arc<AtomicBool>,
}

impl Compute {
    /// Makes room for left factors of up to `left_numbers` numbers.
    pub fn new(machine: &Machine, left_numbers: usize) -> Self {
        const GROUP: usize = 32;
        let pool = Pool::sharing(Arc::clone(&machine.cores), machine.threads, machine.kernels);
        let gemm = Gemm::new(&pool, left_numbers.div_ceil(GROUP), GROUP);
        Self { gemm, pool, kernels: machine.kernels, stop: Arc::clone(&machine.stop) }
    }

    fn check(&self) -> Result<(), TrainError> {
        if self.stop.load(Ordering::Relaxed) { Err(TrainError::Stopped) } else { Ok(()) }
    }

    /// Multiplies two matrices.
    pub fn multiply(
        &mut self,
        left: Factor<'_>,
        right: Factor<'_>,
        out: &Matrix,
        adds: bool,
    ) -> Result<(), TrainError> {
        self.check()?;
        let (gemm, product) = (&self.gemm, Product { left, right, out, adds, stop: Some(&self.stop) });
        self.pool.run(|worker| gemm.run(worker, &product));
        self.check()
    }

    /// Does units of work on all threads, in any order.
    pub fn each<U: Send>(
        &mut self,
        units: impl Iterator<Item = U> + Send,
        work: impl Fn(U) + Sync,
    ) -> Result<(), TrainError> {
        self.check()?;
        let (queue, stop) = (Mutex::new(units), &self.stop);
        self.pool.run(|_| {
            while !stop.load(Ordering::Relaxed) {
                // The lock is held for taking a unit only.
                let unit = queue.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(unit) = unit else { return };
                work(unit);
            }
        });
        self.check()
    }

    /// Makes results of units of work, in the order of the units.
    pub fn map<R: Send>(&mut self, count: usize, work: impl Fn(usize) -> R + Sync) -> Result<Vec<R>, TrainError> {
        let mut results: Vec<Option<R>> = (0..count).map(|_| None).collect();
        self.each(results.iter_mut().enumerate(), |(index, result)| *result = Some(work(index)))?;
        Ok(results.into_iter().map(|result| result.expect("every unit was done")).collect())
    }

    /// Fills rows of `cols` numbers.
    pub fn rows<A: Send>(
        &mut self,
        out: &mut [A],
        cols: usize,
        fill: impl Fn(usize, &mut [A]) + Sync,
    ) -> Result<(), TrainError> {
        self.each(out.chunks_mut(ROWS_EACH * cols).enumerate(), |(chunk, rows)| {
            for (row, out) in rows.chunks_exact_mut(cols).enumerate() {
                fill(chunk * ROWS_EACH + row, out);
            }
        })
    }

    /// Fills rows of two matrices at once.
    pub fn row_pairs<A: Send, B: Send>(
        &mut self,
        (one, one_cols): (&mut [A], usize),
        (two, two_cols): (&mut [B], usize),
        fill: impl Fn(usize, &mut [A], &mut [B]) + Sync,
    ) -> Result<(), TrainError> {
        assert_eq!(one.len() / one_cols, two.len() / two_cols, "as many rows in both");
        let chunks = one.chunks_mut(ROWS_EACH * one_cols).zip(two.chunks_mut(ROWS_EACH * two_cols));
        self.each(chunks.enumerate(), |(chunk, (one, two))| {
            let rows = one.chunks_exact_mut(one_cols).zip(two.chunks_exact_mut(two_cols));
            for (row, (one, two)) in rows.enumerate() {
                fill(chunk * ROWS_EACH + row, one, two);
            }
        })
    }
}
