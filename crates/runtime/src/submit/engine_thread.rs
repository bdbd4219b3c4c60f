//! The thread that runs a model: takes requests, runs steps, and sends every request its tokens.
//!
//! Knows token ids only. Text is made of them on the threads that read them.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{io, thread};

use metrics::Histogram;
use ruvllm_engine::{
    CacheStats, Constraint, Core, Event, LookupStats, Observed, PrefixEvent, Request, SequenceId, StepError,
    SubmitError, Tenant, TextToObserve, TokenId,
};
use ruvllm_runner::PageFormat;
use tokio::sync::{mpsc, oneshot};

use super::prefix_listener::PrefixListener;

/// Interval at which cached pages are queued for the disk while the engine is idle.
const SAVE_EVERY: Duration = Duration::from_millis(5);

/// Maximum age of the published status, not counting a step in progress.
const STATUS_AGE_MAX: Duration = Duration::from_millis(10);

/// Rows of an observed text that are run at a time: while nobody asks for anything, and beside requests, at this
/// interval.
const OBSERVED_ROWS: usize = 32;
const OBSERVED_ROWS_BESIDE: usize = 16;
const OBSERVE_EVERY: Duration = Duration::from_millis(60);

/// A token of a request or its failure, with the time it came.
#[derive(Debug)]
pub(crate) struct TimedEvent {
    pub at: Instant,
    pub result: Result<Event, StepError>,
}

/// Events of a request, token by token; bounded by its context. Closed without a last token if the engine has failed.
pub(crate) type Events = mpsc::UnboundedReceiver<TimedEvent>;
type EventSender = mpsc::UnboundedSender<TimedEvent>;

/// A request for the engine.
#[derive(Debug)]
pub(crate) struct Submission {
    pub request: Request,
    pub constraint: Option<Box<dyn Constraint>>,
    /// Time after which the answer ends with an error.
    pub timeout: Option<Duration>,
}

/// What is to be observed, at the lowest priority.
#[derive(Debug)]
pub(crate) enum Observe {
    /// A text that is to be remembered.
    Item(TextToObserve),
    /// How the channels of hidden states vary on a text.
    Space { tokens: Vec<TokenId> },
}

/// What was observed, or why it could not be.
pub(crate) type ObserveReply = Sender<Result<Observed, String>>;

/// A request that the thread has yet to queue. Dropping it takes the request back.
#[derive(Debug)]
pub(crate) struct PendingSubmission {
    replied: oneshot::Receiver<Result<SequenceId, SubmitError>>,
    events: Events,
}

impl PendingSubmission {
    /// Waits until the request is queued or refused.
    pub(crate) fn wait(self) -> Result<Result<(SequenceId, Events), SubmitError>, EngineStopped> {
        let id = self.replied.blocking_recv().map_err(|_| EngineStopped)?;
        Ok(id.map(|id| (id, self.events)))
    }
}

/// Histograms that record every step.
#[derive(Clone, Debug)]
pub struct StepMetrics {
    /// Rows of the step.
    pub rows: Histogram,
    /// Sequences that ran in it.
    pub sequences: Histogram,
}

impl Default for StepMetrics {
    /// Records nothing.
    fn default() -> Self {
        Self { rows: Histogram::noop(), sequences: Histogram::noop() }
    }
}

/// A snapshot of what an engine is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineStatus {
    pub running: usize,
    pub waiting: usize,
    /// Tokens of those that wait.
    pub waiting_tokens: usize,
    /// Number of preemptions so far.
    pub pauses: u64,
    pub cache: CacheStats,
}

impl EngineStatus {
    /// Returns the number of KV pages by format, without formats that have none.
    pub fn tier_pages(&self) -> impl Iterator<Item = (String, usize)> {
        let all = PageFormat::every().zip(self.cache.pages_by_format).filter(|(_, pages)| *pages > 0);
        all.map(|(format, pages)| (format.to_string(), pages))
    }
}

#[derive(Debug)]
enum Command {
    Submit(Box<Submission>, EventSender, oneshot::Sender<Result<SequenceId, SubmitError>>),
    Cancel(SequenceId),
    Tenants(oneshot::Sender<Vec<(Tenant, LookupStats)>>),
    KvBudget(usize, Sender<bool>),
    Observe(Observe, ObserveReply),
}

/// The engine has panicked and answers no more requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EngineStopped;

/// Sends commands to the thread. Dropping it ends the thread, after cached pages were saved.
#[derive(Debug)]
pub(crate) struct EngineThread {
    core: Arc<Mutex<Core>>,
    status: Arc<Mutex<EngineStatus>>,
    // `None` only while this is dropped.
    commands: Option<Sender<Command>>,
    thread: Option<JoinHandle<()>>,
}

