//! Stores the traces of requests on its own thread, in batches. No request ever waits for it.
//!
//! While the database is unavailable, batches are retried and the queue fills up. An entry that cannot be stored is left out
//! on its own.

mod policy_watch;
mod queue;
mod recent;
mod size;
mod trace;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Memory;
use crate::error::{MemoryError, Result};
use crate::learning::{Forget, Forgotten, KnownRequest};
use crate::sessions::{Session, Turn};
use crate::witness::{Annotation, WitnessRecord};
use crate::write_buffer::WriteBuffer;
use policy_watch::{PolicyWatch, watch_policies};
use queue::{BYTES_MAX, Batch, Queue, Refusal};
use recent::RecentRequests;

pub(crate) use trace::Queued;
pub use trace::Trace;

const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(60);

/// Pause between attempts to store a batch; it doubles each time.
const RETRY_MIN: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// After this many attempts, the recorder checks whether the batch itself is at fault.
const ATTEMPTS_MAX: usize = 5;

/// How long a request waits for its session.
const SESSION_PATIENCE: Duration = Duration::from_secs(2);
/// How long closing waits for a read of the policies.
const WATCH_END_MAX: Duration = Duration::from_secs(1);
/// How long a flush, or closing, waits for everything to be stored.
const FLUSH_MAX: Duration = Duration::from_secs(10);

/// Embeds texts, none of them empty, for traces that come without embeddings. Called on the recorder's thread.
pub type Embed = Box<dyn Fn(&[&str]) -> std::result::Result<Vec<Vec<f32>>, String> + Send>;

/// Counts of entries since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecorderStats {
    pub written: u64,
    /// Not accepted, because the queue was full.
    pub overflowed: u64,
    /// Accepted, but could not be stored.
    pub lost: u64,
    pub waiting: u64,
    /// Size of those waiting, and its maximum.
    pub waiting_bytes: u64,
    pub waiting_bytes_max: u64,
}

#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    overflowed: AtomicU64,
    lost: AtomicU64,
}

/// Accepts traces from requests. Clones share one recorder; when the last is dropped, the waiting traces are stored first, if
/// the database accepts them.
#[derive(Clone, Debug)]
pub struct Recorder(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    memory: Arc<Memory>,
    queue: Arc<Queue>,
    counts: Arc<Counts>,
    unwritten: Arc<WriteBuffer>,
    recent: RecentRequests,
    thread: Mutex<Option<JoinHandle<()>>>,
    watch: PolicyWatch,
}

impl Recorder {
    /// Starts the threads. `embed` is for traces that come with texts instead of embeddings.
    pub fn start(memory: Arc<Memory>, embed: Option<Embed>) -> Result<Self> {
        Self::start_with(memory, embed, MAINTENANCE_INTERVAL)
    }

    fn start_with(memory: Arc<Memory>, embed: Option<Embed>, maintenance_interval: Duration) -> Result<Self> {
        memory.policies().refresh()?;
        let watch = watch_policies(Arc::clone(&memory))?;
        let (queue, counts, unwritten) =
            (Arc::<Queue>::default(), Arc::<Counts>::default(), Arc::<WriteBuffer>::default());
        let writer = Writer {
            memory: Arc::clone(&memory),
            embed,
            queue: Arc::clone(&queue),
            counts: Arc::clone(&counts),
            unwritten: Arc::clone(&unwritten),
            maintenance_interval,
            maintenance_at: Instant::now() + maintenance_interval,
        };
        let thread = std::thread::Builder::new().name("witness".into()).spawn(move || writer.run());
        let thread = Mutex::new(Some(thread.map_err(MemoryError::Thread)?));
        let recent = RecentRequests::default();
        Ok(Self(Arc::new(Shared { memory, queue, counts, unwritten, recent, thread, watch })))
    }

    pub fn memory(&self) -> &Arc<Memory> {
        &self.0.memory
    }

    /// Returns a session with all its turns, also those not yet stored. Fails if the database takes too long.
    pub fn session(&self, tenant: &str, name: &str) -> Result<Option<Session>> {
        let stored = || self.0.memory.sessions().get_within(SESSION_PATIENCE, tenant, name);
        self.0.unwritten.session(tenant, name, SESSION_PATIENCE, stored)
    }

