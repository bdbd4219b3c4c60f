//! Adapters in the engine, on a tiny model: who shares whose pages, and that nothing else changes an answer.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::support::{disk, engine as smollm2_engine, run_together, safetensors_folder, smollm2};
use ruvllm_engine::{DraftOptions, HeldAdapter, KvOptions, PrefixUse, Request, Speculation, Tiers};
use ruvllm_kernels::{KernelSet, Pool};
use ruvllm_model::formats::gguf::Gguf;
use ruvllm_model::{CpuRunner, Model};
use ruvllm_runner::PageFormat;
use ruvllm_runtime::{DiskStore, Engine, OutputFormat, Prompt};
use serde_json::json;
use tempfile::TempDir;

/// Tokens that switch on `llama3-activated`.
const INVOCATION: [u32; 3] = [7, 11, 13];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/adapters").join(name)
}

fn engine(sequences: usize) -> (TempDir, Engine) {
    let folder = safetensors_folder(&json!({}));
    let engine = build(folder.path(), sequences, None);
    (folder, engine)
}

fn build(folder: &Path, sequences: usize, disk: Option<DiskStore>) -> Engine {
    let builder = Engine::builder(folder).context(Some(512)).sequences(sequences).disk(disk);
    builder.build().expect("a sound model")
}

fn hold(engine: &Engine, name: &str) -> HeldAdapter {
    let adapter = engine.adapters().register(golden(name)).expect("it is the model's");
    engine.adapters().hold(&[(adapter.id, 1.0)]).expect("there is room")
}

fn prompt(seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| 20 + (i * 37 + i * i * seed + seed) % 200).collect()
}

fn request(prompt: &[u32], adapter: Option<&HeldAdapter>) -> Request {
    let speculation = Speculation::Off;
    Request { max_tokens: Some(24), adapter: adapter.cloned(), speculation, ..Request::new(prompt.to_vec()) }
}

fn alone(request: &Request) -> Request {
    Request { prefix_use: PrefixUse::OFF, ..request.clone() }
}

/// The tokens of each answer, and how many of each prompt were cached.
fn answers(engine: &mut Engine, requests: &[Request]) -> Vec<(Vec<u32>, usize)> {
    let of = |events: &Vec<ruvllm_engine::Event>| {
        let cached = events[0].prefix.as_ref().expect("the first event reports").cached_tokens;
        (events.iter().map(|event| event.sampled.token).collect(), cached)
    };
    run_together(engine, requests).iter().map(of).collect()
}

fn answer(engine: &mut Engine, request: &Request) -> (Vec<u32>, usize) {
    answers(engine, std::slice::from_ref(request)).remove(0)
}

#[test]
fn keys_and_values_of_one_adapter_are_never_those_of_another() {
    let (_folder, mut engine) = engine(4);
    let held = ["llama3-qv", "llama3-all", "llama3-patterns"].map(|name| hold(&engine, name));
    let adapters = [None, Some(&held[0]), Some(&held[1]), Some(&held[2])];
    let prompt = prompt(3, 100);
    let requests = adapters.map(|adapter| request(&prompt, adapter));
    let expected: Vec<Vec<u32>> = requests.iter().map(|request| answer(&mut engine, &alone(request)).0).collect();
    assert!((1..4).all(|i| !expected[..i].contains(&expected[i])), "each adapter shows");
    for round in 0..3 {
        for (request, expected) in requests.iter().zip(&expected) {
            let (got, cached) = answer(&mut engine, request);
            assert_eq!((got, cached), (expected.clone(), if round == 0 { 0 } else { 99 }));
        }
    }
    let together: Vec<Vec<u32>> = answers(&mut engine, &requests).into_iter().map(|(tokens, _)| tokens).collect();
    assert_eq!(together, expected);
}

#[test]
fn the_logits_of_a_text_are_those_that_its_continuation_is_chosen_from() {
    let (_folder, mut engine) = engine(1);
    let held = hold(&engine, "llama3-all");
    let prompt = prompt(3, 40);
    let (tokens, _) = answer(&mut engine, &request(&prompt, Some(&held)));
    let (text, first) = ([&prompt[..], &tokens].concat(), prompt.len() - 1);
    let check = |position: usize, logits: &[f32]| {
        let chosen = tokens[position - first] as usize;
        assert!(logits.iter().all(|logit| *logit <= logits[chosen]), "token {position}");
    };
    engine.core().evaluate_with(Some(&held), &text, first..first + tokens.len(), check).expect("it fits");
}

