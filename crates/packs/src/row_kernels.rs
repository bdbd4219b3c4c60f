//! The kernels of a pack in a forward pass: for each thread instances of its own, and what becomes of kernels that fail.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytemuck::{cast_slice, cast_slice_mut};
use ruvllm_kernels::KernelSet;
use ruvllm_kernels::ops::slices::{gated, rms_norm};
use ruvllm_kernels::ops::{Activation, RopeStyle, RowKernels, RowOperation};

use crate::loaded::LoadedPack;
use crate::manifest::{Category, Dtype};
use crate::sandbox::{Fault, Instance};

/// Failures after which a kernel is not called any more.
const STRIKES: u32 = 3;
/// Of so many calls of a thread, one is compared with the native kernel, and timed beside it.
const CALLS_PER_CHECK: u64 = 1024;
/// Differences of results: of sums that are added in another order, and of approximations.
const RELATIVE_TOLERANCE: f32 = 2e-3;
const TOLERANCE_OF_LARGEST: f32 = 1e-4;

/// The categories that forward passes use, in the order in which they are kept here.
pub(crate) const CATEGORIES: [Category; 4] = [Category::RmsNorm, Category::Rope, Category::Swiglu, Category::Geglu];

/// Returns where the kernel of an operation is kept.
pub(crate) fn slot_of(operation: RowOperation) -> Option<usize> {
    let category = Category::of(operation)?;
    CATEGORIES.iter().position(|known| *known == category)
}

/// A pack at work.
#[derive(Debug)]
pub struct PackKernels {
    pack: Arc<LoadedPack>,
    native: KernelSet,
    slots: [Option<Slot>; CATEGORIES.len()],
    threads: Vec<Mutex<Thread>>,
}

/// The kernel of one operation.
#[derive(Debug)]
struct Slot {
    kernel: usize,
    strikes: AtomicU32,
    is_disabled: AtomicBool,
    last_fault: Mutex<Option<Fault>>,
}

/// What one thread has.
#[derive(Debug)]
struct Thread {
    instances: Vec<Instance>,
    counts: [Counts; CATEGORIES.len()],
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    calls: u64,
    failed: u64,
    /// Calls that were compared, and the fastest of them: what took longer had to wait for something.
    compared: u64,
    pack_time: Option<Duration>,
    native_time: Option<Duration>,
}

/// What became of a kernel so far.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelStatus {
    pub pack: String,
    pub kernel: String,
    pub category: Category,
    pub calls: u64,
    /// Calls whose rows were computed natively instead.
    pub failed: u64,
    pub is_disabled: bool,
    pub last_fault: Option<Fault>,
    /// Calls that were compared with the native kernel.
    pub compared: u64,
    /// How long the fastest of them took, and the native kernel at its fastest.
    pub times: Option<(Duration, Duration)>,
}

impl PackKernels {
    /// Makes the pack's kernels ready for so many threads, with the kernels that theirs are compared with. Those of operations
    /// that a pack does not have are not asked for.
    pub fn new(pack: Arc<LoadedPack>, threads: usize, native: KernelSet) -> Self {
        let slot = |category| {
            let kernel = pack.find(category, Dtype::F32)?;
            let (strikes, is_disabled, last_fault) = Default::default();
            Some(Slot { kernel, strikes, is_disabled, last_fault })
        };
        let slots = CATEGORIES.map(slot);
        let thread = |_| Mutex::new(Thread { instances: pack.instances(), counts: Default::default() });
        let threads = (0..threads).map(thread).collect();
        Self { pack, native, slots, threads }
    }

    pub fn pack(&self) -> &Arc<LoadedPack> {
        &self.pack
    }

    /// Returns the id of the kernel of a category, if the pack has one that forward passes can use.
    pub fn kernel(&self, category: Category) -> Option<&str> {
        let index = CATEGORIES.iter().position(|known| *known == category)?;
        Some(&self.pack.kernels[self.slots[index].as_ref()?.kernel].kernel.id)
    }

    pub fn native(&self) -> KernelSet {
        self.native
    }

    /// Returns the state of each kernel that is at work.
    pub fn status(&self) -> Vec<KernelStatus> {
        let slots = self.slots.iter().zip(CATEGORIES).enumerate();
        let status = slots.filter_map(|(index, (slot, category))| {
            let slot = slot.as_ref()?;
            let mut sum = Counts::default();
            for thread in &self.threads {
                let counts = lock(thread).counts[index];
                sum.calls += counts.calls;
                sum.failed += counts.failed;
                sum.compared += counts.compared;
                sum.pack_time = fastest(sum.pack_time, counts.pack_time);
                sum.native_time = fastest(sum.native_time, counts.native_time);
            }
            Some(KernelStatus {
                pack: self.pack.label(),
                kernel: self.pack.kernels[slot.kernel].kernel.id.clone(),
                category,
                calls: sum.calls,
                failed: sum.failed,
                is_disabled: slot.is_disabled.load(Ordering::Relaxed),
                last_fault: lock(&slot.last_fault).clone(),
                compared: sum.compared,
                times: sum.pack_time.zip(sum.native_time),
            })
        });
        status.collect()
    }