    /// Accepts a trace, or counts it as overflowed if the queue is full. Never waits.
    pub fn record(&self, trace: Trace) {
        let Shared { unwritten, recent, .. } = &*self.0;
        let (known, prompt, turn) = (trace.known(), trace.prompt, trace.turn.clone());
        if let Some(turn) = &turn {
            unwritten.add(turn.clone());
        }
        if self.offer(Queued::Trace(Box::new(trace))) {
            recent.add(known, prompt);
        } else if let Some(turn) = &turn {
            unwritten.remove(turn);
        }
    }

    /// Accepts an annotation. Returns `false` if the queue is full. Never waits.
    pub fn annotate(&self, annotation: Annotation) -> bool {
        self.offer(Queued::Annotation(Box::new(annotation)))
    }

    fn offer(&self, queued: Queued) -> bool {
        let Shared { queue, counts, .. } = &*self.0;
        let Err(refusal) = queue.offer(queued) else { return true };
        let count = match refusal {
            Refusal::Full => &counts.overflowed,
            Refusal::Closed => &counts.lost,
        };
        count.fetch_add(1, Ordering::Relaxed);
        false
    }

    /// Returns a request of a tenant that was answered a short time ago, by an id that its client was told. Does not read
    /// the store: see [`LearningStore::find_request`](crate::LearningStore::find_request).
    pub fn recent_request(&self, tenant: &str, id: &str) -> Option<KnownRequest> {
        self.0.recent.find(tenant, id)
    }

    /// Returns the request that was answered a short time ago to the same prompt. `prompt` is a hash that covers the tenant.
    pub fn answered(&self, prompt: u64) -> Option<String> {
        self.0.recent.answered(prompt)
    }

    /// Forgets what is stored of a request, a user or a tenant, with what is still waiting to be stored.
    pub fn forget(&self, what: &Forget, written_by: &str) -> Result<Forgotten> {
        if !self.flush() {
            return Err(MemoryError::Unavailable("entries are waiting to be written".into()));
        }
        self.0.recent.clear();
        self.0.memory.learning().forget(what, written_by)
    }

    /// Waits until all traces accepted before are stored or given up on. Returns `false` if some are still waiting after ten
    /// seconds.
    pub fn flush(&self) -> bool {
        self.0.queue.flush(FLUSH_MAX)
    }

    /// Returns the size of the waiting traces.
    pub fn queued_bytes(&self) -> usize {
        self.0.queue.load().1
    }

    /// Returns the maximum size of the waiting traces.
    pub fn queued_bytes_max(&self) -> usize {
        BYTES_MAX
    }

    pub fn stats(&self) -> RecorderStats {
        let counts = &self.0.counts;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (waiting, bytes) = self.0.queue.load();
        RecorderStats {
            written: count(&counts.written),
            overflowed: count(&counts.overflowed),
            lost: count(&counts.lost),
            waiting,
            waiting_bytes: bytes as u64,
            waiting_bytes_max: BYTES_MAX as u64,
        }
    }
}

impl Drop for Shared {
    /// Does not join a thread that hangs in a database.
    fn drop(&mut self) {
        self.watch.end(WATCH_END_MAX);
        let has_ended = self.queue.close(FLUSH_MAX);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread.filter(|_| has_ended) {
            thread.join().ok();
        }
    }
}

struct Writer {
    memory: Arc<Memory>,
    embed: Option<Embed>,
    queue: Arc<Queue>,
    counts: Arc<Counts>,
    unwritten: Arc<WriteBuffer>,
    maintenance_interval: Duration,
    maintenance_at: Instant,
}

impl Writer {
    fn run(mut self) {
        while let Some(batch) = self.queue.next(self.maintenance_at) {
            self.write(batch);
            self.maintain();
        }
    }

    fn write(&self, batch: Batch) {
        let Batch { mut queued, bytes } = batch;
        if queued.is_empty() {
            return;
        }
        // Before embeddings are added, since turns are compared with those in the write buffer.
        let turns: Vec<Turn> = queued.iter().filter_map(|queued| queued.trace()?.turn.clone()).collect();
        self.embed(&mut queued);
        let written = self.store(&queued, &turns, false);
        self.unwritten.settle(&turns);
        self.counts.written.fetch_add(written as u64, Ordering::Relaxed);
        self.counts.lost.fetch_add((queued.len() - written) as u64, Ordering::Relaxed);
        self.queue.settle(queued.len(), bytes);
    }