#[test]
fn an_activated_adapter_goes_on_from_the_pages_of_the_model() {
    let (_folder, mut engine) = engine(2);
    let (activated, other) = (hold(&engine, "llama3-activated"), hold(&engine, "llama3-qv"));
    let mut text = prompt(5, 90);
    text[70..73].copy_from_slice(&INVOCATION);
    let adapted = request(&text, Some(&activated));
    let expected = answer(&mut engine, &alone(&adapted)).0;
    let plain = request(&text, None);
    let (base, cached) = answer(&mut engine, &plain);
    assert_eq!(cached, 0);
    assert_ne!(base, expected, "the adapter shows");
    assert_eq!(answer(&mut engine, &adapted), (expected.clone(), 70), "all before token 70 is the model's");
    assert_eq!(answer(&mut engine, &adapted), (expected.clone(), 89), "the others are its own");
    assert_eq!(answer(&mut engine, &plain), (base, 89));
    assert_eq!(answer(&mut engine, &request(&text, Some(&other))).1, 0);
    // Beyond the prompt, in the next turn, it begins where it is called last.
    let mut turn = [&text[..], &expected, &prompt(6, 20)].concat();
    turn.extend(INVOCATION);
    turn.extend(prompt(7, 9));
    let turn = request(&turn, Some(&activated));
    let expected = answer(&mut engine, &alone(&turn)).0;
    let (got, cached) = answer(&mut engine, &turn);
    assert_eq!(got, expected);
    assert!((80..96).contains(&cached), "{cached}: nothing that the adapter has changed is taken");
    // Without the tokens it applies to the answer alone.
    let never_called = prompt(8, 50);
    let (base, _) = answer(&mut engine, &request(&never_called, None));
    let (adapted, cached) = answer(&mut engine, &request(&never_called, Some(&activated)));
    assert_eq!((adapted != base, cached), (true, 49));
}

#[test]
fn an_adapter_that_changes_no_keys_and_values_uses_the_pages_of_the_model() {
    let (_folder, mut engine) = engine(1);
    let held = hold(&engine, "llama3-last-layer");
    assert!(!held.changes_kv);
    let prompt = prompt(9, 60);
    let adapted = request(&prompt, Some(&held));
    let expected = answer(&mut engine, &alone(&adapted)).0;
    let (base, _) = answer(&mut engine, &request(&prompt, None));
    assert_ne!(base, expected);
    assert_eq!(answer(&mut engine, &adapted), (expected, 59));
}

#[test]
fn a_preempted_sequence_goes_on_with_its_adapter() {
    let (_folder, mut engine) = engine(3);
    let held = ["llama3-qv", "llama3-all", "llama3-activated"].map(|name| hold(&engine, name));
    let requests: Vec<Request> =
        held.iter().enumerate().map(|(i, held)| request(&prompt(i as u32, 60), Some(held))).collect();
    let expected: Vec<Vec<u32>> = requests.iter().map(|request| answer(&mut engine, &alone(request)).0).collect();
    let mut core = engine.core();
    let budget = core.cache_stats().budget_bytes;
    let ids: Vec<_> = requests.iter().map(|request| core.submit(request.clone()).unwrap()).collect();
    let mut got = vec![Vec::new(); 3];
    for step in 0.. {
        if core.is_idle() {
            break;
        }
        if step % 8 == 5 {
            // All but one have to go.
            core.set_kv_budget(1);
            core.set_kv_budget(budget);
        }
        for event in core.step().into_iter().map(|event| event.expect("sound logits")) {
            got[ids.iter().position(|id| *id == event.sequence).expect("one of them")].push(event.sampled.token);
        }
    }
    assert!(core.preemptions() > 0);
    assert_eq!(got, expected);
}

#[test]
fn an_adapter_finds_its_pages_on_disk_again_and_no_other_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let prompt = prompt(4, 100);
    let model = safetensors_folder(&json!({}));
    let mut first = build(model.path(), 1, Some(disk(folder.path())));
    let held = hold(&first, "llama3-all");
    let (expected, _) = answer(&mut first, &request(&prompt, Some(&held)));
    while first.core().save(64) > 0 {}
    drop(first);
    let mut engine = build(model.path(), 1, Some(disk(folder.path())));
    let [same, other] = ["llama3-all", "llama3-qv"].map(|name| hold(&engine, name));
    assert_eq!(answer(&mut engine, &request(&prompt, Some(&other))).1, 0);
    assert_eq!(answer(&mut engine, &request(&prompt, None)).1, 0);
    let (got, cached) = answer(&mut engine, &request(&prompt, Some(&same)));
    assert_eq!(got, expected);
    assert!(cached >= 96, "{cached} tokens were loaded");
}

