//! What the trainer computes against what is served: the same losses, with an adapter and without.

use std::path::Path;
use std::sync::Arc;

use crate::support::smollm2;
use ruvllm_runtime::{Engine, ItemEncoder, Prompt};
use ruvllm_training::{
    AdapterLabel, Advance, Base, Batch, Data, Item, LoraWeights, Machine, Pass, TrainOptions, Trainer,
};
use serde_json::json;

const CONTEXT: usize = 128;
/// Chunks of the text that are looked at.
const CHUNKS: usize = 2;

/// The chunks that perplexity scores, with the predictions that it scores as targets.
fn items(engine: &Engine, text: &str) -> Vec<Item> {
    let tokens = engine.encode(&Prompt::Text(text.to_owned())).expect("plain text");
    let chunks = tokens.chunks_exact(CONTEXT).enumerate();
    chunks.map(|(number, chunk)| Item::new(chunk.to_vec(), CONTEXT / 2 + 1..CONTEXT, number)).collect()
}

fn mean(losses: &[f32]) -> f64 {
    losses.iter().copied().map(f64::from).sum::<f64>() / losses.len() as f64
}

/// Takes seconds: the default model is the one whose weights are quantized, and whose rows PEFT has in another order.
#[test]
fn losses_are_those_of_the_served_model_with_and_without_an_adapter() {
    let engine = Engine::builder(smollm2()).context(Some(CONTEXT)).build().expect("the default model loads");
    let all = include_str!("../data/essays.txt");
    let tokens = engine.encode(&Prompt::Text(all.to_owned())).expect("plain text");
    let bytes: usize =
        tokens[..CHUNKS * CONTEXT + 8].iter().map(|token| engine.tokenizer().token_bytes(*token).len()).sum();
    let text = &all[..bytes];
    let items = items(&engine, text);
    assert_eq!(items.len(), CHUNKS);

    let gguf = Arc::new(ruvllm_model::open(smollm2()).expect("a sound file"));
    let base = Arc::new(Base::open(gguf, CONTEXT).expect("it can be trained"));
    let options =
        TrainOptions { step_tokens: 2 * CONTEXT, learning_rate: 0.01, warmup: 0.0, ..TrainOptions::default() };
    let data = Data { training: items.clone(), ..Data::default() };
    let mut trainer = Trainer::new(Arc::clone(&base), options, data, &Machine::new(2)).expect("a sound run");
    let losses = |weights: &LoraWeights, is_adapted| {
        let mut pass = Pass::new(&base, weights, &Machine::new(2), items.iter().map(Item::rows).sum());
        mean(&pass.losses(&base, weights, &Batch::new(&items), is_adapted).expect("it runs"))
    };
    let served = |adapter: Option<&Path>| {
        let adapter = adapter.map(|path| engine.adapters().register(path.to_owned()).expect("it fits"));
        let held = adapter.map(|adapter| engine.adapters().hold(&[(adapter.id, 1.0)]).expect("there is room"));
        engine.perplexity_with(held.as_ref(), text, CONTEXT, |_, _, _| {}).expect("long enough").value.ln()
    };
    let (own, expected) = (losses(&trainer.factors(), false), served(None));
    assert!((own / expected - 1.0).abs() < 0.005, "{own} without an adapter, served {expected}");

    while !matches!(trainer.advance().expect("it runs"), Advance::Stepped(_)) {}
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("adapter");
    trainer.write(&path, AdapterLabel::default()).expect("room for files");
    let (own, adapted) = (losses(&trainer.factors(), true), served(Some(&path)));
    assert!((own / adapted - 1.0).abs() < 0.01, "{own} with an adapter, served {adapted}");
    assert!(adapted < 0.97 * expected, "{adapted} after a step, {expected} before");
}

/// Plain and formal answers to questions: 50 pairs to learn from, and others to judge by.
fn styles(encoder: &mut ItemEncoder) -> Data {
    let pair = |(number, line): (usize, &str)| {
        let [question, plain, formal] = line.split(" | ").collect::<Vec<_>>().try_into().expect("three texts");
        let said = |role: &str, text: &str| json!([{ "role": role, "content": text }]);
        let line = json!({
            "prompt": said("user", question), "chosen": said("assistant", plain), "rejected": said("assistant", formal),
        });
        encoder.encode(&line.to_string(), number).expect("a pair")
    };
    let mut training: Vec<Item> = include_str!("../data/styles.txt").lines().enumerate().flat_map(pair).collect();
    let validation = training.split_off(50);
    let replay = include_str!("../../src/learning/texts/replay.txt");
    Data { training, validation, replay: encoder.answers(replay, CONTEXT, 0).expect("plain text") }
}

/// What the preferred style gains, and what that does to other texts. Takes minutes: set RUVLLM_TEST_LARGE=1 for it.
#[test]
fn fifty_pairs_teach_which_style_is_preferred() {
    if std::env::var_os("RUVLLM_TEST_LARGE").is_none() {
        eprintln!("skipped: set RUVLLM_TEST_LARGE=1 to train on 50 pairs");
        return;
    }
    let gguf = Arc::new(ruvllm_model::open(smollm2()).expect("a sound file"));
    let options = TrainOptions { epochs: 1, ..TrainOptions::default() };
    let base = Arc::new(Base::open(gguf, options.step_tokens).expect("it can be trained"));
    let mut encoder = ItemEncoder::open(&smollm2(), options.step_tokens, false).expect("the default model");
    let data = styles(&mut encoder);
    let general = include_str!("../data/essays.txt");
    let general = encoder.answers(general, options.step_tokens, 0).expect("plain text");
    let mut trainer = Trainer::new(Arc::clone(&base), options, data, &Machine::new(2)).expect("a sound run");
    let outcome = trainer.run(&mut |advance| eprintln!("{advance:?}")).expect("it runs");
    let weights = trainer.factors();
    let mut pass = Pass::new(&base, &weights, &Machine::new(2), trainer.options().step_tokens);
    let mut general_loss = |is_adapted| {
        let losses = general
            .iter()
            .flat_map(|item| pass.losses(&base, &weights, &Batch::new([item]), is_adapted).expect("it runs"));
        mean(&losses.collect::<Vec<f32>>())
    };
    let (before, after) = (general_loss(false), general_loss(true));
    let kept = outcome.kept.and_then(|kept| kept.preferences).expect("pairs are held out");
    eprintln!("other texts: {before} before, {after} after");
    assert!(kept.pairs == 22 && kept.share >= 0.7, "{kept:?}");
    assert!(after < 1.005 * before, "other texts: {before} before, {after} after");
}
