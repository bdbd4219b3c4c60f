//! Writes what requests leave behind, on a thread of its own, in batches. No request ever waits for it.
//!
//! A database that is away costs nothing until the queue is full: batches are tried again until they are stored. An entry that
//! cannot be stored is left out alone.

mod queue;
mod size;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Memory;
use crate::error::{MemoryError, Result};
use crate::pending::Pending;
use crate::sessions::{Session, Turn};
use crate::witness::WitnessRecord;
use queue::{BYTES_MAX, Batch, Queue, Refusal};

const UPKEEP_INTERVAL: Duration = Duration::from_secs(60);
/// Policies are compared with the store's so often.
const POLICY_INTERVAL: Duration = Duration::from_secs(5);

/// Between attempts to write a batch.
const RETRY_MIN: Duration = Duration::from_millis(250);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// After so many it is asked whether it is the batch's own fault.
const ATTEMPTS_MAX: usize = 5;

/// How long a request waits for its session.
const SESSION_PATIENCE: Duration = Duration::from_secs(2);
/// How long the end waits for whoever reads policies just then.
const WATCH_END_MAX: Duration = Duration::from_secs(1);
/// How long somebody waits for everything to be written, at the end of the process above all.
const FLUSH_MAX: Duration = Duration::from_secs(10);

/// Makes vectors of texts, none of them empty, where they do not come with the traces. Called on the recorder's thread.
pub type Embed = Box<dyn Fn(&[&str]) -> std::result::Result<Vec<Vec<f32>>, String> + Send>;

/// What a request leaves behind.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    pub witness: WitnessRecord,
    /// What was asked and answered, for an embedding model; not stored.
    pub to_embed: Option<[String; 2]>,
    /// The turn of its session, if it belongs to one.
    pub turn: Option<Turn>,
}

/// Counts of what has happened to entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecorderStats {
    pub written: u64,
    /// Not taken, because the queue was full.
    pub overflowed: u64,
    /// Taken, and then it could not be stored.
    pub lost: u64,
    pub waiting: u64,
    /// What those that wait take, and may take.
    pub waiting_bytes: u64,
    pub waiting_bytes_max: u64,
}

#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    overflowed: AtomicU64,
    lost: AtomicU64,
}

/// Takes traces from requests. Clones are the same recorder; when the last is dropped, what is waiting is written first, if
/// the store takes it.
#[derive(Clone, Debug)]
pub struct Recorder(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    memory: Arc<Memory>,
    queue: Arc<Queue>,
    counts: Arc<Counts>,
    pending: Arc<Pending>,
    thread: Mutex<Option<JoinHandle<()>>>,
    watch: Watch,
}

impl Recorder {
    /// Starts the threads. `embed` makes vectors of texts, where traces come with texts.
    pub fn start(memory: Arc<Memory>, embed: Option<Embed>) -> Result<Self> {
        Self::start_with(memory, embed, UPKEEP_INTERVAL)
    }

    fn start_with(memory: Arc<Memory>, embed: Option<Embed>, upkeep_interval: Duration) -> Result<Self> {
        memory.refresh_policies()?;
        let watch = watch_policies(Arc::clone(&memory))?;
        let (queue, counts, pending) = (Arc::<Queue>::default(), Arc::<Counts>::default(), Arc::<Pending>::default());
        let writer = Writer {
            memory: Arc::clone(&memory),
            embed,
            queue: Arc::clone(&queue),
            counts: Arc::clone(&counts),
            pending: Arc::clone(&pending),
            upkeep_interval,
            upkeep_at: Instant::now() + upkeep_interval,
        };
        let thread = std::thread::Builder::new().name("witness".into()).spawn(move || writer.run());
        let thread = Mutex::new(Some(thread.map_err(MemoryError::Thread)?));
        Ok(Self(Arc::new(Shared { memory, queue, counts, pending, thread, watch })))
    }

    pub fn memory(&self) -> &Arc<Memory> {
        &self.0.memory
    }

    /// A session with all its turns, also those that are not written yet. Fails if the store takes long to say.
    pub fn session(&self, tenant: &str, name: &str) -> Result<Option<Session>> {
        let stored = || self.0.memory.session_within(SESSION_PATIENCE, tenant, name);
        self.0.pending.session(tenant, name, SESSION_PATIENCE, stored)
    }

    /// Takes a trace, or counts that there was no room for it. Never waits.
    pub fn record(&self, trace: Trace) {
        let Shared { queue, counts, pending, .. } = &*self.0;
        if let Some(turn) = &trace.turn {
            pending.add(turn.clone());
        }
        if let Err((refusal, trace)) = queue.offer(Box::new(trace)) {
            let count = match refusal {
                Refusal::Full => &counts.overflowed,
                Refusal::Closed => &counts.lost,
            };
            count.fetch_add(1, Ordering::Relaxed);
            trace.turn.iter().for_each(|turn| pending.remove(turn));
        }
    }

