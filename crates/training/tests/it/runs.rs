//! Whole runs on a tiny model: what they learn, that they can be repeated, stopped and resumed, and what they leave behind.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ruvllm_model::Model;
use ruvllm_model::adapters::AdapterFile;
use ruvllm_training::{
    AdapterLabel, Advance, Base, Data, Item, LoraWeights, Machine, RunMemory, TrainError, TrainOptions, Trainer,
    split_documents,
};

use crate::support::{base, gguf, item};

const POSITIONS: usize = 64;

fn options() -> TrainOptions {
    TrainOptions { rank: 4, alpha: 8.0, learning_rate: 0.02, step_tokens: 40, seed: 3, ..TrainOptions::default() }
}

/// Texts that all go on alike.
fn texts(base: &Base, count: usize) -> Vec<Item> {
    (0..count)
        .map(|number| {
            let mut text = item(base, 14, 4, number);
            text.tokens[4..].iter_mut().enumerate().for_each(|(index, token)| *token = 40 + index as u32 % 5);
            text
        })
        .collect()
}

/// Texts that could go on in two ways, one of which is rejected. Which of them was likelier depends on the text.
fn pairs(base: &Base, count: usize) -> Vec<Item> {
    let going_on = |text: &Item, len: usize, first: u32| {
        let mut other = Item::new(text.tokens[..len].to_vec(), 4..len, text.document);
        other.tokens[4..].iter_mut().enumerate().for_each(|(index, token)| *token = first + index as u32 % 5);
        other
    };
    let pair = |text: Item| Item { rejected: Some(Box::new(going_on(&text, 10, 60))), ..going_on(&text, 14, 40) };
    texts(base, count).into_iter().map(pair).collect()
}

fn data(base: &Base) -> Data {
    let split = split_documents(texts(base, 16), 0.25, 1);
    Data { training: split.training, replay: texts(base, 2), validation: split.validation }
}

fn trainer(base: &Arc<Base>, options: TrainOptions, machine: &Machine) -> Trainer {
    Trainer::new(Arc::clone(base), options, data(base), machine).expect("a sound run")
}