impl EngineThread {
    pub(crate) fn start(
        mut core: Core,
        step_metrics: StepMetrics,
        listener: Option<PrefixListener>,
    ) -> io::Result<Self> {
        if listener.is_some() {
            core.record_prefix_events();
        }
        let status = Arc::new(Mutex::new(status(&core)));
        let core = Arc::new(Mutex::new(core));
        let (commands, received) = channel();
        let work = Work {
            core: Arc::clone(&core),
            commands: received,
            readers: HashMap::new(),
            observations: VecDeque::new(),
            observing: None,
            observed_at: Instant::now(),
            status: Arc::clone(&status),
            status_at: Instant::now(),
            step_metrics,
            listener,
        };
        let thread = thread::Builder::new().name("ruvllm-engine".into()).spawn(move || work.run())?;
        Ok(Self { core, status, commands: Some(commands), thread: Some(thread) })
    }

    /// Locks the engine. Nothing else is answered while the lock is held.
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().expect("the engine has not panicked")
    }

    /// Sends a request, which is queued after the step in progress.
    pub(crate) fn submit(&self, submission: Submission) -> Result<PendingSubmission, EngineStopped> {
        let (sender, events) = mpsc::unbounded_channel();
        let (reply, replied) = oneshot::channel();
        self.send(Command::Submit(Box::new(submission), sender, reply))?;
        Ok(PendingSubmission { replied, events })
    }

    /// Ends a request and frees its pages. Does nothing if it has ended already.
    pub(crate) fn cancel(&self, id: SequenceId) {
        // A stopped engine has nothing to cancel.
        let _ = self.send(Command::Cancel(id));
    }

    /// Returns the status, a few milliseconds old.
    pub(crate) fn status(&self) -> EngineStatus {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) async fn tenants(&self) -> Result<Vec<(Tenant, LookupStats)>, EngineStopped> {
        let (reply, replied) = oneshot::channel();
        self.send(Command::Tenants(reply))?;
        replied.await.map_err(|_| EngineStopped)
    }

    /// Changes the KV budget after the step in progress and waits for that. Returns whether the budget holds.
    pub(crate) fn set_kv_budget(&self, bytes: usize) -> Result<bool, EngineStopped> {
        let (reply, replied) = channel();
        self.send(Command::KvBudget(bytes, reply))?;
        replied.recv().map_err(|_| EngineStopped)
    }

    /// Has a text observed while there is time. Texts are taken in their order.
    pub(crate) fn observe(&self, what: Observe, reply: ObserveReply) -> Result<(), EngineStopped> {
        self.send(Command::Observe(what, reply))
    }

    fn send(&self, command: Command) -> Result<(), EngineStopped> {
        self.commands.as_ref().ok_or(EngineStopped)?.send(command).map_err(|_| EngineStopped)
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, that was logged.
            let _ = thread.join();
        }
    }
}

/// State of the thread.
struct Work {
    core: Arc<Mutex<Core>>,
    commands: Receiver<Command>,
    readers: HashMap<SequenceId, EventSender>,
    /// Texts that wait to be observed, and who waits for the one that is.
    observations: VecDeque<(Observe, ObserveReply)>,
    observing: Option<ObserveReply>,
    observed_at: Instant,
    status: Arc<Mutex<EngineStatus>>,
    status_at: Instant,
    step_metrics: StepMetrics,
    listener: Option<PrefixListener>,
}

impl Work {
    /// Runs until the sender of commands is dropped or the engine panics. A panic closes the channels of all requests.
    fn run(mut self) {
        let started = Instant::now();
        while self.take_commands(started).is_ok() {
            if catch_unwind(AssertUnwindSafe(|| self.work(started))).is_err() {
                tracing::error!("the engine has failed; what was running is lost, and the model must be loaded again");
                break;
            }
        }
        // The memory goes with the engine.
        if let Some(listener) = &mut self.listener {
            listener.tell(vec![PrefixEvent::Cleared]);
        }
    }

    /// Moves requests on, and then what is done beside them.
    fn work(&mut self, started: Instant) {
        if !self.readers.is_empty() {
            self.step(started);
        }
        if self.has_observations() {
            self.observe();
        }
    }

    fn has_observations(&self) -> bool {
        self.observing.is_some() || !self.observations.is_empty()
    }

