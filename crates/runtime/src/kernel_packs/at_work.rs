//! Packs at work: what computes each operation, what became of the kernels, and what they took.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ruvllm_kernels::ops::RowKernels;
use ruvllm_packs::{Category, ChosenKernels, KernelStatus, Measured, Operation, PackKernels, measure};

use super::choice::{KernelCandidate, KernelChoice, NATIVE_KERNEL, OperationChoice};
use super::experience::{Experience, Timing, key_of};
use super::{KernelPackBase, KernelPackStatus};

/// Rounds of a measurement, of about 0.1 ms for each kernel.
const ROUNDS: usize = 11;
/// Calls that must have been compared before what they took is learned.
const COMPARED_TO_LEARN: u64 = 16;
/// How much slower than the native kernel one may be, and the time of a call below which that does not matter.
const SLOWER_MAX: u32 = 50;
const CALL_TIME_MIN: Duration = Duration::from_micros(50);
/// Calls that must have been compared before it counts.
const COMPARED_TO_JUDGE: u64 = 4;

#[derive(Debug)]
pub(super) struct AtWork {
    kernels: Arc<ChosenKernels>,
    choice: KernelChoice,
    operations: Vec<(Operation, OperationChoice)>,
    /// When something was last learned from running calls.
    learned_at: Mutex<Instant>,
}

impl AtWork {
    /// `checked` are the kernels of each pack, which computed what they should.
    pub fn new(base: &KernelPackBase, checked: &[Arc<PackKernels>], choice: KernelChoice) -> Self {
        let choose = |operation: Operation| {
            let category = operation.category()?;
            let mut candidates = candidates(checked, category);
            if choice == KernelChoice::Faster {
                let times = measured(checked, operation, &candidates);
                candidates = learned(base, operation, category, candidates, checked, &times);
            }
            Some((operation, chosen(choice, operation, category, candidates)))
        };
        let operations = base.shapes.operations().into_iter().filter_map(choose).collect();
        // Of their own, so that only calls of the engine are counted.
        let fresh = |kernels: &Arc<PackKernels>| Arc::new(base.kernels_of(kernels.pack()));
        Self::with(checked.iter().map(fresh).collect(), choice, operations)
    }

    fn with(packs: Vec<Arc<PackKernels>>, choice: KernelChoice, operations: Vec<(Operation, OperationChoice)>) -> Self {
        let pack_of = |category: Category| {
            let (_, choice) = operations.iter().find(|(_, choice)| choice.category == category)?;
            choice.chosen().pack
        };
        let kernels = Arc::new(ChosenKernels::new(packs, pack_of));
        Self { kernels, choice, operations, learned_at: Mutex::new(Instant::now()) }
    }

    /// Returns what forward passes use; `None` if all is native.
    pub fn row_kernels(&self) -> Option<Arc<dyn RowKernels>> {
        (!self.kernels.is_empty()).then(|| Arc::clone(&self.kernels) as Arc<dyn RowKernels>)
    }

    /// Names the packs that something is taken from.
    pub fn label(&self) -> String {
        self.kernels.packs_in_use().map(|pack| pack.pack().label()).collect::<Vec<_>>().join(" and ")
    }

    pub fn status(&self) -> KernelPackStatus {
        let kernels = self.kernels.status();
        let operation = |(operation, choice): &(Operation, OperationChoice)| match self.choice {
            KernelChoice::Faster => choice.clone(),
            KernelChoice::Always => {
                // Nothing was measured; running calls tell.
                let mut candidates = choice.candidates.clone();
                if let Some(RunningTimes { pack, native, .. }) = running_times(&kernels, choice) {
                    candidates[choice.chosen].timing = Some(Timing::now(pack));
                    candidates[0].timing = Some(Timing::now(native));
                }
                OperationChoice::always(*operation, choice.category, candidates)
            }
        };
        KernelPackStatus {
            packs: self.kernels.packs().iter().map(|pack| Arc::clone(pack.pack())).collect(),
            choice: self.choice,
            operations: self.operations.iter().map(operation).collect(),
            kernels,
        }
    }

    /// Returns which pack is in ill health, and what is wrong with it.
    pub fn ill_health(&self) -> Option<(String, String)> {
        self.kernels.status().into_iter().find_map(|status| Some((status.pack.clone(), fault_of(status)?)))
    }

