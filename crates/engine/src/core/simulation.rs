//! Random requests, cancellations, deadlines, memory pressure and damaged files, from a seed. After every step the accounts
//! must balance, and every answer must be the one that the request gets alone, with nothing cached.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, available_parallelism};
use std::time::{Duration, Instant};

use ruvllm_kernels::{KernelSet, Pool, WeightType};
use ruvllm_kv::{DiskStore, KvOptions, PageKey, PageTable, Quota, Tiers};
use ruvllm_model::formats::gguf::write::{Header, Writer};
use ruvllm_model::formats::gguf::{Gguf, Value};
use ruvllm_model::{CpuRunner, Model};
use ruvllm_runner::{AdapterId, FakeRunner, Fault, FaultInjector, HeldAdapter, KvShape, PageFormat, Runner};

use super::{Core, CoreOptions};
use crate::random::Random;
use crate::{
    DraftOptions, HiddenStates, PrefixUse, Request, Sampling, SequenceId, Speculation, StepError, SubmitError, Tenant,
};

const VOCABULARY: u32 = 48;
const CONTEXT: usize = 320;

/// What runs the batches.
#[derive(Clone, Copy, PartialEq)]
enum Device {
    /// A tiny model with random weights.
    Cpu,
    /// One with recurrent layers, of those that architectures are tested with.
    Recurrent(&'static str),
    /// No model at all, which loses nothing when pages are converted.
    Fake,
    /// The same with recurrent states.
    FakeRecurrent,
    /// The same with all of a sequence in its slot, of which nothing can be shared, copied or read.
    FakeSlots,
    /// And with a window of 20 tokens in one of two layers.
    FakeWindowed,
}

/// What is simulated.
#[derive(Clone, Copy)]
struct Setting {
    device: Device,
    steps: usize,
    seed: u64,
    batch_rows: usize,
    tiers: &'static str,
    /// Heads of the model, as many for keys and values, and their dimension.
    heads: usize,
    head_dim: usize,
    /// Of pages. Hidden states come on top.
    budget_bytes: usize,
    with_disk: bool,
    /// Whether hidden states are kept, and wanted.
    keeps_states: bool,
    /// Tokens of prompts that are their own, at most.
    own_tokens: usize,
    /// Whether there is a draft model.
    has_draft: bool,
}

impl Setting {
    fn tiers(&self) -> Tiers {
        self.tiers.parse().expect("sound tiers")
    }

    fn core(&self, options: CoreOptions) -> Core {
        self.core_with_faults(options).0
    }

    fn core_with_faults(&self, mut options: CoreOptions) -> (Core, FaultInjector) {
        let mut faults = FaultInjector::default();
        let runner: Box<dyn Runner> = match self.device {
            Device::Cpu => {
                let pool = Pool::new(2, KernelSet::best());
                Box::new(CpuRunner::new(model(self.heads, self.head_dim).into(), pool, self.batch_rows))
            }
            Device::Recurrent(architecture) => {
                let pool = Pool::new(2, KernelSet::best());
                Box::new(CpuRunner::new(recurrent_model(architecture).into(), pool, self.batch_rows))
            }
            Device::Fake | Device::FakeRecurrent | Device::FakeSlots | Device::FakeWindowed => {
                let mut shape = KvShape::new(2, self.heads, self.head_dim);
                if self.device == Device::FakeWindowed {
                    shape = shape.with_windows(1, 20);
                }
                let mut runner = FakeRunner::new(shape, VOCABULARY as usize, CONTEXT, self.batch_rows);
                if self.device == Device::FakeRecurrent {
                    runner = runner.with_states(8);
                }
                if self.device == Device::FakeSlots {
                    runner = runner.without_prefixes();
                }
                faults = runner.faults();
                Box::new(runner)
            }
        };
        options.keeps_states = self.keeps_states;
        if self.keeps_states {
            // Those of a page of 2 KiB.
            options.kv.budget_bytes += options.kv.budget_bytes / 2048 * 16 * Core::state_bytes(runner.limits().hidden);
        }
        (Core::new(runner, options), faults)
    }

