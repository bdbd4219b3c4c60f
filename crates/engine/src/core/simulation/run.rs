//! One run: requests come, are cancelled and answered, things break, and after every step everything is checked.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ruvllm_kv::{DiskStore, KvOptions, PageKey, PageTable, Quota};
use ruvllm_runner::{AdapterId, Fault, FaultInjector, HeldAdapter};
use tempfile::TempDir;

use super::super::{Core, CoreOptions, Observation, Observed};
use super::setting::{CONTEXT, Setting, VOCABULARY};
use super::told::Told;
use crate::random::Random;
use crate::{
    Event, HiddenStates, PrefixUse, Request, Sampling, SequenceId, Speculation, StepError, Tenant, TextToObserve,
};

/// Requests whose prompts begin alike: with one of three texts, cut anywhere, and then something of their own.
fn request(random: &mut Random, own_tokens: usize) -> Request {
    let below = |random: &mut Random, bound: usize| (random.unit() * bound as f64) as usize;
    let text = below(random, 3);
    let shared = below(random, 120);
    let own = 1 + below(random, own_tokens);
    let mut prompt: Vec<u32> = (0..shared).map(|i| ((i * (text + 3) + i / 7) % VOCABULARY as usize) as u32).collect();
    prompt.extend((0..own).map(|_| below(random, VOCABULARY as usize) as u32));
    let seed = below(random, 1000) as u64;
    let sampling = match below(random, 2) {
        0 => Sampling::greedy(),
        _ => Sampling { temperature: 0.8, seed, ..Sampling::greedy() },
    };
    Request {
        sampling,
        max_tokens: Some(1 + below(random, 60)),
        speculation: [Speculation::Off, Speculation::On][below(random, 2)],
        tenant: Tenant::new(["a/x", "b", "c"][below(random, 3)]),
        adapter: None,
        priority: below(random, 3) as i8 - 1,
        deadline: None,
        prefix_use: PrefixUse { enabled: below(random, 5) > 0, tokens_min: below(random, 3) * 16 },
        ..Request::new(prompt)
    }
}

/// An adapter of a fake runner, which needs none of its weights.
pub fn held(digest: [u8; 32], invocation: Option<Arc<[u32]>>) -> HeldAdapter {
    HeldAdapter::new(AdapterId(digest), true, invocation, Arc::new(()))
}

/// A request in flight and what it has given.
struct InFlight {
    request: Request,
    answer: Answer,
}

/// Tokens, and the hidden states that came with them.
pub type Answer = Vec<(u32, Option<Box<HiddenStates>>)>;

/// Answers of requests that run alone, with nothing cached, prompts in one batch and all the memory they like.
pub struct Alone {
    core: Core,
    steps: usize,
}

impl Alone {
    pub fn new(setting: Setting) -> Self {
        let kv = KvOptions { budget_bytes: 64 << 20, ..KvOptions::new(setting.tiers()) };
        let setting = Setting { batch_rows: CONTEXT, ..setting };
        Self { core: setting.core(CoreOptions { kv, ..CoreOptions::new(0) }), steps: 0 }
    }

    pub fn answer(&mut self, request: &Request) -> Answer {
        let request =
            Request { prefix_use: PrefixUse::OFF, speculation: Speculation::Off, deadline: None, ..request.clone() };
        self.core.submit(request).expect("a sound request");
        let mut answer = Vec::new();
        while !self.core.is_idle() {
            self.steps += 1;
            let events = self.core.step().into_iter().map(|event| event.expect("sound logits"));
            answer.extend(events.map(|event| (event.sampled.token, event.states)));
        }
        answer
    }
}

/// Deletes, cuts or changes a file of the disk tier.
fn damage_a_file(folder: &Path, random: &mut Random) {
    let shelves = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<_> = shelves
        .flat_map(|shelf| std::fs::read_dir(shelf.path()).into_iter().flatten().flatten().map(|file| file.path()))
        .collect();
    files.sort();
    if files.is_empty() {
        return;
    }
    let file = &files[(random.unit() * files.len() as f64) as usize];
    let mut bytes = std::fs::read(file).expect("it is there");
    match (random.unit() * 3.0) as usize {
        0 => std::fs::remove_file(file).expect("it is there"),
        1 => std::fs::write(file, &bytes[..bytes.len() / 2]).expect("it can be written"),
        _ => {
            let at = (random.unit() * bytes.len() as f64) as usize;
            bytes[at] ^= 0x10;
            std::fs::write(file, &bytes).expect("it can be written");
        }
    }
}

