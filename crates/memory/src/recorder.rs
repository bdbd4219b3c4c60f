//! Writes what requests leave behind, on a thread of its own, in batches. No request ever waits for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Memory;
use crate::error::Result;
use crate::pending::Pending;
use crate::sessions::{Session, Turn};
use crate::witness::WitnessRecord;

const QUEUE_MAX: usize = 10_000;
const BATCH_MAX: usize = 100;
/// How long an entry waits for others.
const BATCH_AGE_MAX: Duration = Duration::from_secs(1);
const UPKEEP_INTERVAL: Duration = Duration::from_secs(60);

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

#[derive(Debug)]
enum Order {
    Write(Box<Trace>),
    /// Write everything, then say so.
    Flush(mpsc::Sender<()>),
}

/// Counts of what has happened to entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecorderStats {
    pub written: u64,
    /// Not taken, because the queue was full.
    pub overflowed: u64,
    /// Taken, and then the store failed.
    pub lost: u64,
    pub waiting: u64,
}

#[derive(Debug, Default)]
struct Counts {
    written: AtomicU64,
    overflowed: AtomicU64,
    lost: AtomicU64,
    waiting: AtomicU64,
}

/// Takes traces from requests. Clones are the same recorder; when the last is dropped, what is waiting is written first.
#[derive(Clone, Debug)]
pub struct Recorder(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    orders: Option<SyncSender<Order>>,
    memory: Arc<Memory>,
    counts: Arc<Counts>,
    pending: Arc<Pending>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Recorder {
    /// Starts the thread. `embed` makes vectors of texts, where traces come with texts.
    pub fn start(memory: Arc<Memory>, embed: Option<Embed>) -> std::io::Result<Self> {
        let (orders, receiver) = mpsc::sync_channel(QUEUE_MAX);
        let (counts, pending) = (Arc::new(Counts::default()), Arc::new(Pending::default()));
        let writer = Writer {
            memory: Arc::clone(&memory),
            embed,
            counts: Arc::clone(&counts),
            pending: Arc::clone(&pending),
            upkeep_at: Instant::now() + UPKEEP_INTERVAL,
        };
        let thread = std::thread::Builder::new().name("witness".into()).spawn(move || writer.run(&receiver))?;
        let thread = Mutex::new(Some(thread));
        Ok(Self(Arc::new(Shared { orders: Some(orders), memory, counts, pending, thread })))
    }

    pub fn memory(&self) -> &Arc<Memory> {
        &self.0.memory
    }

    /// A session with all its turns, also those that are not written yet.
    pub fn session(&self, tenant: &str, name: &str) -> Result<Option<Session>> {
        self.0.pending.session(tenant, name, || self.0.memory.session(tenant, name))
    }

    /// Takes a trace, or counts that there was no room for it. Never waits.
    pub fn record(&self, trace: Trace) {
        let Some(orders) = &self.0.orders else { return };
        self.0.counts.waiting.fetch_add(1, Ordering::Relaxed);
        if let Some(turn) = &trace.turn {
            self.0.pending.add(turn.clone());
        }
        match orders.try_send(Order::Write(Box::new(trace))) {
            Ok(()) => {}
            Err(TrySendError::Full(order)) => self.not_taken(order, &self.0.counts.overflowed),
            Err(TrySendError::Disconnected(order)) => self.not_taken(order, &self.0.counts.lost),
        }
    }

    fn not_taken(&self, order: Order, count: &AtomicU64) {
        self.0.counts.waiting.fetch_sub(1, Ordering::Relaxed);
        count.fetch_add(1, Ordering::Relaxed);
        if let Order::Write(trace) = order
            && let Some(turn) = &trace.turn
        {
            self.0.pending.remove([turn]);
        }
    }

    /// Waits until everything is written that was taken before.
    pub fn flush(&self) {
        let Some(orders) = &self.0.orders else { return };
        let (done, wait) = mpsc::channel();
        if orders.send(Order::Flush(done)).is_ok() {
            // An error means that the thread has ended: then there is nothing to wait for.
            wait.recv().ok();
        }
    }

    pub fn stats(&self) -> RecorderStats {
        let counts = &self.0.counts;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RecorderStats {
            written: count(&counts.written),
            overflowed: count(&counts.overflowed),
            lost: count(&counts.lost),
            waiting: count(&counts.waiting),
        }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            thread.join().ok();
        }
    }
}

struct Writer {
    memory: Arc<Memory>,
    embed: Option<Embed>,
    counts: Arc<Counts>,
    pending: Arc<Pending>,
    upkeep_at: Instant,
}

impl Writer {
    fn run(mut self, orders: &Receiver<Order>) {
        let mut batch = Vec::with_capacity(BATCH_MAX);
        let mut due = self.upkeep_at;
        loop {
            let order = orders.recv_timeout(due.saturating_duration_since(Instant::now()));
            match order {
                Ok(Order::Write(trace)) => {
                    if batch.is_empty() {
                        due = due.min(Instant::now() + BATCH_AGE_MAX);
                    }
                    batch.push(*trace);
                    if batch.len() < BATCH_MAX && Instant::now() < due {
                        continue;
                    }
                    self.write(&mut batch);
                }
                Ok(Order::Flush(done)) => {
                    self.write(&mut batch);
                    done.send(()).ok();
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.write(&mut batch);
                    self.upkeep();
                }
                Err(RecvTimeoutError::Disconnected) => return self.write(&mut batch),
            }
            due = self.upkeep_at;
        }
    }

    fn write(&mut self, batch: &mut Vec<Trace>) {
        if batch.is_empty() {
            return;
        }
        let count = batch.len() as u64;
        // As they were handed over: embeddings come on top.
        let turns: Vec<Turn> = batch.iter().filter_map(|trace| trace.turn.clone()).collect();
        self.embed(batch);
        let batch = std::mem::take(batch);
        let stored = self.pending.while_writing(&turns, || self.memory.remember(batch));
        let counter = match stored {
            Ok(()) => &self.counts.written,
            Err(error) => {
                tracing::error!(entries = count, "the memory could not take entries of the witness log: {error}");
                &self.counts.lost
            }
        };
        counter.fetch_add(count, Ordering::Relaxed);
        self.counts.waiting.fetch_sub(count, Ordering::Relaxed);
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

    fn upkeep(&mut self) {
        if Instant::now() < self.upkeep_at {
            return;
        }
        if let Err(error) = self.memory.upkeep() {
            tracing::error!("the upkeep of the memory failed: {error}");
        }
        self.upkeep_at = Instant::now() + UPKEEP_INTERVAL;
    }
}