    /// Runs some rows of the text that is being observed.
    fn observe(&mut self) {
        let is_busy = !self.readers.is_empty();
        if is_busy && self.observed_at.elapsed() < OBSERVE_EVERY {
            return;
        }
        let core = Arc::clone(&self.core);
        let mut core = core.lock().expect("only this thread panics with it, and then it ends");
        let Some(reply) = self.observing.take().or_else(|| self.begin_observation(&mut core)) else { return };
        let before = core.observed_rows();
        let outcome = core.observe(if is_busy { OBSERVED_ROWS_BESIDE } else { OBSERVED_ROWS });
        self.observed_at = Instant::now();
        self.publish(&mut core);
        let outcome = match outcome {
            Ok(Some(observed)) => Ok(observed),
            Ok(None) if is_busy || core.observed_rows() > before => {
                self.observing = Some(reply);
                return;
            }
            // Nothing else needs the pages.
            Ok(None) => {
                core.end_observation();
                Err("the KV memory has no room for it; raise the KV budget".to_owned())
            }
            Err(error) => Err(error.to_string()),
        };
        // Whoever waited may have given up.
        let _ = reply.send(outcome);
    }

    /// Begins with the next text that can be observed.
    fn begin_observation(&mut self, core: &mut Core) -> Option<ObserveReply> {
        while let Some((what, reply)) = self.observations.pop_front() {
            let begun = match what {
                Observe::Item(text) => core.begin_observation(text),
                Observe::Space { tokens } => core.begin_measuring_space(tokens),
            };
            match begun {
                Ok(()) => return Some(reply),
                Err(error) => drop(reply.send(Err(error.to_string()))),
            }
        }
        None
    }

    /// Executes all commands that have come; waits for one if the engine is idle.
    fn take_commands(&mut self, started: Instant) -> Result<(), RecvError> {
        loop {
            let command = match self.commands.try_recv() {
                Ok(command) => command,
                Err(TryRecvError::Disconnected) => return Err(RecvError),
                Err(TryRecvError::Empty) if !self.readers.is_empty() || self.has_observations() => return Ok(()),
                Err(TryRecvError::Empty) => self.wait_for_command()?,
            };
            let core = Arc::clone(&self.core);
            let Ok(mut core) = core.lock() else { return Err(RecvError) };
            core.set_time(started.elapsed());
            self.execute(command, &mut core, started);
        }
    }

    /// Waits for a command while cached pages go to disk.
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

    fn execute(&mut self, command: Command, core: &mut Core, started: Instant) {
        match command {
            Command::Submit(submission, events, reply) => {
                let Submission { request, constraint, timeout } = *submission;
                let deadline = timeout.map(|timeout| started.elapsed().saturating_add(timeout));
                let id = core.submit_constrained(Request { deadline, ..request }, constraint);
                if let Ok(id) = id {
                    self.readers.insert(id, events);
                }
                if let Err(Ok(id)) = reply.send(id) {
                    // The caller gave up meanwhile.
                    self.forget(id, core);
                }
            }
            Command::Cancel(id) => self.forget(id, core),
            Command::KvBudget(bytes, reply) => {
                let _ = reply.send(core.set_kv_budget(bytes));
            }
            Command::Observe(what, reply) => self.observations.push_back((what, reply)),
            Command::Tenants(reply) => {
                // The caller may have given up.
                let _ = reply.send(core.tenants().map(|(tenant, lookups)| (tenant.clone(), lookups)).collect());
            }
        }
        self.publish(core);
    }

    /// Publishes the status, and how cached prefixes have changed.
    fn publish(&mut self, core: &mut Core) {
        if let Some(listener) = &mut self.listener {
            listener.tell(core.take_prefix_events());
        }
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
        if let Some(reason) = core.take_draft_failure() {
            tracing::warn!("the draft model is not used any more, answers go on without it: {reason}");
        }
        let at = Instant::now();
        for result in results {
            let (id, is_last) = match &result {
                Ok(event) => (event.sequence, event.finish.is_some()),
                Err(error) => (error.sequence(), true),
            };
            let is_read = self.readers.get(&id).is_some_and(|reader| reader.send(TimedEvent { at, result }).is_ok());
            if is_last {
                self.readers.remove(&id);
            } else if !is_read {
                self.forget(id, &mut core);
            }
        }
        if core.is_idle() || self.status_at.elapsed() > STATUS_AGE_MAX {
            self.publish(&mut core);
        }
    }
}

fn status(core: &Core) -> EngineStatus {
    EngineStatus {
        running: core.running(),
        waiting: core.waiting(),
        waiting_tokens: core.waiting_tokens(),
        pauses: core.preemptions(),
        cache: core.cache_stats(),
    }
}
