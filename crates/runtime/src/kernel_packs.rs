//! The kernel packs of an engine, which can be replaced while it runs.
//!
//! A pack is compared with the reference on the model's own shapes before a forward pass uses it, is swapped in between two
//! steps, and watched: if its kernels fail or are slow, what was used before comes back by itself.

mod at_work;
mod choice;
mod experience;
mod shapes;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ruvllm_kernels::KernelSet;
use ruvllm_memory::Memory;
use ruvllm_model::RowKernelSlot;
use ruvllm_packs::{KernelStatus, LoadedPack, ModelShapes, PackKernels, ShadowError, shadow_check};

use at_work::AtWork;
pub use choice::{KernelCandidate, KernelChoice, NATIVE_KERNEL, OperationChoice};
pub use experience::{KernelExperience, Timing, kernel_experience};
pub(crate) use shapes::shapes_of;

/// How long what was used before is kept to go back to.
const KEPT_FOR: Duration = Duration::from_secs(300);

#[derive(Debug, thiserror::Error)]
pub enum KernelPackError {
    #[error("the backend {0} takes no kernel packs; native does")]
    Backend(&'static str),
    #[error("the kernel pack {pack} is not used: {error}")]
    Shadow { pack: String, error: ShadowError },
    #[error("{0} kernel packs are named, and at most {max} can be at work", max = KernelPacks::PACKS_MAX)]
    TooMany(usize),
    #[error("there is no kernel pack to go back to; one is kept for {} s", KEPT_FOR.as_secs())]
    NoPrevious,
}

/// The kernel packs of one engine. Clones share them.
#[derive(Clone, Debug)]
pub struct KernelPacks(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    backend: &'static str,
    /// `None` if the backend takes none.
    base: Option<KernelPackBase>,
    state: Mutex<State>,
}

/// Where a runner takes kernels from, and what they must do.
#[derive(Debug)]
pub(crate) struct KernelPackBase {
    pub slot: Arc<RowKernelSlot>,
    pub shapes: ModelShapes,
    pub threads: usize,
    pub kernels: KernelSet,
    /// Keeps what kernels took.
    pub memory: Option<Arc<Memory>>,
}

impl KernelPackBase {
    /// Makes a pack's kernels ready for all threads.
    fn kernels_of(&self, pack: &Arc<LoadedPack>) -> PackKernels {
        PackKernels::new(Arc::clone(pack), self.threads, self.kernels)
    }
}

#[derive(Debug, Default)]
struct State {
    current: Option<Arc<AtWork>>,
    /// What was at work before, until when it is kept.
    previous: Option<(Option<Arc<AtWork>>, Instant)>,
    /// How often packs were taken back because of what they did.
    withdrawn: u64,
}

/// Packs at work.
#[derive(Clone, Debug)]
pub struct KernelPackStatus {
    /// In the order in which they were named.
    pub packs: Vec<Arc<LoadedPack>>,
    pub choice: KernelChoice,
    /// What computes each operation of the model.
    pub operations: Vec<OperationChoice>,
    /// The kernels that were chosen.
    pub kernels: Vec<KernelStatus>,
}

impl KernelPacks {
    /// Packs that can be at work together.
    pub const PACKS_MAX: usize = 8;

    pub(crate) fn new(backend: &'static str, base: Option<KernelPackBase>) -> Self {
        Self(Arc::new(Inner { backend, base, state: Mutex::default() }))
    }

    /// Has packs used from the next step on, or none. What was used before can come back for 300 seconds.
    pub fn set(&self, packs: Vec<Arc<LoadedPack>>, choice: KernelChoice) -> Result<(), KernelPackError> {
        let base = self.base()?;
        if packs.len() > Self::PACKS_MAX {
            return Err(KernelPackError::TooMany(packs.len()));
        }
        let checked: Vec<_> = packs.iter().map(|pack| Arc::new(base.kernels_of(pack))).collect();
        for kernels in &checked {
            let outcome = shadow_check(kernels, base.shapes);
            outcome.map_err(|error| KernelPackError::Shadow { pack: kernels.pack().label(), error })?;
        }
        let next = (!packs.is_empty()).then(|| Arc::new(AtWork::new(base, &checked, choice)));
        let mut state = self.state();
        self.swap(&mut state, next, Some(Instant::now() + KEPT_FOR));
        Ok(())
    }

    /// Goes back to what was used before.
    pub fn rollback(&self) -> Result<(), KernelPackError> {
        self.base()?;
        let mut state = self.state();
        let (previous, until) = state.previous.take().ok_or(KernelPackError::NoPrevious)?;
        self.swap(&mut state, previous, Some(until));
        Ok(())
    }

    /// Withdraws packs that fail or are slow, and lets go of what was kept long enough. To be called several times a second.
    pub fn maintain(&self) {
        let mut state = self.state();
        if state.previous.as_ref().is_some_and(|(_, until)| Instant::now() >= *until) {
            state.previous = None;
        }
        let Some((label, fault)) = state.current.as_ref().and_then(|current| current.ill_health()) else { return };
        // Where nothing is kept any more, kernels that fail are off already.
        let Some((previous, _)) = state.previous.take() else { return };
        state.withdrawn += 1;
        tracing::error!("the kernel pack {label} is withdrawn: {fault}");
        self.swap(&mut state, previous, None);
    }

    /// Keeps what running calls took, if `every` has passed since the last time, and chooses by it anew. Reads and writes the
    /// memory.
    pub fn remember(&self, every: Duration) {
        let (Some(base), Some(current)) = (&self.0.base, self.state().current.clone()) else { return };
        let Some(next) = current.learn(base, every) else { return };
        let mut state = self.state();
        // Unless it was replaced meanwhile. The same packs go on, so there is nothing to go back to.
        if state.current.as_ref().is_some_and(|now| Arc::ptr_eq(now, &current)) {
            let previous = state.previous.take();
            self.swap(&mut state, Some(Arc::new(next)), None);
            state.previous = previous;
        }
    }

    /// Returns the packs at work.
    pub fn status(&self) -> Option<KernelPackStatus> {
        self.state().current.clone().map(|current| current.status())
    }

    /// Returns how often packs were withdrawn.
    pub fn withdrawn(&self) -> u64 {
        self.state().withdrawn
    }

    /// Returns what the witness log calls what computes: the backend, with the packs that something is taken from.
    pub(crate) fn backend_label(&self) -> String {
        let labels = self.state().current.as_ref().map(|current| current.label()).unwrap_or_default();
        if labels.is_empty() { self.0.backend.to_owned() } else { format!("{} with {labels}", self.0.backend) }
    }

    fn base(&self) -> Result<&KernelPackBase, KernelPackError> {
        self.0.base.as_ref().ok_or(KernelPackError::Backend(self.0.backend))
    }

    fn swap(&self, state: &mut State, next: Option<Arc<AtWork>>, kept_until: Option<Instant>) {
        if let Some(base) = &self.0.base {
            // Where all is native, passes do not even ask.
            base.slot.set(next.as_ref().and_then(|next| next.row_kernels()));
        }
        let before = std::mem::replace(&mut state.current, next);
        state.previous = kept_until.map(|until| (before, until));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