/// What a run has been through, to be sure that it went through everything.
#[derive(Debug, Default)]
pub struct Seen {
    pub answers: usize,
    /// Steps of the engine that answers each request again, alone.
    pub steps_alone: usize,
    pub cancelled: usize,
    pub overdue: usize,
    pub cached_tokens: usize,
    pub loaded_tokens: usize,
    pub preemptions: u64,
    pub evicted: u64,
    pub cooled: u64,
    pub trimmed: u64,
    pub refused: usize,
    /// Sequences whose step failed, or gave NaN.
    pub failed: usize,
    pub drafts_accepted: usize,
    /// Texts that were observed beside the requests, and how often one had to begin again.
    pub observed: usize,
    pub interrupted: usize,
    pub drafted_by_model: usize,
    pub accepted_by_model: usize,
    /// Pages whose storing was told.
    pub told: usize,
}

/// Runs all steps of a setting.
pub fn simulate(setting: Setting) -> Seen {
    let mut run = Run::new(setting);
    for step in 0..setting.steps {
        run.step(step);
    }
    run.end()
}

struct Run {
    setting: Setting,
    core: Core,
    faults: FaultInjector,
    draft_faults: Option<FaultInjector>,
    alone: Alone,
    random: Random,
    flights: HashMap<SequenceId, InFlight>,
    seen: Seen,
    first_observed: Option<Observed>,
    observed_rows: usize,
    told: Told,
    /// Of the disk tier.
    folder: TempDir,
}

impl Run {
    fn new(setting: Setting) -> Self {
        let budget_bytes = setting.budget_bytes;
        let folder = tempfile::tempdir().expect("a folder");
        let open = || DiskStore::open(folder.path(), budget_bytes as u64 * 6, PageKey::new(&[1; 32]));
        let disk = setting.with_disk.then(|| open().expect("the folder can be used"));
        let options = CoreOptions {
            sequences_max: 5,
            queue_max: 6,
            kv: KvOptions { budget_bytes, disk, ..KvOptions::new(setting.tiers()) },
            quotas: vec![
                (Tenant::new("a"), Quota { guaranteed_bytes: budget_bytes / 8, limit_bytes: None }),
                (Tenant::new("b"), Quota { guaranteed_bytes: 0, limit_bytes: Some(budget_bytes / 3) }),
            ],
            ..CoreOptions::new(0)
        };
        let (mut core, faults) = setting.core_with_faults(options);
        core.record_prefix_events();
        let draft_faults = setting.has_draft.then(|| setting.add_draft(&mut core));
        Self {
            core,
            faults,
            draft_faults,
            alone: Alone::new(setting),
            random: Random::new(setting.seed),
            flights: HashMap::new(),
            seen: Seen::default(),
            first_observed: None,
            observed_rows: 0,
            told: Told::default(),
            folder,
            setting,
        }
    }

    fn step(&mut self, step: usize) {
        self.core.set_time(Duration::from_millis(step as u64));
        if self.random.unit() < 0.25 {
            self.submit(step);
        }
        if self.random.unit() < 0.02
            && let Some(id) = self.flights.keys().min().copied()
        {
            self.core.cancel(id);
            self.check_unfinished(id, step);
            self.seen.cancelled += 1;
        }
        self.break_something(step);
        for result in self.core.step() {
            match result {
                Ok(event) => self.take(event, step),
                Err(error) => self.failed(&error, step),
            }
        }
        if self.setting.has_draft {
            // Rows are cheap: a fake draft model is never sure of anything.
            self.core.step_took(Duration::from_micros(1000 + 10 * self.core.step_rows() as u64));
        }
        if self.setting.observes {
            self.observe(step);
        }
        self.told.listen(&mut self.core);
        self.core.audit().unwrap_or_else(|fault| panic!("{}: {fault}", self.place(step)));
    }

    /// Observes always the same text, so that what is seen of it must always be the same.
    fn observe(&mut self, step: usize) {
        let rows = self.core.observed_rows();
        self.seen.interrupted += usize::from(rows < self.observed_rows);
        if !self.core.has_observation() {
            let tokens = (0..40).map(|i| i * i % VOCABULARY).collect();
            let text = TextToObserve { tokens, first_target: 8, space: None, adapter: None };
            self.core.begin_observation(text).expect("room for it");
        }
        match self.core.observe(1 + step % 9) {
            Ok(Some(observed)) => {
                let first = self.first_observed.get_or_insert_with(|| observed.clone());
                assert!(!self.setting.is_exact() || *first == observed, "{}", self.place(step));
                self.seen.observed += 1;
            }
            Ok(None) => {}
            Err(error) => assert!(self.setting.is_fake(), "{}: {error}", self.place(step)),
        }
        self.observed_rows = self.core.observed_rows();
    }