    /// Waits until everything is settled that was taken before, but not forever: `false` if some of it still waits, because
    /// the store does not take it.
    pub fn flush(&self) -> bool {
        self.0.queue.flush(FLUSH_MAX)
    }

    /// What entries that wait take in memory.
    pub fn queued_bytes(&self) -> usize {
        self.0.queue.load().1
    }

    /// What they may take at most.
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
    /// A thread that hangs in a database is left to itself.
    fn drop(&mut self) {
        self.watch.end(WATCH_END_MAX);
        let has_ended = self.queue.close(FLUSH_MAX);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread.filter(|_| has_ended) {
            thread.join().ok();
        }
    }
}

/// The thread that follows what others change in the store.
#[derive(Debug)]
struct Watch {
    /// The thread ends when it is dropped.
    running: Option<mpsc::Sender<()>>,
    thread: JoinHandle<()>,
}

impl Watch {
    /// Ends it, and waits for that unless it hangs in a database.
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
            match memory.refresh_policies() {
                Ok(()) => is_known = true,
                Err(error) => {
                    // Once, not every five seconds.
                    if std::mem::take(&mut is_known) {
                        tracing::warn!("policies cannot be read; those that are known hold until they can: {error}");
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
    pending: Arc<Pending>,
    upkeep_interval: Duration,
    upkeep_at: Instant,
}

impl Writer {
    fn run(mut self) {
        while let Some(batch) = self.queue.next(self.upkeep_at) {
            self.write(batch);
            self.upkeep();
        }
    }

    fn write(&self, batch: Batch) {
        let Batch { mut traces, bytes } = batch;
        if traces.is_empty() {
            return;
        }
        // As they were handed over: embeddings come on top.
        let turns: Vec<Turn> = traces.iter().filter_map(|trace| trace.turn.clone()).collect();
        self.embed(&mut traces);
        let written = self.store(&traces, &turns, false);
        self.pending.settle(&turns);
        self.counts.written.fetch_add(written as u64, Ordering::Relaxed);
        self.counts.lost.fetch_add((traces.len() - written) as u64, Ordering::Relaxed);
        self.queue.settle(traces.len(), bytes);
    }

    /// Stores entries, for as long as that takes; how many. If the store refuses some, the others are stored without them.
    /// `is_doubtful` if they may be stored already.
    fn store(&self, traces: &[Trace], turns: &[Turn], mut is_doubtful: bool) -> usize {
        let mut wait = RETRY_MIN;
        for attempt in 1.. {
            self.pending.begin_writing(turns);
            let Err(error) = self.memory.store(traces, is_doubtful) else { return traces.len() };
            is_doubtful |= matches!(error, MemoryError::Doubtful(_));
            if !is_doubtful {
                self.pending.not_written(turns);
            }
            let is_own_fault = attempt >= ATTEMPTS_MAX && self.memory.is_writable();
            if !error.is_transient() || is_own_fault {
                return self.store_apart(traces, turns, is_doubtful, &error);
            }
            if attempt == 1 {
                tracing::warn!(entries = traces.len(), "the memory takes no entries at present; trying on: {error}");
            }
            if !self.queue.pause(wait) {
                tracing::error!(entries = traces.len(), "entries of the witness log are lost: {error}");
                return 0;
            }
            wait = (2 * wait).min(RETRY_MAX);
        }
        0
    }

    /// Finds the one that cannot be stored. Of that, what can be is.
    fn store_apart(&self, traces: &[Trace], turns: &[Turn], is_doubtful: bool, error: &MemoryError) -> usize {
        if let [trace] = traces {
            let request = &trace.witness.entry.request;
            let Some(less) = without_the_least(trace) else {
                tracing::error!(request, "an entry of the witness log cannot be stored: {error}");
                return 0;
            };
            tracing::error!(request, "part of what a request left cannot be stored: {error}");
            return self.store(&[less], turns, is_doubtful);
        }
        let (left, right) = traces.split_at(traces.len() / 2);
        self.store(left, turns, is_doubtful) + self.store(right, turns, is_doubtful)
    }

    /// Vectors of all texts of a batch at once. Without them entries are still found, by everything but their meaning.
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

    /// Whatever else there is to do: a server that is never idle forgets, too.
    fn upkeep(&mut self) {
        if Instant::now() < self.upkeep_at {
            return;
        }
        match self.memory.upkeep() {
            Ok(_) => {}
            // It is due again soon.
            Err(error) if error.is_transient() => tracing::warn!("the upkeep of the memory has to wait: {error}"),
            Err(error) => tracing::error!("the upkeep of the memory failed: {error}"),
        }
        self.upkeep_at = Instant::now() + self.upkeep_interval;
    }
}

impl Drop for Writer {
    /// Also if it panicked: nobody is to wait for it.
    fn drop(&mut self) {
        self.counts.lost.fetch_add(self.queue.end(), Ordering::Relaxed);
    }
}

/// An entry without its turn, or if it has none without its embeddings; `None` if there is nothing to leave out.
fn without_the_least(trace: &Trace) -> Option<Trace> {
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
