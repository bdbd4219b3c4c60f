//! Keeps memories up to date on a thread of its own: reads examples, has them observed, publishes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use ruvllm_engine::{AdapterId, Observed, Recall, RecallItem, RecallSpace, TextToObserve, TokenId};
use ruvllm_memory::{LearningChanges, MemoryError, Recorder};
use ruvllm_model::adapters::AdapterError;
use ruvllm_text::SpecialTokens;

use super::items::{ItemId, WantedItem};
use super::scope::{Scope, ScopeKey};
use super::{ScopeMemory, Shared};
use crate::embed::SAMPLE_TEXTS;
use crate::engine::LoadedModel;
use crate::submit::Observe;

/// Interval at which the log is looked at for what other processes have said.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Interval at which everything is read again: what is kept to learn from expires.
const READ_AGAIN_EVERY: Duration = Duration::from_secs(600);
/// Examples that are read for a scope, and items that it has at most.
const EXAMPLES_MAX: usize = 1000;
const ITEMS_MAX: usize = 128;
/// Interval at which a wait looks whether the thread is to end.
const WAIT: Duration = Duration::from_millis(50);

/// What the thread is asked to do.
#[derive(Debug)]
pub(super) enum Task {
    /// A request has asked for a scope that is not in memory.
    Load(ScopeKey),
    /// Feedback was accepted by the recorder.
    Look,
}

pub(super) struct Worker {
    shared: Arc<Shared>,
    recorder: Recorder,
    tasks: Receiver<Task>,
    /// Where the log is looked at from.
    mark: i64,
    read_at: Instant,
    /// Of each model that gives states.
    spaces: HashMap<[u8; 32], Arc<RecallSpace>>,
    /// Scopes of which the rest is observed when nothing else is to be done.
    postponed: VecDeque<ScopeKey>,
}

/// Why a memory could not be brought up to date.
#[derive(Debug, thiserror::Error)]
enum RefreshError {
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error("{0}")]
    Observe(String),
    /// Nobody needs it any more, or something was forgotten meanwhile.
    #[error("it is not wanted any more")]
    Obsolete,
}

impl From<AdapterError> for RefreshError {
    fn from(error: AdapterError) -> Self {
        match error {
            AdapterError::NotRegistered(_) => Self::Obsolete,
            other => Self::Observe(other.to_string()),
        }
    }
}

impl Worker {
    pub fn new(shared: Arc<Shared>, recorder: Recorder, tasks: Receiver<Task>) -> Result<Self, MemoryError> {
        let mark = recorder.memory().learning().changes_mark()?;
        let (spaces, postponed) = (HashMap::new(), VecDeque::new());
        Ok(Self { shared, recorder, tasks, mark, read_at: Instant::now(), spaces, postponed })
    }