    /// Calls the kernel of an operation in place of `native`, both of which change `out`. Where it fails, `out` is as it was.
    fn run(
        &self,
        worker: usize,
        operation: RowOperation,
        out: &mut [f32],
        call: impl FnOnce(&LoadedPack, &mut [Instance], usize, &mut [u8]) -> Result<(), Fault>,
        native: impl FnOnce(&mut [f32]),
    ) -> bool {
        let Some(index) = slot_of(operation) else { return false };
        let (Some(slot), Some(thread)) = (&self.slots[index], self.threads.get(worker)) else { return false };
        if slot.is_disabled.load(Ordering::Relaxed) {
            return false;
        }
        let mut thread = lock(thread);
        let Thread { instances, counts } = &mut *thread;
        let counts = &mut counts[index];
        let is_compared = counts.calls.is_multiple_of(CALLS_PER_CHECK);
        counts.calls += 1;
        let outcome = if is_compared {
            let before = out.to_vec();
            let mut expected = before.clone();
            let began = Instant::now();
            native(&mut expected);
            counts.native_time = fastest(counts.native_time, Some(began.elapsed()));
            let began = Instant::now();
            let called = call(&self.pack, instances, slot.kernel, cast_slice_mut(out));
            counts.pack_time = fastest(counts.pack_time, Some(began.elapsed()));
            counts.compared += 1;
            let compared = called.and_then(|()| compare(out, &expected));
            if compared.is_err() {
                out.copy_from_slice(&before);
            }
            compared
        } else {
            call(&self.pack, instances, slot.kernel, cast_slice_mut(out))
        };
        let Err(fault) = outcome else { return true };
        counts.failed += 1;
        self.strike(slot, fault);
        false
    }

    fn strike(&self, slot: &Slot, fault: Fault) {
        let (pack, kernel) = (self.pack.label(), &self.pack.kernels[slot.kernel].kernel.id);
        let strikes = slot.strikes.fetch_add(1, Ordering::Relaxed) + 1;
        tracing::warn!("kernel '{kernel}' of pack {pack} failed ({strikes} of {STRIKES}): {fault}; computed natively");
        if strikes >= STRIKES && !slot.is_disabled.swap(true, Ordering::Relaxed) {
            tracing::error!("kernel '{kernel}' of pack {pack} failed {strikes} times and is not used any more");
        }
        *lock(&slot.last_fault) = Some(fault);
    }
}

fn fastest(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    a.into_iter().chain(b).min()
}

/// What a thread leaves when it panics is still counts and instances.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Compares a result with the right one.
pub(crate) fn compare(got: &[f32], expected: &[f32]) -> Result<(), Fault> {
    let largest = expected.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    // Results are finite, which was checked before.
    let is_off = |got: f32, expected: f32| {
        let tolerance = RELATIVE_TOLERANCE * expected.abs() + TOLERANCE_OF_LARGEST * largest + f32::MIN_POSITIVE;
        (got - expected).abs() > tolerance
    };
    match got.iter().zip(expected).position(|(got, expected)| is_off(*got, *expected)) {
        None => Ok(()),
        Some(index) => Err(Fault::Wrong { index, got: got[index], expected: expected[index] }),
    }
}

/// `rotate` of single heads.
pub(crate) fn rotate_native(heads: &mut [f32], head_dim: usize, rotations: &[[f32; 2]], style: RopeStyle) {
    for head in heads.chunks_exact_mut(head_dim) {
        for (i, [cosine, sine]) in rotations.iter().enumerate() {
            let (a, b) = match style {
                RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                RopeStyle::Halves => (i, i + rotations.len()),
            };
            (head[a], head[b]) = (head[a] * cosine - head[b] * sine, head[a] * sine + head[b] * cosine);
        }
    }
}

impl RowKernels for PackKernels {
    fn has(&self, operation: RowOperation) -> bool {
        let slot = slot_of(operation).and_then(|index| self.slots[index].as_ref());
        slot.is_some_and(|slot| !slot.is_disabled.load(Ordering::Relaxed))
    }

    fn rms_norm(&self, worker: usize, x: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) -> bool {
        let call = |pack: &LoadedPack, instances: &mut [Instance], kernel, out: &mut [u8]| {
            pack.call(instances, kernel, &[epsilon.to_bits()], Some(cast_slice(x)), cast_slice(weight), out)
        };
        let native = |out: &mut [f32]| rms_norm(self.native, x, weight, epsilon, out);
        self.run(worker, RowOperation::RmsNorm, out, call, native)
    }

    fn rotate(
        &self,
        worker: usize,
        heads: &mut [f32],
        head_dim: usize,
        rotations: &[[f32; 2]],
        style: RopeStyle,
    ) -> bool {
        let are_neighbours = u32::from(style == RopeStyle::Interleaved);
        let params = [head_dim as u32, rotations.len() as u32, are_neighbours];
        let call = |pack: &LoadedPack, instances: &mut [Instance], kernel, heads: &mut [u8]| {
            pack.call(instances, kernel, &params, None, cast_slice(rotations), heads)
        };
        let native = |heads: &mut [f32]| rotate_native(heads, head_dim, rotations, style);
        self.run(worker, RowOperation::Rope, heads, call, native)
    }

    fn gated(&self, worker: usize, activation: Activation, up: &[f32], gate: &mut [f32]) -> bool {
        let call = |pack: &LoadedPack, instances: &mut [Instance], kernel, gate: &mut [u8]| {
            pack.call(instances, kernel, &[], None, cast_slice(up), gate)
        };
        let native = |gate: &mut [f32]| gated(self.native, activation, up, gate);
        self.run(worker, RowOperation::Gated(activation), gate, call, native)
    }
}