    /// Stores entries, with retries, and returns how many. Entries that the database refuses are left out. `is_doubtful` if
    /// they may be stored already.
    fn store(&self, queued: &[Queued], turns: &[Turn], mut is_doubtful: bool) -> usize {
        let mut wait = RETRY_MIN;
        for attempt in 1.. {
            self.unwritten.begin_writing(turns);
            let Err(error) = self.memory.store(queued, is_doubtful) else { return queued.len() };
            is_doubtful |= matches!(error, MemoryError::Doubtful(_));
            if !is_doubtful {
                self.unwritten.not_written(turns);
            }
            let is_own_fault = attempt >= ATTEMPTS_MAX && self.memory.is_writable();
            if !error.is_transient() || is_own_fault {
                return self.store_apart(queued, turns, is_doubtful, &error);
            }
            if attempt == 1 {
                tracing::warn!(entries = queued.len(), "the memory accepts no entries at present; retrying: {error}");
            }
            if !self.queue.pause(wait) {
                tracing::error!(entries = queued.len(), "entries of the witness log are lost: {error}");
                return 0;
            }
            wait = (2 * wait).min(RETRY_MAX);
        }
        0
    }

    /// Halves a batch until the entry that cannot be stored is found. Of that one, the part that can be stored is.
    fn store_apart(&self, queued: &[Queued], turns: &[Turn], is_doubtful: bool, error: &MemoryError) -> usize {
        if let [one] = queued {
            let request = one.request();
            let Some(less) = one.trace().and_then(reduced) else {
                tracing::error!(request, "an entry of the witness log cannot be stored: {error}");
                return 0;
            };
            tracing::error!(request, "part of a request's trace cannot be stored: {error}");
            return self.store(&[Queued::Trace(Box::new(less))], turns, is_doubtful);
        }
        let (left, right) = queued.split_at(queued.len() / 2);
        self.store(left, turns, is_doubtful) + self.store(right, turns, is_doubtful)
    }

    /// Embeds all texts of a batch at once. If that fails, entries are stored without embeddings: they can be found by
    /// everything but their meaning.
    fn embed(&self, batch: &mut [Queued]) {
        let Some(embed) = &self.embed else { return };
        let started = Instant::now();
        let traces = batch.iter().filter_map(Queued::trace);
        let texts = traces.flat_map(|trace| trace.to_embed.iter().flatten()).map(String::as_str);
        let texts: Vec<&str> = texts.filter(|text| !text.trim().is_empty()).collect();
        if texts.is_empty() {
            return;
        }
        let vectors = match embed(&texts) {
            Ok(vectors) => vectors,
            Err(error) => return tracing::warn!("entries of the witness log are stored without embeddings: {error}"),
        };
        let took_ms = started.elapsed().as_secs_f64() * 1e3 / batch.len() as f64;
        let mut vectors = vectors.into_iter();
        for trace in batch.iter_mut().filter_map(Queued::trace_mut).filter(|trace| trace.to_embed.is_some()) {
            let [asked, answered] = trace.to_embed.take().unwrap_or_default();
            let mut next = |text: &str| if text.trim().is_empty() { None } else { vectors.next() };
            trace.witness.prompt_embedding = next(&asked);
            trace.witness.answer_embedding = next(&answered);
            trace.witness.entry.latency.embedding_ms = took_ms;
            if let Some(turn) = &mut trace.turn {
                turn.embedding.clone_from(&trace.witness.prompt_embedding);
            }
        }
    }

    /// Maintains the memory when that is due, also on a server that is never idle.
    fn maintain(&mut self) {
        if Instant::now() < self.maintenance_at {
            return;
        }
        match self.memory.maintain() {
            Ok(_) => {}
            // Tried again after the interval.
            Err(error) if error.is_transient() => tracing::warn!("maintenance of the memory is postponed: {error}"),
            Err(error) => tracing::error!("maintenance of the memory failed: {error}"),
        }
        self.maintenance_at = Instant::now() + self.maintenance_interval;
    }
}

impl Drop for Writer {
    /// Also after a panic, so that nobody waits for this thread.
    fn drop(&mut self) {
        self.counts.lost.fetch_add(self.queue.end(), Ordering::Relaxed);
    }
}

/// Returns a trace without its trajectory, or if it has none without its turn, or else without its embeddings; `None` if there
/// is nothing to leave out.
fn reduced(trace: &Trace) -> Option<Trace> {
    let mut less = trace.clone();
    if less.trajectory.take().is_some() || less.turn.take().is_some() {
        return Some(less);
    }
    let WitnessRecord { prompt_embedding, answer_embedding, .. } = &mut less.witness;
    let had_some = prompt_embedding.take().is_some() | answer_embedding.take().is_some();
    had_some.then_some(less)
}

#[cfg(test)]
mod tests;