    /// Adds what running calls took to what is known, once `every` has passed. Returns what is at work by that, if there is
    /// anything new.
    pub fn learn(&self, base: &KernelPackBase, every: Duration) -> Option<Self> {
        let mut learned_at = self.learned_at.lock().unwrap_or_else(PoisonError::into_inner);
        if learned_at.elapsed() < every {
            return None;
        }
        *learned_at = Instant::now();
        let (status, packs) = (self.kernels.status(), self.kernels.packs());
        let (mut operations, mut is_new) = (self.operations.clone(), false);
        for (operation, choice) in &mut operations {
            let Some(RunningTimes { pack, native, compared }) = running_times(&status, choice) else { continue };
            if compared >= COMPARED_TO_LEARN {
                let times = [(0, native), (choice.chosen, pack)];
                let candidates = learned(base, *operation, choice.category, choice.candidates.clone(), packs, &times);
                let next = chosen(self.choice, *operation, choice.category, candidates);
                if next.chosen != choice.chosen {
                    tracing::info!("{} is chosen anew by running calls: {}", next.category, next.why);
                }
                (*choice, is_new) = (next, true);
            }
        }
        is_new.then(|| Self::with(packs.to_vec(), self.choice, operations))
    }
}

fn chosen(
    choice: KernelChoice,
    operation: Operation,
    category: Category,
    candidates: Vec<KernelCandidate>,
) -> OperationChoice {
    match choice {
        KernelChoice::Always => OperationChoice::always(operation, category, candidates),
        KernelChoice::Faster => OperationChoice::faster(operation, category, candidates),
    }
}

/// Returns the native kernel, and those of packs.
fn candidates(packs: &[Arc<PackKernels>], category: Category) -> Vec<KernelCandidate> {
    let native = KernelCandidate { kernel: NATIVE_KERNEL.to_owned(), timing: None, pack: None };
    let of_packs = packs.iter().enumerate().filter_map(|(index, pack)| {
        let kernel = format!("{}/{}", pack.pack().label(), pack.kernel(category)?);
        Some(KernelCandidate { kernel, timing: None, pack: Some(index) })
    });
    [native].into_iter().chain(of_packs).collect()
}

/// Measures candidates. Returns the index and the time of each that works.
fn measured(
    packs: &[Arc<PackKernels>],
    operation: Operation,
    candidates: &[KernelCandidate],
) -> Vec<(usize, Duration)> {
    let mut times = Vec::new();
    for (index, pack) in candidates.iter().enumerate().filter_map(|(index, of)| Some((index, &packs[of.pack?]))) {
        let Some(Measured { pack, native }) = measure(pack, operation, ROUNDS) else { continue };
        times.push((index, pack));
        // It was measured beside each of them.
        match times.iter_mut().find(|(index, _)| *index == 0) {
            Some((_, fastest)) => *fastest = native.min(*fastest),
            None => times.push((0, native)),
        }
    }
    times
}

/// Adds times to what is known of candidates, and gives these what is known then.
fn learned(
    base: &KernelPackBase,
    operation: Operation,
    category: Category,
    mut candidates: Vec<KernelCandidate>,
    packs: &[Arc<PackKernels>],
    times: &[(usize, Duration)],
) -> Vec<KernelCandidate> {
    let key = |candidate: &KernelCandidate| match candidate.pack {
        Some(pack) => key_of(&candidate.kernel, &packs[pack].pack().digest),
        None => candidate.kernel.clone(),
    };
    let now: Vec<_> = times.iter().map(|(i, time)| (key(&candidates[*i]), time.as_nanos() as f64)).collect();
    let known = Experience::new(base.memory.clone(), base.kernels).learn(operation, category, &now);
    for (i, _) in times {
        candidates[*i].timing = known.get(&key(&candidates[*i])).copied();
    }
    candidates
}

/// What running calls of the kernel of an operation took at their fastest.
struct RunningTimes {
    pack: Duration,
    native: Duration,
    compared: u64,
}

fn running_times(kernels: &[KernelStatus], choice: &OperationChoice) -> Option<RunningTimes> {
    choice.chosen().pack?;
    let status = kernels.iter().find(|status| status.category == choice.category)?;
    let (pack, native) = status.times?;
    Some(RunningTimes { pack, native, compared: status.compared })
}

/// Returns what is wrong with a kernel at work, if anything is.
fn fault_of(status: KernelStatus) -> Option<String> {
    let kernel = &status.kernel;
    if status.is_disabled {
        let fault = status.last_fault.map_or_else(String::new, |fault| fault.to_string());
        return Some(format!("kernel '{kernel}' failed repeatedly: {fault}"));
    }
    let (pack, native) = status.times.filter(|_| status.compared >= COMPARED_TO_JUDGE)?;
    let is_slow = pack > CALL_TIME_MIN && pack > native * SLOWER_MAX;
    is_slow.then(|| format!("kernel '{kernel}' takes {pack:?}, where the native one takes {native:?}"))
}