    /// Runs until the sender of tasks is dropped.
    pub fn run(mut self) {
        while !self.shared.state().is_closing {
            let patience = if self.postponed.is_empty() { LOOK_EVERY } else { Duration::ZERO };
            let task = self.tasks.recv_timeout(patience);
            match &task {
                Ok(Task::Load(key)) => self.refresh(key),
                Ok(Task::Look) => {
                    // What was said is in the recorder's queue.
                    self.recorder.flush();
                    self.look();
                }
                Err(RecvTimeoutError::Timeout) => match self.postponed.pop_front() {
                    Some(key) => self.refresh(&key),
                    None => self.look_for_others(),
                },
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if task.is_ok() {
                self.shared.state().waiting_tasks -= 1;
                self.shared.done.notify_all();
            }
        }
    }

    /// Looks for what other processes have said, and reads everything again from time to time.
    fn look_for_others(&mut self) {
        if self.shared.state().scopes.is_empty() {
            return;
        }
        self.look();
        if self.read_at.elapsed() > READ_AGAIN_EVERY {
            self.read_at = Instant::now();
            let known: Vec<ScopeKey> = self.shared.state().scopes.keys().cloned().collect();
            known.iter().for_each(|key| self.refresh(key));
        }
    }

    /// Follows what the log says since the last time.
    fn look(&mut self) {
        let changes = match self.recorder.memory().learning().changes(self.mark) {
            Ok(changes) => changes,
            Err(error) => return tracing::warn!("memories of corrections cannot follow the log now: {error}"),
        };
        let LearningChanges { mark, rated, has_forgotten } = changes;
        self.mark = mark;
        if has_forgotten {
            self.shared.state().forget();
        }
        let is_concerned = |key: &ScopeKey| {
            rated.iter().any(|(tenant, user)| *tenant == key.tenant && user.as_deref() == key.scope.user())
        };
        let concerned: Vec<ScopeKey> =
            self.shared.state().scopes.keys().filter(|key| is_concerned(key)).cloned().collect();
        concerned.iter().for_each(|key| self.refresh(key));
    }

    fn refresh(&mut self, key: &ScopeKey) {
        match self.bring_up_to_date(key) {
            Ok(()) | Err(RefreshError::Obsolete) => {}
            Err(error) => {
                // The next request asks for it again.
                self.shared.state().scopes.remove(key);
                tracing::warn!("corrections are not remembered yet: {error}");
            }
        }
    }

    /// Reads what a scope is to remember. What is new is observed, the newest first: that was corrected just now.
    fn bring_up_to_date(&mut self, key: &ScopeKey) -> Result<(), RefreshError> {
        let (generation, model) = {
            let state = self.shared.state();
            let memory = state.scopes.get(key).ok_or(RefreshError::Obsolete)?;
            (state.generation, memory.engine.upgrade().ok_or(RefreshError::Obsolete)?)
        };
        // Also where nothing is corrected yet: then a first correction need not wait for it.
        let space = self.space(&model)?;
        let wanted = self.wanted(key, &model)?;
        let ids: Vec<ItemId> = wanted.iter().map(|item| item.id.clone()).collect();
        let mut known = {
            let state = self.shared.state();
            let memory = state.scopes.get(key).ok_or(RefreshError::Obsolete)?;
            if memory.items.iter().map(|(id, _)| id).eq(&ids) {
                return Ok(());
            }
            memory.items.clone()
        };
        known.retain(|(id, _)| ids.contains(id));
        let mut is_first = true;
        for wanted in wanted.iter().rev() {
            if known.iter().any(|(id, _)| *id == wanted.id) {
                continue;
            }
            let item = self.observe(&model, key.adapter, generation, wanted, space.clone())?;
            known.push((wanted.id.clone(), Arc::new(item)));
            if std::mem::take(&mut is_first) {
                self.publish(key, generation, &ids, &known, space.as_ref())?;
            }
            // One of them is the task at hand.
            if self.shared.state().waiting_tasks > 1 {
                self.postponed.push_back(key.clone());
                break;
            }
        }
        self.publish(key, generation, &ids, &known, space.as_ref())
    }

    /// Returns what a scope is to remember, the oldest first: as much of the newest as there is room for.
    fn wanted(&self, key: &ScopeKey, model: &LoadedModel) -> Result<Vec<WantedItem>, RefreshError> {
        let learning = self.recorder.memory().learning();
        let examples = learning.newest_examples(&key.tenant, key.scope.user(), EXAMPLES_MAX)?;
        let own = examples.iter().rev().filter(|example| Scope::of_trajectory(&example.trajectory) == key.scope);
        let mut wanted = Vec::new();
        let mut targets = 0;
        let targets_max = Recall::targets_max(model.hidden, self.shared.bytes_max);
        for item in own.filter_map(|example| WantedItem::of(model, example)).take(ITEMS_MAX) {
            targets += item.targets();
            if targets > targets_max {
                break;
            }
            wanted.push(item);
        }
        wanted.reverse();
        Ok(wanted)
    }

    /// Returns the space of a model's states, measured once; `None` for models that give none.
    fn space(&mut self, model: &LoadedModel) -> Result<Option<Arc<RecallSpace>>, RefreshError> {
        if model.hidden == 0 {
            return Ok(None);
        }
        if let Some(space) = self.spaces.get(&model.fingerprint) {
            return Ok(Some(Arc::clone(space)));
        }
        let generation = self.shared.state().generation;
        match self.wait_for(model, generation, Observe::Space { tokens: space_sample(model) })? {
            Observed::Space(space) => {
                let space = Arc::new(space);
                self.spaces.insert(model.fingerprint, Arc::clone(&space));
                Ok(Some(space))
            }
            Observed::Item(_) => Err(RefreshError::Observe("the engine observed something else".to_owned())),
        }
    }

    fn observe(
        &self,
        model: &LoadedModel,
        adapter: Option<AdapterId>,
        generation: u64,
        wanted: &WantedItem,
        space: Option<Arc<RecallSpace>>,
    ) -> Result<RecallItem, RefreshError> {
        let adapter = adapter.map(|id| model.adapters.hold(&[(id, 1.0)])).transpose()?;
        let (tokens, first_target) = (wanted.tokens.clone(), wanted.first_target);
        let text = TextToObserve { tokens, first_target, space, adapter };
        match self.wait_for(model, generation, Observe::Item(text))? {
            Observed::Item(item) => Ok(item),
            Observed::Space(_) => Err(RefreshError::Observe("the engine observed something else".to_owned())),
        }
    }

    fn wait_for(&self, model: &LoadedModel, generation: u64, what: Observe) -> Result<Observed, RefreshError> {
        let (reply, replied) = channel();
        let stopped = || RefreshError::Observe("the engine has stopped".to_owned());
        model.thread.observe(what, reply).map_err(|_| stopped())?;
        loop {
            match replied.recv_timeout(WAIT) {
                Ok(outcome) => return outcome.map_err(RefreshError::Observe),
                Err(RecvTimeoutError::Disconnected) => return Err(stopped()),
                Err(RecvTimeoutError::Timeout) => {
                    let state = self.shared.state();
                    if state.is_closing || state.generation != generation {
                        return Err(RefreshError::Obsolete);
                    }
                }
            }
        }
    }

    /// Publishes the memory of what is known of `ids`, in that order. An item more is added to what there is; otherwise
    /// everything is made anew, so that it is what it would be if nothing else had ever been there.
    fn publish(
        &self,
        key: &ScopeKey,
        generation: u64,
        ids: &[ItemId],
        known: &[(ItemId, Arc<RecallItem>)],
        space: Option<&Arc<RecallSpace>>,
    ) -> Result<(), RefreshError> {
        let item_of = |id: &ItemId| known.iter().find(|(known, _)| known == id).cloned();
        let mut items: Vec<(ItemId, Arc<RecallItem>)> = ids.iter().filter_map(item_of).collect();
        let (before, count) = {
            let state = self.shared.state();
            let memory = state.scopes.get(key).ok_or(RefreshError::Obsolete)?;
            (Arc::clone(&memory.recall), memory.items.len())
        };
        let continues = count > 0 && self.holds(key, items.iter().map(|(id, _)| id).take(count));
        let (mut recall, first) = if continues { ((*before).clone(), count) } else { (Recall::new(space.cloned()), 0) };
        drop(before);
        let mut added = first;
        while added < items.len() && recall.add(Arc::clone(&items[added].1)) {
            added += 1;
        }
        items.truncate(added);
        let mut state = self.shared.state();
        if state.generation != generation {
            return Err(RefreshError::Obsolete);
        }
        let Some(ScopeMemory { recall: published, items: held, .. }) = state.scopes.get_mut(key) else {
            return Err(RefreshError::Obsolete);
        };
        (*published, *held) = (Arc::new(recall), items);
        while state.bytes() > self.shared.bytes_max && state.remove_least_recent(Some(key)) {}
        Ok(())
    }

    /// Returns whether a memory holds just these.
    fn holds<'i>(&self, key: &ScopeKey, ids: impl Iterator<Item = &'i ItemId>) -> bool {
        let state = self.shared.state();
        state.scopes.get(key).is_some_and(|memory| memory.items.iter().map(|(id, _)| id).eq(ids))
    }
}

/// Returns the text that shows how a model's states vary.
pub(super) fn space_sample(model: &LoadedModel) -> Vec<TokenId> {
    let mut tokens = model.encoder.tokenizer().encode(&SAMPLE_TEXTS.join("\n"), SpecialTokens::AsText);
    tokens.truncate(model.encoder.context());
    tokens
}
