//! Stores the traces of requests on its own thread, in batches. No request ever waits for it.
//!
//! While the database is unavailable, batches are retried and the queue fills up. An entry that cannot be stored is left out
//! on its own.

mod queue;
mod size;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Memory;
use crate::error::{MemoryError, Result};
use crate::sessions::{Session, Turn};
use crate::witness::WitnessRecord;
use crate::write_buffer::WriteBuffer;
use queue::{BYTES_MAX, Batch, Queue, Refusal};

const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(60);
/// How often the store is asked whether policies have changed.
const POLICY_INTERVAL: Duration = Duration::from_secs(5);

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

/// What is stored of a request.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub witness: WitnessRecord,
    /// Prompt and answer for an embedding model; not stored.
    pub to_embed: Option<[String; 2]>,
    /// The turn of its session, if it has one.
    pub turn: Option<Turn>,
}

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
    thread: Mutex<Option<JoinHandle<()>>>,
    watch: Watch,
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
        Ok(Self(Arc::new(Shared { memory, queue, counts, unwritten, thread, watch })))
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
        let Shared { queue, counts, unwritten, .. } = &*self.0;
        if let Some(turn) = &trace.turn {
            unwritten.add(turn.clone());
        }
        if let Err((refusal, trace)) = queue.offer(Box::new(trace)) {
            let count = match refusal {
                Refusal::Full => &counts.overflowed,
                Refusal::Closed => &counts.lost,
            };
            count.fetch_add(1, Ordering::Relaxed);
            trace.turn.iter().for_each(|turn| unwritten.remove(turn));
        }
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

/// The thread that follows changes of policies by other programs.
#[derive(Debug)]
struct Watch {
    /// The thread ends when this is dropped.
    running: Option<mpsc::Sender<()>>,
    thread: JoinHandle<()>,
}

impl Watch {
    /// Ends the thread, and waits for it unless it hangs in a database.
    fn end(&mut self, patience: Duration) {
        self.running = None;
        let deadline = Instant::now() + patience;
        while !self.thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn watch_policies(memory: Arc<Memory>) -> Result<Watch> {
    let (watch, ended) = mpsc::channel();
    let follow = move || {
        let mut is_known = true;
        while ended.recv_timeout(POLICY_INTERVAL) == Err(RecvTimeoutError::Timeout) {
            match memory.policies().refresh() {
                Ok(()) => is_known = true,
                Err(error) => {
                    // Logged once, not every five seconds.
                    if std::mem::take(&mut is_known) {
                        tracing::warn!("policies cannot be read; the known ones stay in force until they can: {error}");
                    }
                }
            }
        }
    };
    let thread = std::thread::Builder::new().name("policies".into()).spawn(follow).map_err(MemoryError::Thread)?;
    Ok(Watch { running: Some(watch), thread })
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
        let Batch { mut traces, bytes } = batch;
        if traces.is_empty() {
            return;
        }
        // Before embeddings are added, since turns are compared with those in the write buffer.
        let turns: Vec<Turn> = traces.iter().filter_map(|trace| trace.turn.clone()).collect();
        self.embed(&mut traces);
        let written = self.store(&traces, &turns, false);
        self.unwritten.settle(&turns);
        self.counts.written.fetch_add(written as u64, Ordering::Relaxed);
        self.counts.lost.fetch_add((traces.len() - written) as u64, Ordering::Relaxed);
        self.queue.settle(traces.len(), bytes);
    }

    /// Stores entries, with retries, and returns how many. Entries that the database refuses are left out. `is_doubtful` if
    /// they may be stored already.
    fn store(&self, traces: &[Trace], turns: &[Turn], mut is_doubtful: bool) -> usize {
        let mut wait = RETRY_MIN;
        for attempt in 1.. {
            self.unwritten.begin_writing(turns);
            let Err(error) = self.memory.store(traces, is_doubtful) else { return traces.len() };
            is_doubtful |= matches!(error, MemoryError::Doubtful(_));
            if !is_doubtful {
                self.unwritten.not_written(turns);
            }
            let is_own_fault = attempt >= ATTEMPTS_MAX && self.memory.is_writable();
            if !error.is_transient() || is_own_fault {
                return self.store_apart(traces, turns, is_doubtful, &error);
            }
            if attempt == 1 {
                tracing::warn!(entries = traces.len(), "the memory accepts no entries at present; retrying: {error}");
            }
            if !self.queue.pause(wait) {
                tracing::error!(entries = traces.len(), "entries of the witness log are lost: {error}");
                return 0;
            }
            wait = (2 * wait).min(RETRY_MAX);
        }
        0
    }

    /// Halves a batch until the entry that cannot be stored is found. Of that one, the part that can be stored is.
    fn store_apart(&self, traces: &[Trace], turns: &[Turn], is_doubtful: bool, error: &MemoryError) -> usize {
        if let [trace] = traces {
            let request = &trace.witness.entry.request;
            let Some(less) = reduced(trace) else {
                tracing::error!(request, "an entry of the witness log cannot be stored: {error}");
                return 0;
            };
            tracing::error!(request, "part of a request's trace cannot be stored: {error}");
            return self.store(&[less], turns, is_doubtful);
        }
        let (left, right) = traces.split_at(traces.len() / 2);
        self.store(left, turns, is_doubtful) + self.store(right, turns, is_doubtful)
    }

    /// Embeds all texts of a batch at once. If that fails, entries are stored without embeddings: they can be found by
    /// everything but their meaning.
    fn embed(&self, batch: &mut [Trace]) {
        let Some(embed) = &self.embed else { return };
        let started = Instant::now();
        let texts = batch.iter().flat_map(|trace| trace.to_embed.iter().flatten()).map(String::as_str);
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
        for trace in batch.iter_mut().filter(|trace| trace.to_embed.is_some()) {
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

/// Returns a trace without its turn, or if it has none without its embeddings; `None` if there is nothing to leave out.
fn reduced(trace: &Trace) -> Option<Trace> {
    let mut less = trace.clone();
    if less.turn.take().is_some() {
        return Some(less);
    }
    let WitnessRecord { prompt_embedding, answer_embedding, .. } = &mut less.witness;
    let had_some = prompt_embedding.take().is_some() | answer_embedding.take().is_some();
    had_some.then_some(less)
}

#[cfg(test)]
mod tests;