#[test]
fn what_all_texts_have_in_common_is_learned_and_the_best_factors_are_kept() {
    let base = base("llama3", POSITIONS);
    let mut trainer = trainer(&base, TrainOptions { epochs: 6, ..options() }, &Machine::new(2));
    let outcome = trainer.run(&mut |_| {}).expect("it runs");
    let losses: Vec<f64> = outcome.evaluations.iter().filter_map(|one| one.validation_loss).collect();
    let (before, best) = (losses[0], outcome.kept.and_then(|kept| kept.validation_loss).expect("it was judged"));
    assert!(best < 0.5 * before, "{losses:?}");
    assert!(losses.iter().all(|loss| *loss >= best), "{losses:?}");
    assert_eq!(outcome.evaluations[0].training_loss, None);
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_threads() {
    let base = base("qwen3", POSITIONS);
    let run = |threads, seed| {
        let mut trainer = trainer(&base, TrainOptions { epochs: 2, seed, ..options() }, &Machine::new(threads));
        trainer.run(&mut |_| {}).expect("it runs");
        trainer.factors().numbers.iter().map(|number| number.to_bits()).collect::<Vec<u32>>()
    };
    let once = run(1, 3);
    assert_eq!(run(1, 3), once);
    assert_eq!(run(2, 3), once);
    assert_eq!(run(3, 3), once);
    assert_ne!(run(1, 4), once);
}

#[test]
fn what_is_preferred_becomes_likelier_than_what_is_rejected() {
    let base = base("llama3", POSITIONS);
    let run = |preference_weight, threads| {
        let split = split_documents(pairs(&base, 16), 0.5, 1);
        let data = Data { training: split.training, replay: texts(&base, 2), validation: split.validation };
        let options = TrainOptions { preference_weight, epochs: 4, patience: 4, ..options() };
        let mut trainer = Trainer::new(Arc::clone(&base), options, data, &Machine::new(threads)).expect("a sound run");
        let outcome = trainer.run(&mut |_| {}).expect("it runs");
        (outcome, trainer.factors().numbers)
    };
    let (outcome, factors) = run(1.0, 2);
    let [before, after] = [outcome.evaluations.first().copied(), outcome.kept];
    let [before, after] = [before, after].map(|evaluation| evaluation.expect("it was judged"));
    let [was, is] = [before, after].map(|evaluation| evaluation.preferences.expect("pairs are held out"));
    assert_eq!((was.pairs, is.pairs, is.share), (8, 8, 1.0), "{was:?} {is:?}");
    assert!((was.loss - 2f64.ln()).abs() < 1e-9, "no lead has grown yet: {was:?}");
    assert!(is.loss < 0.3 && is.lead > was.lead + 1.0, "{was:?} {is:?}");
    assert!(after.validation_loss < before.validation_loss, "what is chosen is learned as well");
    let (alone, _) = run(0.0, 2);
    let alone = alone.kept.and_then(|kept| kept.preferences).expect("pairs are held out");
    assert!(alone.lead < is.lead, "{alone:?} from chosen answers alone, {is:?}");
    assert_eq!(run(1.0, 1).1, factors, "on any number of threads");
}

#[test]
fn a_run_that_is_stopped_and_resumed_gives_the_bytes_of_one_that_is_not() {
    let (base, folder) = (base("gemma3", POSITIONS), tempfile::tempdir().expect("a folder"));
    let all = || TrainOptions { epochs: 2, ..options() };
    // Every second text has a rejected answer.
    let trainer = |base: &Arc<Base>, options, machine: &Machine| {
        let mut all = data(base);
        let (pairs, texts) = (pairs(base, 16), all.training.iter_mut().chain(&mut all.validation));
        texts.step_by(2).for_each(|text| text.rejected.clone_from(&pairs[text.document].rejected));
        Trainer::new(Arc::clone(base), options, all, machine).expect("a sound run")
    };
    let mut whole = trainer(&base, all(), &Machine::new(2));
    let expected = whole.run(&mut |_| {}).expect("it runs");
    let path = folder.path().join("state");
    let mut stops = 0;
    let mut machine = Machine::new(2);
    let mut part = trainer(&base, all(), &machine);
    loop {
        let stop = Arc::clone(&machine.stop);
        let mut calls = 0;
        let outcome = part.run(&mut |_| {
            calls += 1;
            stop.store(calls == 2, Ordering::Relaxed);
        });
        match outcome {
            Ok(outcome) => {
                assert_eq!(outcome, expected);
                break;
            }
            Err(error) => assert!(matches!(error, TrainError::Stopped), "{error}"),
        }
        stops += 1;
        part.save(&path).expect("room for a file");
        machine = Machine::new(1 + stops % 2);
        part = trainer(&base, all(), &machine);
        part.resume(&path).expect("a sound state");
    }
    assert!(stops > 3, "{stops}");
    assert_eq!(part.factors(), whole.factors());
}

#[test]
fn a_state_that_is_not_of_this_run_is_refused() {
    let (base, folder) = (base("llama3", POSITIONS), tempfile::tempdir().expect("a folder"));
    let (path, machine) = (folder.path().join("state"), Machine::new(1));
    let mut one = trainer(&base, options(), &machine);
    for _ in 0..2 {
        one.advance().expect("it runs");
    }
    one.save(&path).expect("room for a file");
    let refusal = |options: TrainOptions| trainer(&base, options, &machine).resume(&path).unwrap_err().to_string();
    for other in [TrainOptions { epochs: 9, ..options() }, TrainOptions { beta: 3.0, ..options() }] {
        assert!(refusal(other).contains("other options"));
    }
    let bytes = std::fs::read(&path).expect("it is there");
    for (wrong, problem) in [
        (bytes[..bytes.len() - 1].to_vec(), "damaged"),
        ([&bytes[..100], &[bytes[100] ^ 1], &bytes[101..]].concat(), "damaged"),
        (Vec::new(), "damaged"),
        (vec![0; 64 << 20], "at most"),
    ] {
        std::fs::write(&path, wrong).expect("room for a file");
        let said = refusal(options());
        assert!(said.contains(problem), "{said}");
    }
    std::fs::write(&path, bytes).expect("room for a file");
    let mut paired = data(&base);
    paired.training[0].rejected = Some(Box::new(paired.training[1].clone()));
    for other in [Data { training: texts(&base, 3), ..Data::default() }, paired] {
        let mut other = Trainer::new(Arc::clone(&base), options(), other, &machine).expect("a sound run");
        assert!(other.resume(&path).unwrap_err().to_string().contains("other items"));
    }
}

#[test]
fn what_cannot_be_learned_from_is_refused_before_anything_is_computed() {
    let base = base("llama3", POSITIONS);
    let refusal = |options: TrainOptions, training: Vec<Item>, budget: usize| {
        let machine = Machine { memory_budget: budget, ..Machine::new(1) };
        let data = Data { training, ..Data::default() };
        Trainer::new(Arc::clone(&base), options, data, &machine).unwrap_err().to_string()
    };
    let sound = || texts(&base, 2);
    let (mut silent, mut unknown) = (sound(), sound());
    silent[1].targets.fill(false);
    unknown[0].tokens[2] = u32::MAX;
    let (mut nested, mut long) = (pairs(&base, 2), pairs(&base, 2));
    nested[1].rejected = Some(Box::new(nested[0].clone()));
    long[1].rejected = Some(Box::new(item(&base, 29, 4, 1)));
    let all = usize::MAX;
    for (said, expected) in [
        (refusal(options(), Vec::new(), all), "empty"),
        (refusal(options(), silent, all), "item 1 has no target"),
        (refusal(options(), unknown, all), "the vocabulary has"),
        (refusal(TrainOptions { step_tokens: 10, ..options() }, sound(), all), "at most 11"),
        (refusal(options(), nested, all), "item 1 has a rejected answer of a rejected one"),
        (refusal(options(), long, all), "item 1 has 42 tokens with the rejected answer; at most 41"),
        (refusal(TrainOptions { rank: 65, ..options() }, sound(), all), "rank is 65"),
        (refusal(TrainOptions { beta: 0.0, ..options() }, sound(), all), "beta is 0"),
        (refusal(TrainOptions { preference_weight: -1.0, ..options() }, sound(), all), "preference_weight is -1"),
        (refusal(TrainOptions { learning_rate: f32::NAN, ..options() }, sound(), all), "learning_rate is NaN"),
        (refusal(TrainOptions { targets: Some(vec!["q_proj".into()]), ..options() }, sound(), all), "attn_q"),
        (refusal(options(), sound(), 1 << 16), "bytes of memory"),
    ] {
        assert!(said.contains(expected), "{said}");
    }
}

#[test]
fn the_memory_of_a_run_is_known_before_it_begins() {
    let base = base("llama3", POSITIONS);
    let of = |rank, rows| {
        let weights = LoraWeights::new(&base, &TrainOptions { rank, ..options() }).expect("sound options");
        RunMemory::of(&base, &weights, rows, 2)
    };
    assert!(of(4, 64).total() > of(4, 32).total());
    assert_eq!(of(8, 64).factors, 2 * of(4, 64).factors);
    assert_eq!(of(4, 64).checkpoints, of(8, 64).checkpoints);
}

#[test]
fn the_result_is_an_adapter_of_peft_that_the_model_takes() {
    for architecture in ["llama3", "qwen2", "phi3", "gemma2"] {
        let (base, folder) = (base(architecture, POSITIONS), tempfile::tempdir().expect("a folder"));
        let mut trainer = trainer(&base, options(), &Machine::new(2));
        while !matches!(trainer.advance().expect("it runs"), Advance::Stepped(_)) {}
        let path = folder.path().join("adapter");
        let label = AdapterLabel { base_model: Some("tiny"), invocation: Some(&[1, 2]) };
        trainer.write(&path, label).expect("room for files");
        let file = AdapterFile::open(&path).expect("a sound adapter");
        assert_eq!((file.ranks, file.base_model.as_deref()), ((4, 4), Some("tiny")), "{architecture}");
        assert_eq!(file.invocation.as_deref(), Some(&[1, 2][..]));
        let recipe = file.recipe.as_deref().expect("a recipe");
        assert!(recipe.contains("trained") && recipe.contains(trainer.digests().0), "{recipe}");
        let model = Model::load(&gguf(architecture), POSITIONS, &mut |_| {}).expect("a sound model");
        file.check(&model.adapter_targets()).unwrap_or_else(|error| panic!("{architecture}: {error}"));
    }
}