    /// Adds a draft model: a fake, which expects what a fake says when it is not sampled, with little memory.
    fn add_draft(&self, core: &mut Core) -> FaultInjector {
        let shape = KvShape::new(1, self.heads, self.head_dim);
        let runner = FakeRunner::new(shape, VOCABULARY as usize, CONTEXT - 20, self.batch_rows);
        let kv = KvOptions { budget_bytes: 24 << 10, ..KvOptions::new(Tiers::uniform(PageFormat::F16)) };
        let faults = runner.faults();
        core.set_draft_model(Box::new(runner), &DraftOptions { kv, fingerprint: [1; 32], cost: 0.1 });
        faults
    }

    /// Whether answers are bit for bit the same however they come about.
    fn is_exact(&self) -> bool {
        self.is_fake() || self.tiers().is_uniform()
    }

    fn is_fake(&self) -> bool {
        matches!(self.device, Device::Fake | Device::FakeRecurrent | Device::FakeSlots | Device::FakeWindowed)
    }
}

/// Pages of 2 KiB in half floats.
const TINY: Setting = Setting {
    device: Device::Cpu,
    steps: 1500,
    seed: 0,
    batch_rows: 24,
    tiers: "f16",
    heads: 1,
    head_dim: 16,
    budget_bytes: 30 << 11,
    with_disk: true,
    keeps_states: false,
    own_tokens: 60,
    has_draft: false,
};

fn recurrent_model(architecture: &str) -> Model {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/architectures");
    let gguf = Gguf::open(root.join(architecture).join("model.gguf")).expect("a sound file");
    Model::load(&gguf, CONTEXT, &mut |_| {}).expect("a sound model")
}

/// Two layers and random weights.
fn model(heads: usize, head_dim: usize) -> Model {
    let hidden = (heads * head_dim).max(32);
    let mut header = Header::new();
    header.set("general.architecture", Value::String("llama"));
    for (key, value) in [
        ("block_count", 2),
        ("embedding_length", hidden),
        ("feed_forward_length", 64),
        ("attention.head_count", hidden / head_dim),
        ("attention.head_count_kv", heads),
        ("context_length", CONTEXT),
    ] {
        header.set(&format!("llama.{key}"), Value::U32(value as u32));
    }
    header.set("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5));
    let mut tensors =
        vec![("token_embd".to_owned(), vec![hidden, VOCABULARY as usize]), ("output_norm".to_owned(), vec![hidden])];
    for layer in 0..2 {
        for (name, dims) in [
            ("attn_norm", vec![hidden]),
            ("attn_q", vec![hidden, hidden]),
            ("attn_k", vec![hidden, heads * head_dim]),
            ("attn_v", vec![hidden, heads * head_dim]),
            ("attn_output", vec![hidden, hidden]),
            ("ffn_norm", vec![hidden]),
            ("ffn_gate", vec![hidden, 64]),
            ("ffn_up", vec![hidden, 64]),
            ("ffn_down", vec![64, hidden]),
        ] {
            tensors.push((format!("blk.{layer}.{name}"), dims));
        }
    }
    for (name, dims) in &tensors {
        header.add_tensor(&format!("{name}.weight"), dims, WeightType::F32);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tiny.gguf");
    let mut writer = Writer::create(&path, &header).expect("it can be written");
    let mut random = Random::new(7);
    for (_, dims) in &tensors {
        let value = |random: &mut Random| if dims.len() == 1 { 1.0 } else { random.unit() as f32 - 0.5 };
        let bytes = (0..dims.iter().product()).flat_map(|_: usize| value(&mut random).to_le_bytes());
        writer.write(&bytes.collect::<Vec<u8>>()).expect("it can be written");
    }
    writer.finish().expect("it can be written");
    let gguf = Gguf::open(&path).expect("a sound file");
    Model::load(&gguf, CONTEXT, &mut |_| {}).expect("a sound model")
}

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

/// A request in flight and what it has given.
struct InFlight {
    request: Request,
    answer: Answer,
}

/// Tokens, and the hidden states that came with them.
type Answer = Vec<(u32, Option<Box<HiddenStates>>)>;

/// Answers of requests that run alone, with nothing cached, prompts in one batch and all the memory they like.
struct Alone {
    core: Core,
    steps: usize,
}

impl Alone {
    fn new(setting: Setting) -> Self {
        let kv = KvOptions { budget_bytes: 64 << 20, ..KvOptions::new(setting.tiers()) };
        let setting = Setting { batch_rows: CONTEXT, ..setting };
        Self { core: setting.core(CoreOptions { kv, ..CoreOptions::new(0) }), steps: 0 }
    }

    fn answer(&mut self, request: &Request) -> Answer {
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
struct Seen {
    answers: usize,
    /// Steps of the engine that answers each request again, alone.
    steps_alone: usize,
    cancelled: usize,
    overdue: usize,
    cached_tokens: usize,
    loaded_tokens: usize,
    preemptions: u64,
    evicted: u64,
    cooled: u64,
    trimmed: u64,
    refused: usize,
    /// Sequences whose step failed, or gave NaN.
    failed: usize,
    drafts_accepted: usize,
    drafted_by_model: usize,
    accepted_by_model: usize,
}

fn simulate(setting: Setting) -> Seen {
    let Setting { seed, budget_bytes, with_disk, .. } = setting;
    let is_exact = setting.is_exact();
    let folder = tempfile::tempdir().expect("a folder");
    let open = || DiskStore::open(folder.path(), budget_bytes as u64 * 6, PageKey::new(&[1; 32]));
    let disk = with_disk.then(|| open().expect("the folder can be used"));
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
    let draft_faults = setting.has_draft.then(|| setting.add_draft(&mut core));
    let mut alone = Alone::new(setting);
    let mut random = Random::new(seed);
    let mut flights: HashMap<SequenceId, InFlight> = HashMap::new();
    let mut seen = Seen::default();
    for step in 0..setting.steps {
        core.set_time(Duration::from_millis(step as u64));
        if random.unit() < 0.25 {
            let mut request = request(&mut random, setting.own_tokens);
            if setting.is_fake() && random.unit() < 0.3 {
                // One that applies to all tokens, or one that begins where a token occurs last.
                let invocation = (random.unit() < 0.5).then(|| [request.prompt[request.prompt.len() / 2]][..].into());
                request.adapter = Some(held([7 + u8::from(invocation.is_some()); 32], invocation));
            }
            if random.unit() < 0.05 {
                request.deadline = Some(Duration::from_millis(step as u64 + 10));
            }
            // Of something in the middle, with pages that it begins and ends in.
            let len = request.prompt.len();
            request.states_of = setting.keeps_states.then_some(len / 3..len - len / 4);
            match core.submit(request.clone()) {
                Ok(id) => drop(flights.insert(id, InFlight { request, answer: Vec::new() })),
                Err(_) => seen.refused += 1,
            }
        }
        if random.unit() < 0.02
            && let Some(id) = flights.keys().min().copied()
        {
            core.cancel(id);
            let flight = flights.remove(&id).expect("it is in flight");
            let is_right = !is_exact || alone.answer(&flight.request).starts_with(&flight.answer);
            assert!(is_right, "seed {seed}, step {step}");
            seen.cancelled += 1;
        }
        if with_disk && random.unit() < 0.05 {
            // All files are there, so that the same seed damages the same ones.
            core.save(0);
            damage_a_file(folder.path(), &mut random);
        }
        if setting.is_fake() && random.unit() < 0.01 {
            faults.inject([Fault::StepFails, Fault::NanLogits][usize::from(random.unit() < 0.5)]);
        }
        if let Some(faults) = draft_faults.as_ref().filter(|_| step == setting.steps / 10 * 9) {
            faults.inject(Fault::StepFails);
        }
        for result in core.step() {
            let event = match result {
                Ok(event) => event,
                Err(error) => {
                    let flight = flights.remove(&error.sequence()).expect("it is in flight");
                    match error {
                        StepError::DeadlinePassed { .. } => {
                            assert!(flight.request.deadline.is_some(), "seed {seed}, step {step}");
                            seen.overdue += 1;
                        }
                        StepError::Runner { .. } | StepError::NotANumber { .. } => seen.failed += 1,
                        other => panic!("seed {seed}, step {step}: {other}"),
                    }
                    let is_right = !is_exact || alone.answer(&flight.request).starts_with(&flight.answer);
                    assert!(is_right, "seed {seed}, step {step}");
                    continue;
                }
            };
            if let Some(prefix) = event.prefix {
                seen.cached_tokens += prefix.cached_tokens;
                seen.loaded_tokens += prefix.loaded_tokens;
            }
            let flight = flights.get_mut(&event.sequence).expect("it is in flight");
            flight.answer.push((event.sampled.token, event.states));
            if event.finish.is_some() {
                seen.drafts_accepted += event.counts.accepted;
                seen.drafted_by_model += event.counts.drafted_by_model;
                seen.accepted_by_model += event.counts.accepted_by_model;
                let flight = flights.remove(&event.sequence).expect("it is in flight");
                if is_exact {
                    assert!(flight.answer == alone.answer(&flight.request), "seed {seed}, step {step}");
                }
                seen.answers += 1;
            }
        }
        if setting.has_draft {
            // Rows are cheap: a fake draft model is never sure of anything.
            core.step_took(Duration::from_micros(1000 + 10 * core.step_rows() as u64));
        }
        core.audit().unwrap_or_else(|fault| panic!("seed {seed}, step {step}: {fault}"));
    }
    assert!(draft_faults.is_none() || core.draft_model.is_none() && core.take_draft_failure().is_some());
    seen.steps_alone = alone.steps;
    seen.preemptions = core.preemptions();
    let stats = core.cache_stats();
    (seen.evicted, seen.cooled, seen.trimmed) = (stats.evicted_pages, stats.cooled_pages, stats.trimmed_pages);
    seen
}

impl Core {
    /// Checks that all accounts agree, and that no page that is still to be written has two users.
    fn audit(&self) -> Result<(), String> {
        let running = self.schedule.running();
        self.cache.audit(running.iter().map(|sequence| &sequence.table))?;
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

/// Without a model, over far more steps: any break of the page accounting, and any wrong page, in any mix of formats.
const FAKE: Setting = Setting { device: Device::Fake, steps: 20_000, ..TINY };

#[test]
fn on_a_fake_runner_too_and_for_longer() {
    for (seed, tiers, pages) in [(11, "f16", 30), (12, "f16:32,q8:96,q4", 30), (13, "q8", 20)] {
        let seen = simulate(Setting { seed, tiers, budget_bytes: pages << 11, with_disk: false, ..FAKE });
        assert!(seen.answers > 1000 && seen.cancelled > 50 && seen.overdue > 0 && seen.refused > 0, "{seen:?}");
        assert!(seen.cached_tokens > 10_000 && seen.preemptions > 0 && seen.evicted > 1000, "{seen:?}");
        assert!(seen.failed > 50 && seen.drafts_accepted > 100, "{seen:?}");
    }
}

/// Answers are those without a draft model, whatever it drafts, and its pages are always those of the sequence.
#[test]
fn a_draft_model_changes_no_answer() {
    for (seed, tiers, device) in
        [(51, "f16", Device::Fake), (52, "f16:32,q8:96,q4", Device::Fake), (53, "q8", Device::FakeRecurrent)]
    {
        let seen = simulate(Setting { seed, tiers, device, with_disk: false, has_draft: true, ..FAKE });
        println!("seed {seed}: {seen:?}");
        assert!(seen.answers > 1000 && seen.cancelled > 50 && seen.failed > 50, "{seen:?}");
        assert!(seen.drafted_by_model > 50 && seen.accepted_by_model > 20, "{seen:?}");
        assert!(seen.accepted_by_model < seen.drafted_by_model, "{seen:?}");
    }
}

/// What layers with a window read is always there, though pages behind it lose their part of them.
#[test]
fn what_is_in_a_window_is_never_given_back() {
    // Pages of 64 KiB: formats do not share a slab.
    let large = Setting { device: Device::FakeWindowed, heads: 8, head_dim: 64, budget_bytes: 12 << 20, ..FAKE };
    let large = Setting { own_tokens: 140, ..large };
    for (seed, tiers, with_disk) in
        [(41, "f16", false), (42, "f16:32,q8:96,q4", false), (43, "q8", false), (44, "f16", true)]
    {
        let steps = if with_disk { 1500 } else { 10_000 };
        let seen = simulate(Setting { seed, tiers, steps, with_disk, ..large });
        println!("seed {seed}: {seen:?}");
        assert!(seen.answers > 100 && seen.cancelled > 10 && seen.evicted > 100 && seen.trimmed > 10, "{seen:?}");
        assert!(seen.cached_tokens > 1000 && seen.failed > 5 && seen.drafts_accepted > 10, "{seen:?}");
    }
}

/// Every sequence goes on from a state of its very tokens, wherever that comes from: a snapshot in memory or on disk, behind
/// draft tokens that were right or wrong, after a pause or a failure.
#[test]
fn recurrent_states_are_always_those_of_the_tokens_before() {
    for (seed, tiers, pages, with_disk) in
        [(21, "f16", 30, false), (22, "f16:32,q8:96,q4", 30, false), (23, "q8", 20, false), (24, "f16", 30, true)]
    {
        let steps = if with_disk { 3000 } else { 20_000 };
        let device = Device::FakeRecurrent;
        let seen = simulate(Setting { device, seed, tiers, steps, budget_bytes: pages << 11, with_disk, ..FAKE });
        println!("seed {seed}: {seen:?}");
        assert!(seen.answers > 100 && seen.cancelled > 10 && seen.preemptions > 0 && seen.evicted > 100, "{seen:?}");
        assert!(seen.cached_tokens > 1000 && seen.failed > 5 && seen.drafts_accepted > 10, "{seen:?}");
        assert!(!with_disk || seen.loaded_tokens > 100, "{seen:?}");
    }
}

/// A runner that keeps everything of a sequence in its slot is never asked for any of it.
#[test]
fn a_runner_that_caches_no_prefixes_computes_every_prompt() {
    let seen =
        simulate(Setting { device: Device::FakeSlots, seed: 61, budget_bytes: 30 << 11, with_disk: false, ..FAKE });
    println!("{seen:?}");
    assert!(seen.answers > 1000 && seen.cancelled > 50 && seen.preemptions > 0 && seen.failed > 50, "{seen:?}");
    assert_eq!((seen.cached_tokens, seen.evicted, seen.drafts_accepted), (0, 0, 0), "{seen:?}");
}

#[test]
fn a_recurrent_model_answers_as_if_alone() {
    for (seed, architecture) in [(31, "lfm2"), (32, "qwen35")] {
        let device = Device::Recurrent(architecture);
        let seen = simulate(Setting { device, seed, steps: 1000, budget_bytes: 1 << 20, ..TINY });
        println!("{architecture}: {seen:?}");
        assert!(seen.answers > 50 && seen.cached_tokens > 500, "{seen:?}");
    }
}

/// Runs one request and returns its tokens, and how many of the prompt's were cached.
fn turn(core: &mut Core, prompt: &[u32], max_tokens: usize) -> (Vec<u32>, usize) {
    core.submit(Request { max_tokens: Some(max_tokens), ..Request::new(prompt.to_vec()) }).expect("it fits");
    let (mut tokens, mut cached) = (Vec::new(), 0);
    while !core.is_idle() {
        for event in core.step() {
            let event = event.expect("no fault");
            cached += event.prefix.map_or(0, |prefix| prefix.cached_tokens);
            tokens.push(event.sampled.token);
        }
    }
    (tokens, cached)
}

#[test]
fn the_next_turn_of_a_chat_goes_on_where_the_last_one_ended() {
    for device in [Device::FakeRecurrent, Device::Recurrent("lfm2"), Device::Recurrent("qwen35")] {
        let folder = tempfile::tempdir().expect("a folder");
        let core = || {
            let disk = Some(DiskStore::open(folder.path(), 64 << 20, PageKey::new(&[1; 32])).expect("a sound folder"));
            let kv = KvOptions { budget_bytes: 8 << 20, disk, ..KvOptions::new(TINY.tiers()) };
            Setting { device, ..TINY }.core(CoreOptions { kv, ..CoreOptions::new(0) })
        };
        let mut first = core();
        let prompt: Vec<u32> = (0..150).map(|i| (i * i + 3 * i) % VOCABULARY).collect();
        let (answer, cached) = turn(&mut first, &prompt, 40);
        assert_eq!((answer.len(), cached), (40, 0));
        // All of it but the last token has been computed; the page that it ended in has no state at its end.
        let whole = [&prompt[..], &answer, &[1, 2, 3, 4, 5]].concat();
        let (_, cached) = turn(&mut first, &whole, 1);
        assert_eq!(cached, 189 / 16 * 16, "what was generated is found");
        // The next prompt leaves out the answer's reasoning, and what began it.
        let without = [&prompt[..prompt.len() - 10], &[9; 30]].concat();
        let (_, cached) = turn(&mut first, &without, 1);
        assert_eq!(cached, 128, "the prompt is found");
        // Others that begin with the same instructions: the second computes them, and leaves a snapshot for the third.
        let other = |own: u32| [&prompt[..90], &[own; 30]].concat();
        assert_eq!(turn(&mut first, &other(20), 1).1, 0);
        assert_eq!(turn(&mut first, &other(21), 1).1, 80);
        drop(first);
        let mut second = core();
        assert_eq!(turn(&mut second, &whole, 1).1, 189 / 16 * 16, "it is found after a restart");
        assert_eq!(turn(&mut second, &other(22), 1).1, 80);
        second.audit().expect("all accounts balance");
    }
}

#[test]
fn a_budget_below_one_recurrent_state_refuses_requests() {
    let mut core = Setting { device: Device::Recurrent("qwen35"), ..TINY }.core(CoreOptions::new(1024));
    let refused = core.submit(Request::new(vec![1, 2, 3]));
    assert!(matches!(refused, Err(SubmitError::TooLargeForCache { pages: 0, .. })), "{refused:?}");
}

/// `just simulate` runs it, on all cores.
#[test]
#[ignore = "takes minutes"]
fn ten_million_steps_break_nothing() {
    const STEPS: usize = 100_000;
    let run = |seed: u64| {
        let (tiers, pages) =
            [("f16", 30), ("f16:32,q8:96,q4", 30), ("q8", 20), ("f16:16,q8/q4", 60)][seed as usize % 4];
        let device = [Device::Fake, Device::Fake, Device::FakeRecurrent, Device::FakeWindowed][seed as usize / 4 % 4];
        simulate(Setting { device, seed, tiers, budget_bytes: pages << 11, steps: STEPS, with_disk: false, ..FAKE })
    };
    let threads = available_parallelism().map_or(1, usize::from) as u64;
    let started = Instant::now();
    let seen: Vec<Seen> = thread::scope(|scope| {
        let share =
            |first: u64| scope.spawn(move || (first..100).step_by(threads as usize).map(run).collect::<Vec<_>>());
        let shares: Vec<_> = (0..threads).map(share).collect();
        shares.into_iter().flat_map(|share| share.join().expect("nothing breaks")).collect()
    });
    let (steps, seconds) = (seen.len() * STEPS, started.elapsed().as_secs_f64());
    let alone: usize = seen.iter().map(|seen| seen.steps_alone).sum();
    println!(
        "{steps} steps and {alone} of the requests alone in {seconds:.0} s on {threads} threads: {:.0} a second, {:.0} \
         with those",
        steps as f64 / seconds,
        (steps + alone) as f64 / seconds
    );
    assert!(seen.iter().map(|seen| seen.answers).sum::<usize>() > 100_000);
}

#[test]
fn every_answer_is_the_one_that_the_request_gets_alone() {
    for (seed, tiers, pages) in [(1, "f16", 30), (2, "f16", 30), (3, "q8", 20)] {
        let seen = simulate(Setting { seed, tiers, budget_bytes: pages << 11, ..TINY });
        println!("seed {seed}: {seen:?}");
        assert!(seen.answers > 100 && seen.cancelled > 5 && seen.overdue > 0 && seen.refused > 0, "{seen:?}");
        assert!(seen.cached_tokens > 1000 && seen.loaded_tokens > 100, "{seen:?}");
        assert!(seen.preemptions > 0 && seen.evicted > 100, "{seen:?}");
    }
}

/// Wherever they come from: computed, in memory, from disk, before or after a pause, behind draft tokens.
#[test]
fn hidden_states_are_those_that_the_request_gets_alone() {
    let seen = simulate(Setting { seed: 1, keeps_states: true, ..TINY });
    assert!(seen.answers > 100 && seen.cached_tokens > 1000 && seen.loaded_tokens > 100, "{seen:?}");
    assert!(seen.preemptions > 0 && seen.evicted > 100, "{seen:?}");
}

/// Without a disk, where pages with their states take more of the budget.
#[test]
fn keeping_hidden_states_makes_no_difference_to_anything_else() {
    let plain = Setting { seed: 4, with_disk: false, ..TINY };
    let (with, without) = (simulate(Setting { keeps_states: true, ..plain }), simulate(plain));
    assert_eq!(format!("{with:?}"), format!("{without:?}"));
}

#[test]
fn without_a_disk_what_is_evicted_is_computed_again() {
    let seen = simulate(Setting { seed: 4, with_disk: false, ..TINY });
    assert!(seen.answers > 80 && seen.preemptions > 0 && seen.evicted > 100 && seen.loaded_tokens == 0, "{seen:?}");
}

/// Pages of 64 KiB, three slabs: the accounts must balance while pages change their format and place.
#[test]
fn tiers_keep_their_accounts() {
    let large = Setting { heads: 8, head_dim: 64, budget_bytes: 6 << 20, ..TINY };
    for (seed, tiers) in [(5, "f16:32,q8:96,q4"), (6, "f16:48,q8/q4")] {
        let seen = simulate(Setting { seed, tiers, ..large });
        println!("seed {seed}: {seen:?}");
        assert!(seen.answers > 100 && seen.evicted > 20 && seen.cooled > 100, "{seen:?}");
        assert!(seen.cached_tokens > 1000 && seen.loaded_tokens > 100, "{seen:?}");
    }
}

#[test]
fn one_tenant_cannot_fill_the_queue_for_others() {
    let options = CoreOptions { queue_max: 64, sequences_max: 1, ..CoreOptions::new(TINY.budget_bytes) };
    let mut core = Setting { with_disk: false, ..TINY }.core(options);
    let request = |tenant: &str| Request { tenant: Tenant::new(tenant), ..Request::new(vec![1, 2, 3]) };
    let accepted =
        |core: &mut Core, tenant: &str| (0..100).take_while(|_| core.submit(request(tenant)).is_ok()).count();
    assert_eq!(accepted(&mut core, "greedy"), 32);
    assert_eq!(accepted(&mut core, "as greedy"), 16);
    assert_eq!(accepted(&mut core, "modest"), 8);
    assert!(core.submit(request("late")).is_ok());
    assert!(matches!(core.submit(request("greedy")), Err(SubmitError::TenantQueueFull { waiting: 32 })));
}

#[test]
fn prompts_that_wait_are_bounded_by_their_tokens_too() {
    let options = CoreOptions { queue_tokens_max: 1000, ..CoreOptions::new(TINY.budget_bytes) };
    let mut core = Setting { with_disk: false, ..TINY }.core(options);
    let request = |tenant: &str| Request { tenant: Tenant::new(tenant), ..Request::new(vec![1; 100]) };
    assert_eq!((0..100).take_while(|_| core.submit(request("greedy")).is_ok()).count(), 5);
    assert!(core.submit(request("modest")).is_ok());
}

fn held(digest: [u8; 32], invocation: Option<Arc<[u32]>>) -> HeldAdapter {
    HeldAdapter::new(AdapterId(digest), true, invocation, Arc::new(()))
}

#[test]
fn the_quota_of_a_tenant_holds_for_all_of_its_adapters_together() {
    let page = KvShape::new(2, 1, 16).page_bytes("f16".parse::<Tiers>().unwrap().hot);
    let quota = Quota { guaranteed_bytes: 0, limit_bytes: Some(4 * page) };
    let options = CoreOptions { quotas: vec![(Tenant::new("a"), quota)], ..CoreOptions::new(40 * page) };
    let mut core = FAKE.core(options);
    for digest in 0..4 {
        let adapter = (digest > 0).then(|| held([digest; 32], None));
        let prompt = (0..60).collect::<Vec<u32>>().iter().map(|token| token % VOCABULARY).collect();
        let request = Request { tenant: Tenant::new("a"), adapter, max_tokens: Some(1), ..Request::new(prompt) };
        core.submit(request).expect("it fits");
        while !core.is_idle() {
            core.step().into_iter().for_each(|result| drop(result.expect("no fault")));
        }
        assert!(core.cache_stats().used_bytes <= 4 * page, "{} adapters", digest);
    }
    let lookups: Vec<_> = core.tenants().collect();
    assert_eq!((lookups.len(), lookups[0].1.lookups), (1, 4), "all of them are one tenant's");
}

#[test]
fn a_lost_device_ends_all_sequences_and_refuses_new_ones() {
    let (mut core, faults) =
        FAKE.core_with_faults(CoreOptions { sequences_max: 2, ..CoreOptions::new(FAKE.budget_bytes) });
    let submit = |core: &mut Core| core.submit(Request::new(vec![1, 2, 3]));
    assert!((0..3).all(|_| submit(&mut core).is_ok()));
    assert_eq!(core.step().len(), 2, "the third waits");
    faults.inject(Fault::DeviceLost);
    let results = core.step();
    assert!(results.iter().all(|result| matches!(result, Err(StepError::Runner { .. }))) && results.len() == 3);
    assert!(core.is_idle() && matches!(submit(&mut core), Err(SubmitError::DeviceLost(_))));
    core.audit().expect("nothing is left behind");
}

#[test]
fn nothing_of_a_lost_device_is_saved() {
    let folder = tempfile::tempdir().expect("a folder");
    let core = || {
        let disk = Some(DiskStore::open(folder.path(), 1 << 20, PageKey::new(&[1; 32])).expect("a sound folder"));
        let kv = KvOptions { budget_bytes: FAKE.budget_bytes, disk, ..KvOptions::new(FAKE.tiers()) };
        // One step computes more pages than are queued for the disk after it.
        let shape = KvShape::new(2, 1, 16);
        let runner = FakeRunner::new(shape, VOCABULARY as usize, CONTEXT, CONTEXT);
        let faults = runner.faults();
        (Core::new(Box::new(runner), CoreOptions { kv, ..CoreOptions::new(0) }), faults)
    };
    let prompt: Vec<u32> = (0..300).map(|i| i * i % VOCABULARY).collect();
    let request = Request { max_tokens: Some(10), ..Request::new(prompt) };
    let (mut lost, faults) = core();
    lost.submit(request.clone()).expect("it fits");
    assert!(lost.step().iter().all(Result::is_ok));
    faults.inject(Fault::DeviceLost);
    assert!(lost.step().iter().all(Result::is_err));
    drop(lost);
    let (mut again, _) = core();
    again.submit(request.clone()).expect("it fits");
    let mut answer = Vec::new();
    while !again.is_idle() {
        let events = again.step().into_iter().map(|event| event.expect("no fault"));
        answer.extend(events.map(|event| (event.sampled.token, event.states)));
    }
    assert!(answer == Alone::new(FAKE).answer(&request));
}

/// Pages of 256 KiB in three slabs: as many as the context has, if none is in a colder format.
const TIGHT: Setting =
    Setting { heads: 32, head_dim: 64, tiers: "f16:32,q8/q4", budget_bytes: 5 << 20, with_disk: false, ..TINY };

/// The tokens of an answer, if it comes to an end.
fn answer(core: &mut Core, prompt: Vec<u32>, max_tokens: usize) -> Option<usize> {
    core.submit(Request { max_tokens: Some(max_tokens), ..Request::new(prompt) }).expect("it fits");
    let mut tokens = 0;
    for _ in 0..1000 {
        let results: Vec<_> = core.step().into_iter().collect::<Result<_, _>>().expect("it does not fail");
        tokens += results.len();
        if core.is_idle() {
            return Some(tokens);
        }
    }
    None
}

/// What is cached of it in a colder format takes a slab of its own, and with that more room than it saves.
#[test]
fn what_fits_alone_is_not_kept_from_starting_by_its_own_cached_prefix() {
    let kv = KvOptions { budget_bytes: TIGHT.budget_bytes, ..KvOptions::new(TIGHT.tiers()) };
    let mut core = TIGHT.core(CoreOptions { kv, ..CoreOptions::new(0) });
    let prompt: Vec<u32> = (0..300).map(|i| i * i % VOCABULARY).collect();
    assert_eq!(answer(&mut core, prompt[..120].to_vec(), 4), Some(4));
    assert!(core.cache_stats().cooled_pages > 0);
    assert_eq!(answer(&mut core, prompt, 10), Some(10));
}

#[test]
fn a_prompt_that_takes_the_last_page_is_answered() {
    let mut core = TIGHT.core(CoreOptions::new(TIGHT.budget_bytes));
    assert_eq!(answer(&mut core, vec![1; CONTEXT - 1], 1), Some(1));
}