    fn submit(&mut self, step: usize) {
        let mut request = request(&mut self.random, self.setting.own_tokens);
        if self.setting.is_fake() && self.random.unit() < 0.3 {
            // One that applies to all tokens, or one that begins where a token occurs last.
            let is_activated = self.random.unit() < 0.5;
            let invocation = is_activated.then(|| [request.prompt[request.prompt.len() / 2]][..].into());
            request.adapter = Some(held([7 + u8::from(is_activated); 32], invocation));
        }
        if self.random.unit() < 0.05 {
            request.deadline = Some(Duration::from_millis(step as u64 + 10));
        }
        // Of something in the middle, with pages that it begins and ends in.
        let len = request.prompt.len();
        request.states_of = self.setting.keeps_states.then_some(len / 3..len - len / 4);
        match self.core.submit(request.clone()) {
            Ok(id) => drop(self.flights.insert(id, InFlight { request, answer: Vec::new() })),
            Err(_) => self.seen.refused += 1,
        }
    }

    /// Damages a file, or lets the next step of a fake fail.
    fn break_something(&mut self, step: usize) {
        if self.setting.with_disk && self.random.unit() < 0.05 {
            // All files are there, so that the same seed damages the same ones.
            self.core.save(0);
            damage_a_file(self.folder.path(), &mut self.random);
        }
        if self.setting.is_fake() && self.random.unit() < 0.01 {
            self.faults.inject([Fault::StepFails, Fault::NanLogits][usize::from(self.random.unit() < 0.5)]);
        }
        if let Some(faults) = self.draft_faults.as_ref().filter(|_| step == self.setting.steps / 10 * 9) {
            faults.inject(Fault::StepFails);
        }
    }

    fn take(&mut self, event: Event, step: usize) {
        if let Some(prefix) = event.prefix {
            self.seen.cached_tokens += prefix.cached_tokens;
            self.seen.loaded_tokens += prefix.loaded_tokens;
        }
        let flight = self.flights.get_mut(&event.sequence).expect("it is in flight");
        flight.answer.push((event.sampled.token, event.states));
        if event.finish.is_some() {
            self.seen.drafts_accepted += event.counts.accepted;
            self.seen.drafted_by_model += event.counts.drafted_by_model;
            self.seen.accepted_by_model += event.counts.accepted_by_model;
            let flight = self.flights.remove(&event.sequence).expect("it is in flight");
            let is_right = !self.setting.is_exact() || flight.answer == self.alone.answer(&flight.request);
            assert!(is_right, "{}", self.place(step));
            self.seen.answers += 1;
        }
    }

    fn failed(&mut self, error: &StepError, step: usize) {
        let request = self.check_unfinished(error.sequence(), step);
        match error {
            StepError::DeadlinePassed { .. } => {
                assert!(request.deadline.is_some(), "{}", self.place(step));
                self.seen.overdue += 1;
            }
            StepError::Runner { .. } | StepError::NotANumber { .. } => self.seen.failed += 1,
            other => panic!("{}: {other}", self.place(step)),
        }
    }

    /// Takes a request that was cut short out of flight: what it gave must be the beginning of its answer.
    fn check_unfinished(&mut self, id: SequenceId, step: usize) -> Request {
        let flight = self.flights.remove(&id).expect("it is in flight");
        let is_right = !self.setting.is_exact() || self.alone.answer(&flight.request).starts_with(&flight.answer);
        assert!(is_right, "{}", self.place(step));
        flight.request
    }

    fn end(mut self) -> Seen {
        let draft_is_gone = self.core.draft_model.is_none();
        assert!(self.draft_faults.is_none() || draft_is_gone && self.core.take_draft_failure().is_some());
        (self.seen.steps_alone, self.seen.told) = (self.alone.steps, self.told.stored);
        self.seen.preemptions = self.core.preemptions();
        let stats = self.core.cache_stats();
        (self.seen.evicted, self.seen.cooled, self.seen.trimmed) =
            (stats.evicted_pages, stats.cooled_pages, stats.trimmed_pages);
        self.seen
    }

    /// Says where it happened, for messages.
    fn place(&self, step: usize) -> String {
        format!("seed {}, step {step}", self.setting.seed)
    }
}

impl Core {
    /// Checks that all accounts agree, and that no page that is still to be written has two users.
    pub fn audit(&self) -> Result<(), String> {
        let running = self.schedule.running();
        let observed = self.observation.iter().map(Observation::table);
        self.cache.audit(running.iter().map(|sequence| &sequence.table).chain(observed))?;
        if let Some(model) = &self.draft_model {
            model.audit()?;
            if let Some(id) = model.knows().find(|id| running.iter().all(|sequence| sequence.id != *id)) {
                return Err(format!("the draft model keeps pages of {id:?}, which does not run"));
            }
        }
        if let Some(waiting) = self.schedule.waiting().iter().find(|waiting| waiting.table.capacity_tokens() > 0) {
            return Err(format!("{:?} waits and has pages", waiting.id));
        }
        let written = |table: &PageTable, from: usize| table.pages()[from..].to_vec();
        for sequence in running {
            for page in written(&sequence.table, (sequence.computed / 16).min(sequence.table.pages().len())) {
                if self.cache.users(page) != 1 {
                    return Err(format!("{page:?} of {:?} is to be written and shared", sequence.id));
                }
            }
        }
        Ok(())
    }
}
