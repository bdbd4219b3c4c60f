//! The thread that runs a model: takes requests, steps, and hands every request its tokens.
//!
//! It knows token ids only. Text is made by those who read the tokens, on their own threads.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, thread};

use metrics::Histogram;
use ruvllm_engine::{
    CacheStats, Constraint, Core, Event, LookupStats, Request, SequenceId, StepError, SubmitError, Tenant,
};
use ruvllm_runner::PageFormat;
use tokio::sync::{mpsc, oneshot};

/// How often the disk is given more of what is cached while there is nothing else to do.
const SAVE_EVERY: Duration = Duration::from_millis(5);

/// How old what is told of the engine's state may be, steps aside.
const STATUS_AGE_MAX: Duration = Duration::from_millis(10);

/// A token of a request or its failure, and when it came.
#[derive(Debug)]
pub(crate) struct Told {
    pub at: Instant,
    pub result: Result<Event, StepError>,
}

/// What becomes of a request, token by token: at most as many as its context holds. Closed without a last token if the
/// engine has failed.
pub(crate) type Events = mpsc::UnboundedReceiver<Told>;
type EventSender = mpsc::UnboundedSender<Told>;

/// A request for the engine.
#[derive(Debug)]
pub(crate) struct Submission {
    pub request: Request,
    pub constraint: Option<Box<dyn Constraint>>,
    /// How long anybody waits for the answer.
    pub patience: Option<Duration>,
}

/// A request that was handed over. Dropping this takes it back.
#[derive(Debug)]
pub(crate) struct Submitted {
    replied: oneshot::Receiver<Result<SequenceId, SubmitError>>,
    events: Events,
}

impl Submitted {
    /// Waits until it is queued or refused.
    pub(crate) fn wait(self) -> Result<Result<(SequenceId, Events), SubmitError>, Gone> {
        let id = self.replied.blocking_recv().map_err(|_| Gone)?;
        Ok(id.map(|id| (id, self.events)))
    }
}

/// Is told of every step.
#[derive(Clone, Debug)]
pub struct StepMetrics {
    /// Rows that were computed.
    pub rows: Histogram,
    /// Sequences that were running.
    pub sequences: Histogram,
}

impl Default for StepMetrics {
    /// Nobody is told.
    fn default() -> Self {
        Self { rows: Histogram::noop(), sequences: Histogram::noop() }
    }
}

/// What a running engine is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineStatus {
    pub running: usize,
    pub waiting: usize,
    /// Times that a sequence had to make room for others.
    pub pauses: u64,
    pub cache: CacheStats,
}

impl EngineStatus {
    /// Pages of keys and values by their format, where there are any.
    pub fn tier_pages(&self) -> impl Iterator<Item = (String, usize)> {
        let all = PageFormat::all().zip(self.cache.pages_by_format).filter(|(_, pages)| *pages > 0);
        all.map(|(format, pages)| (format.to_string(), pages))
    }
}

#[derive(Debug)]
enum Command {
    Submit(Box<Submission>, EventSender, oneshot::Sender<Result<SequenceId, SubmitError>>),
    Cancel(SequenceId),
    Tenants(oneshot::Sender<Vec<(Tenant, LookupStats)>>),
    KvBudget(usize, Sender<bool>),
}

/// The engine has panicked and answers nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

/// Talks to the thread. When this is dropped, the thread ends, and what it computed is saved.
#[derive(Debug)]
pub(crate) struct EngineThread {
    core: Arc<Mutex<Core>>,
    status: Arc<Mutex<EngineStatus>>,
    // Both are only absent while it is dropped.
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
}

impl EngineThread {
    pub(crate) fn start(core: Core, step_metrics: StepMetrics) -> io::Result<Self> {
        let status = Arc::new(Mutex::new(status(&core)));
        let core = Arc::new(Mutex::new(core));
        let (commands, received) = channel();
        let work = Work {
            core: Arc::clone(&core),
            commands: received,
            readers: HashMap::new(),
            status: Arc::clone(&status),
            status_at: Instant::now(),
            step_metrics,
        };
        let thread = thread::Builder::new().name("ruvllm-engine".into()).spawn(move || work.run())?;
        Ok(Self { core, status, commands: Some(commands), thread: Some(thread) })
    }

    /// The engine itself. Nothing else is answered while it is held.
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().expect("the engine has not panicked")
    }

    /// Hands over a request. It is queued when the step that is running has ended.
    pub(crate) fn submit(&self, submission: Submission) -> Result<Submitted, Gone> {
        let (sender, events) = mpsc::unbounded_channel();
        let (reply, replied) = oneshot::channel();
        self.send(Command::Submit(Box::new(submission), sender, reply))?;
        Ok(Submitted { replied, events })
    }

    /// Ends a request and frees its pages. Unknown ones have ended already.
    pub(crate) fn cancel(&self, id: SequenceId) {
        // An engine that is gone has nothing to cancel.
        let _ = self.send(Command::Cancel(id));
    }

    /// As it was some milliseconds ago at most.
    pub(crate) fn status(&self) -> EngineStatus {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) async fn tenants(&self) -> Result<Vec<(Tenant, LookupStats)>, Gone> {
        let (reply, replied) = oneshot::channel();
        self.send(Command::Tenants(reply))?;
        replied.await.map_err(|_| Gone)
    }

    /// Changes the memory for keys and values when the step that is running has ended. Waits for that, and tells whether no more
    /// is held.
    pub(crate) fn set_kv_budget(&self, bytes: usize) -> Result<bool, Gone> {
        let (reply, replied) = channel();
        self.send(Command::KvBudget(bytes, reply))?;
        replied.recv().map_err(|_| Gone)
    }

    fn send(&self, command: Command) -> Result<(), Gone> {
        self.commands.as_ref().ok_or(Gone)?.send(command).map_err(|_| Gone)
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // It has failed already if this does.
            let _ = thread.join();
        }
    }
}