#[test]
fn draft_tokens_change_nothing() {
    let (_folder, mut engine) = engine(2);
    let held = hold(&engine, "llama3-patterns");
    // Text that repeats, so that there is something to draft.
    let prompt = prompt(2, 20).repeat(4);
    for adapter in [None, Some(&held)] {
        let plain = Request { max_tokens: Some(60), ..request(&prompt, adapter) };
        let speculating = Request { speculation: Speculation::On, ..plain.clone() };
        let expected = answer(&mut engine, &plain).0;
        assert_eq!(answer(&mut engine, &speculating).0, expected);
    }
}

#[test]
fn a_draft_model_beside_an_adapter_changes_no_token() {
    let mut engine =
        Engine::builder(smollm2()).context(Some(512)).sequences(2).build().expect("the default model loads");
    let adapter = engine.adapters().register(golden("../trained")).expect("it is the model's");
    let held = engine.adapters().hold(&[(adapter.id, 1.0)]).expect("there is room");
    let prompt = engine.encode(&Prompt::Text("The ferry crosses the river where".to_owned())).expect("encodable");
    let requests = [None, Some(&held)].map(|adapter| request(&prompt, adapter));
    let expected: Vec<Vec<u32>> = requests.iter().map(|request| answer(&mut engine, &alone(request)).0).collect();
    assert_ne!(expected[0], expected[1], "the adapter shows");
    // The model drafts for itself, without the adapter, as if that cost next to nothing.
    let gguf = Gguf::open(smollm2()).expect("a sound file");
    let model = Model::load(&gguf, 512, &mut |_| {}).expect("a sound model");
    let runner = CpuRunner::new(Arc::new(model), Pool::new(1, KernelSet::best()), 32);
    let kv = KvOptions { budget_bytes: 64 << 20, ..KvOptions::new(Tiers::uniform(PageFormat::F16)) };
    engine.core().set_draft_model(Box::new(runner), &DraftOptions { kv, fingerprint: [7; 32], cost: 0.05 });
    let drafting = requests.map(|request| Request { speculation: Speculation::On, ..request });
    let events = run_together(&mut engine, &drafting[1..]).remove(0);
    assert_eq!(events.iter().map(|event| event.sampled.token).collect::<Vec<u32>>(), expected[1]);
    let counts = events.last().expect("an answer").counts;
    assert!(counts.drafted_by_model > 0, "it has drafted for the adapter: {counts:?}");
    let together: Vec<Vec<u32>> = answers(&mut engine, &drafting).into_iter().map(|(tokens, _)| tokens).collect();
    assert_eq!(together, expected);
    assert_eq!(engine.core().take_draft_failure(), None);
}

#[test]
fn the_held_out_loss_of_a_trained_adapter_is_that_of_peft() {
    let folder = golden("../trained");
    let text = std::fs::read_to_string(folder.join("held_out.txt")).expect("the fixture is there");
    let figures = std::fs::read_to_string(folder.join("figures.json")).expect("the fixture is there");
    let figures: serde_json::Value = serde_json::from_str(&figures).expect("JSON");
    let figure = |key: &str| figures[key].as_f64().expect("a number");
    let engine = smollm2_engine();
    let adapter = engine.adapters().register(folder).expect("it is the model's");
    let held = engine.adapters().hold(&[(adapter.id, 1.0)]).expect("there is room");
    let loss = |adapter: Option<&HeldAdapter>| {
        let context = figure("context") as usize;
        let perplexity = engine.perplexity_with(adapter, &text, context, |_, _, _| {}).expect("it is long enough");
        assert_eq!(perplexity.scored_tokens as f64, figure("scored_tokens"), "the same tokens");
        perplexity.value.ln()
    };
    let (before, after) = (loss(None), loss(Some(&held)));
    println!("before: {before:.4}, PEFT {:.4}; after: {after:.4}, PEFT {:.4}", figure("loss_before"), figure("loss"));
    assert!((after / figure("loss") - 1.0).abs() < 0.01, "{after} for {}", figure("loss"));
    assert!(before - after > 0.1, "the adapter has learned something: {before} before, {after} after");
}

#[test]
fn a_request_keeps_the_adapter_that_it_began_with_and_its_answer_keeps_its_format() {
    let (_folder, engine) = engine(1);
    let held = hold(&engine, "llama3-all");
    engine.adapters().unregister(held.id);
    let request = ruvllm_runtime::Request {
        max_tokens: Some(40),
        adapter: Some(held),
        output_format: Some(OutputFormat::Regex("[ab]{3,9}".to_owned())),
        ..ruvllm_runtime::Request::new(Prompt::Text("Say something".to_owned()))
    };
    let response = engine.generate(request).expect("it answers");
    assert!(response.text.chars().all(|letter| "ab".contains(letter)) && response.text.len() >= 3, "{response:?}");
    assert_eq!(engine.adapters().stats().hot, 0, "nobody holds it any more");
}
