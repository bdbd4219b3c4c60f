//! The kernel pack of an engine, which can be replaced while it runs.
//!
//! A pack is compared with the reference on the model's own shapes before a forward pass uses it, is swapped in between two
//! steps, and watched: if its kernels fail or are slow, the one before it comes back by itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ruvllm_kernels::KernelSet;
use ruvllm_kernels::ops::{RopeStyle, RowKernels};
use ruvllm_model::{Config, FeedForward, Mixer, RowKernelSlot};
use ruvllm_packs::{KernelStatus, LoadedPack, ModelShapes, PackKernels, ShadowError, shadow_check};

/// How long the pack before is kept to go back to.
const KEPT_FOR: Duration = Duration::from_secs(300);
/// How much slower than the native kernel one may be, and the time of a call below which that does not matter.
const SLOWER_MAX: u32 = 50;
const CALL_TIME_MIN: Duration = Duration::from_micros(50);
/// Calls that must have been compared before it counts.
const COMPARED_MIN: u64 = 4;

#[derive(Debug, thiserror::Error)]
pub enum KernelPackError {
    #[error("the backend {0} takes no kernel packs; native does")]
    Backend(&'static str),
    #[error("the kernel pack {pack} is not used: {error}")]
    Shadow { pack: String, error: ShadowError },
    #[error("there is no kernel pack to go back to; one is kept for {} s", KEPT_FOR.as_secs())]
    NoPrevious,
}

/// The kernel pack of one engine. Clones share it.
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
}

type AtWork = Option<Arc<PackKernels>>;

#[derive(Debug, Default)]
struct State {
    current: AtWork,
    /// What was at work before, until when it is kept.
    previous: Option<(AtWork, Instant)>,
    /// How often a pack was taken back because of what it did.
    withdrawn: u64,
}

/// A pack at work.
#[derive(Clone, Debug)]
pub struct KernelPackStatus {
    pub pack: Arc<LoadedPack>,
    pub kernels: Vec<KernelStatus>,
}

impl KernelPacks {
    pub(crate) fn new(backend: &'static str, base: Option<KernelPackBase>) -> Self {
        Self(Arc::new(Inner { backend, base, state: Mutex::default() }))
    }

    /// Has a pack used from the next step on, or none. What was used before can come back for 300 seconds.
    pub fn set(&self, pack: Option<Arc<LoadedPack>>) -> Result<(), KernelPackError> {
        let base = self.base()?;
        let next = pack.map(|pack| {
            let label = pack.label();
            let at_work = |pack| PackKernels::new(pack, base.threads, base.kernels);
            // With kernels of its own: what is counted from then on are calls of the engine.
            let checked = shadow_check(&at_work(Arc::clone(&pack)), base.shapes);
            checked.map_err(|error| KernelPackError::Shadow { pack: label, error })?;
            Ok::<_, KernelPackError>(Arc::new(at_work(pack)))
        });
        let next = next.transpose()?;
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

    /// Withdraws a pack that fails or is slow, and lets go of what was kept long enough. To be called several times a second.
    pub fn maintain(&self) {
        let mut state = self.state();
        if state.previous.as_ref().is_some_and(|(_, until)| Instant::now() >= *until) {
            state.previous = None;
        }
        let Some((current, fault)) = state.current.as_ref().and_then(|current| Some((current, ill_health(current)?)))
        else {
            return;
        };
        // Where nothing is kept any more, kernels that fail are off already.
        let label = current.pack().label();
        let Some((previous, _)) = state.previous.take() else { return };
        state.withdrawn += 1;
        tracing::error!("the kernel pack {label} is withdrawn: {fault}");
        self.swap(&mut state, previous, None);
    }

    /// Returns the pack at work.
    pub fn status(&self) -> Option<KernelPackStatus> {
        let current = self.state().current.clone()?;
        Some(KernelPackStatus { pack: Arc::clone(current.pack()), kernels: current.status() })
    }

    /// Returns how often a pack was withdrawn.
    pub fn withdrawn(&self) -> u64 {
        self.state().withdrawn
    }

    /// Returns what the witness log calls what computes: the backend, with the pack at work.
    pub(crate) fn backend_label(&self) -> String {
        match &self.state().current {
            Some(current) => format!("{} with {}", self.0.backend, current.pack().label()),
            None => self.0.backend.to_owned(),
        }
    }

    fn base(&self) -> Result<&KernelPackBase, KernelPackError> {
        self.0.base.as_ref().ok_or(KernelPackError::Backend(self.0.backend))
    }

    fn swap(&self, state: &mut State, next: AtWork, kept_until: Option<Instant>) {
        let row_kernels = next.clone().map(|next| next as Arc<dyn RowKernels>);
        if let Some(base) = &self.0.base {
            base.slot.set(row_kernels);
        }
        let before = std::mem::replace(&mut state.current, next);
        state.previous = kept_until.map(|until| (before, until));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns what is wrong with a pack at work, if anything is.
fn ill_health(kernels: &PackKernels) -> Option<String> {
    kernels.status().into_iter().find_map(|status| {
        let kernel = &status.kernel;
        if status.is_disabled {
            let fault = status.last_fault.map_or_else(String::new, |fault| fault.to_string());
            return Some(format!("kernel '{kernel}' failed repeatedly: {fault}"));
        }
        let (pack, native) = status.times.filter(|_| status.compared >= COMPARED_MIN)?;
        let is_slow = pack > CALL_TIME_MIN && pack > native * SLOWER_MAX;
        is_slow.then(|| format!("kernel '{kernel}' takes {pack:?}, where the native one takes {native:?}"))
    })
}

/// Returns the sizes that kernels see in a model: those of its first layer with attention, and of its residual stream.
pub(crate) fn shapes_of(config: &Config) -> ModelShapes {
    let defaults = ModelShapes::default();
    let attention = config.layers.iter().find_map(|layer| match &layer.mixer {
        Mixer::Attention(attention) => Some(attention),
        _ => None,
    });
    let Some(attention) = attention else { return ModelShapes { hidden: config.hidden, ..defaults } };
    let rope = attention.rope.as_ref();
    ModelShapes {
        hidden: config.hidden,
        heads: attention.heads,
        head_dim: attention.head_dim,
        pairs: rope.map_or(attention.head_dim / 2, |rope| rope.dims / 2),
        rope_style: rope.map_or(RopeStyle::Interleaved, |rope| rope.style),
        feed_forward: config.layers.first().map_or(defaults.feed_forward, |layer| width_of(&layer.feed_forward)),
    }
}

fn width_of(feed_forward: &FeedForward) -> usize {
    match feed_forward {
        FeedForward::Dense(config) | FeedForward::DenseAndExperts(config, _) => config.width,
        FeedForward::Experts(config) => config.width,
    }
}
