//! The limits of the machine: reading memory, multiplying floats, multiplying bytes. Benchmarks divide by it.
//! The loops do nothing useful, so nothing but the hardware limits them.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod memory;
#[cfg(target_arch = "x86_64")]
mod tiles;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use std::sync::Barrier;
use std::thread;
use std::time::Instant;

/// Measurements of each ceiling, of which the best counts: disturbances only ever take away.
const ATTEMPTS: usize = 7;

/// The limits of some threads together. A multiplication with its addition counts as two operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ceilings {
    pub threads: usize,
    pub read_bytes_s: f64,
    /// Fused multiply-adds of 32-bit floats in vector registers.
    pub float_ops_s: Option<f64>,
    /// Dot products of bytes in vector registers.
    pub byte_ops_s: Option<f64>,
    /// Products of byte matrices in tile registers (AMX).
    pub tile_ops_s: Option<f64>,
    /// Products of bf16: of matrices in tile registers, or of pairs in vector registers.
    pub bf16_ops_s: Option<f64>,
}

impl Ceilings {
    /// Takes some seconds, and a gigabyte of memory meanwhile. `None` where this processor lacks the instructions.
    pub fn measure(threads: usize) -> Self {
        let threads = threads.max(1);
        let rate = |exercise: Option<Exercise>| exercise.map(|exercise| operations(threads, exercise));
        Self {
            threads,
            read_bytes_s: memory::read_bytes_s(threads),
            float_ops_s: rate(float_exercise()),
            byte_ops_s: rate(byte_exercise()),
            tile_ops_s: rate(tile_exercise()),
            bf16_ops_s: Self::bf16_ops_s(threads),
        }
    }

    /// Measures the products of bf16 alone, in some milliseconds.
    pub fn bf16_ops_s(threads: usize) -> Option<f64> {
        bf16_exercise().map(|exercise| operations(threads.max(1), exercise))
    }

    /// Products of bytes by whatever is fastest here.
    pub fn byte_ops_max_s(&self) -> Option<f64> {
        [self.byte_ops_s, self.tile_ops_s].into_iter().flatten().reduce(f64::max)
    }
}

/// A loop of arithmetic: takes a number of rounds and returns how many operations it did.
type Exercise = fn(rounds: u64) -> u64;

#[cfg(target_arch = "x86_64")]
use x86_64::{byte_exercise, float_exercise};

#[cfg(target_arch = "x86_64")]
use tiles::byte_exercise as tile_exercise;

#[cfg(target_arch = "x86_64")]
fn bf16_exercise() -> Option<Exercise> {
    tiles::bf16_exercise().or_else(x86_64::bf16_exercise)
}

#[cfg(target_arch = "aarch64")]
use aarch64::{byte_exercise, float_exercise};

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn float_exercise() -> Option<Exercise> {
    None
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn byte_exercise() -> Option<Exercise> {
    None
}

#[cfg(not(target_arch = "x86_64"))]
fn tile_exercise() -> Option<Exercise> {
    None
}

#[cfg(not(target_arch = "x86_64"))]
fn bf16_exercise() -> Option<Exercise> {
    None
}

/// Operations per second of all threads, each running the exercise.
fn operations(threads: usize, exercise: Exercise) -> f64 {
    // Some milliseconds: long against the start of a thread, short against a tick of the scheduler's.
    let rounds = 4_000_000;
    (0..ATTEMPTS).map(|_| together(threads, |_| exercise(rounds))).fold(0.0, f64::max)
}

/// Runs `job` on `threads` threads at the same time. Its results' sum, per second of the slowest.
fn together(threads: usize, job: impl Fn(usize) -> u64 + Sync) -> f64 {
    let start = Barrier::new(threads);
    let timed = |index: usize| {
        start.wait();
        let began = Instant::now();
        let done = job(index);
        (done, began.elapsed().as_secs_f64())
    };
    let results: Vec<(u64, f64)> = thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|index| scope.spawn(move || timed(index))).collect();
        running.into_iter().map(|thread| thread.join().expect("an exercise does not panic")).collect()
    });
    let done: u64 = results.iter().map(|(done, _)| done).sum();
    done as f64 / results.iter().map(|(_, seconds)| *seconds).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_ceiling_of_this_processor_is_a_positive_number() {
        let exercises = [float_exercise(), byte_exercise(), tile_exercise(), bf16_exercise()];
        for (number, exercise) in exercises.into_iter().enumerate() {
            if let Some(exercise) = exercise {
                let rate = together(2, |_| exercise(1000));
                assert!(rate.is_finite() && rate > 0.0, "{number}");
            }
        }
    }

    #[test]
    fn memory_is_read_once_by_all_threads_together() {
        assert!(memory::read_bytes_s_of(2, 8 << 20) > 0.0);
    }
}