/// What the thread works with.
struct Work {
    core: Arc<Mutex<Core>>,
    commands: Receiver<Command>,
    readers: HashMap<SequenceId, EventSender>,
    status: Arc<Mutex<EngineStatus>>,
    status_at: Instant,
    step_metrics: StepMetrics,
}

impl Work {
    /// Until nobody can send commands any more, or the engine panics. In that case the channels of all requests close.
    fn run(mut self) {
        let started = Instant::now();
        while self.take_commands(started).is_ok() {
            if catch_unwind(AssertUnwindSafe(|| self.step(started))).is_err() {
                tracing::error!("the engine has failed; what was running is lost, and the model must be loaded again");
                return;
            }
        }
    }

    /// Takes all commands that have come; waits for one if there is nothing to do.
    fn take_commands(&mut self, started: Instant) -> Result<(), RecvError> {
        loop {
            let command = match self.commands.try_recv() {
                Ok(command) => command,
                Err(TryRecvError::Disconnected) => return Err(RecvError),
                Err(TryRecvError::Empty) if !self.readers.is_empty() => return Ok(()),
                Err(TryRecvError::Empty) => self.wait_for_command()?,
            };
            let core = Arc::clone(&self.core);
            let Ok(mut core) = core.lock() else { return Err(RecvError) };
            core.set_time(started.elapsed());
            self.obey(command, &mut core, started);
        }
    }

    /// While nobody waits for tokens, what is cached goes to disk.
    fn wait_for_command(&self) -> Result<Command, RecvError> {
        if let Ok(mut core) = self.core.lock() {
            core.yield_device();
        }
        while self.core.lock().is_ok_and(|mut core| core.queue_writes() > 0) {
            match self.commands.recv_timeout(SAVE_EVERY) {
                Ok(command) => return Ok(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(RecvError),
            }
        }
        self.commands.recv()
    }

    fn obey(&mut self, command: Command, core: &mut Core, started: Instant) {
        match command {
            Command::Submit(submission, events, reply) => {
                let Submission { request, constraint, patience } = *submission;
                let deadline = patience.map(|patience| started.elapsed().saturating_add(patience));
                let id = core.submit_constrained(Request { deadline, ..request }, constraint);
                if let Ok(id) = id {
                    self.readers.insert(id, events);
                }
                if let Err(Ok(id)) = reply.send(id) {
                    // Nobody waits for it any more.
                    self.forget(id, core);
                }
            }
            Command::Cancel(id) => self.forget(id, core),
            Command::KvBudget(bytes, reply) => {
                let _ = reply.send(core.set_kv_budget(bytes));
            }
            Command::Tenants(reply) => {
                // Whoever asked may have left.
                let _ = reply.send(core.tenants().map(|(tenant, lookups)| (tenant.clone(), lookups)).collect());
            }
        }
        self.publish(core);
    }

    /// Lets others see what is going on.
    fn publish(&mut self, core: &Core) {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status(core);
        self.status_at = Instant::now();
    }

    fn forget(&mut self, id: SequenceId, core: &mut Core) {
        self.readers.remove(&id);
        core.cancel(id);
    }

    fn step(&mut self, started: Instant) {
        let core = Arc::clone(&self.core);
        let mut core = core.lock().expect("only this thread panics with it, and then it ends");
        core.set_time(started.elapsed());
        let step_started = Instant::now();
        let results = core.step();
        self.step_metrics.rows.record(core.step_rows() as f64);
        self.step_metrics.sequences.record(core.running() as f64);
        core.step_took(step_started.elapsed());
        let at = Instant::now();
        for result in results {
            let (id, is_last) = match &result {
                Ok(event) => (event.sequence, event.finish.is_some()),
                Err(error) => (error.sequence(), true),
            };
            let is_read = self.readers.get(&id).is_some_and(|reader| reader.send(Told { at, result }).is_ok());
            if is_last {
                self.readers.remove(&id);
            } else if !is_read {
                self.forget(id, &mut core);
            }
        }
        if core.is_idle() || self.status_at.elapsed() > STATUS_AGE_MAX {
            self.publish(&core);
        }
    }
}

fn status(core: &Core) -> EngineStatus {
    EngineStatus {
        running: core.running(),
        waiting: core.waiting(),
        pauses: core.preemptions(),
        cache: core.cache_stats(),
    }
}
