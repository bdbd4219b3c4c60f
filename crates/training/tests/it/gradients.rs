//! Gradients through every kind of layer against f64.

use std::fs;

use ruvllm_training::{Base, Batch, Item, LoraModule, LoraWeights, Machine, Pass, TrainError, TrainOptions};
use serde_json::Value;

use crate::reference::Reference;
use crate::support::{Random, base, folder, gguf, item, random_factors};

/// Each kind of layer that gradients go through.
const TRAINED: [&str; 12] = [
    "llama3",
    "llama-linear",
    "llama-yarn",
    "mistral-window",
    "ministral3",
    "smollm3",
    "granite",
    "phi3",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
];
const POSITIONS: usize = 48;

/// Two items, one of them longer than every window, the other with an adapter that begins within it.
fn items(base: &Base) -> Vec<Item> {
    let (long, mut short) = (item(base, 30, 20, 1), item(base, 9, 4, 2));
    short.active_from = 3;
    vec![long, short]
}

fn options() -> TrainOptions {
    TrainOptions { rank: 3, alpha: 6.0, ..TrainOptions::default() }
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn length(a: &[f64]) -> f64 {
    a.iter().map(|x| x * x).sum::<f64>().sqrt()
}

#[test]
fn gradients_are_those_of_f64_through_every_kind_of_layer() {
    let mut failures = Vec::new();
    for architecture in TRAINED {
        let (file, base) = (gguf(architecture), base(architecture, POSITIONS));
        let (weights, items) = (random_factors(&base, &options()), items(&base));
        let batch = Batch::new(&items);
        let each = 1.0 / batch.target_count() as f64;
        let (loss, expected) = Reference::new(&file, &weights, POSITIONS).loss(&items, each);
        let mut pass = Pass::new(&base, &weights, &Machine::new(2), batch.rows());
        let mut gradient = vec![0.0; weights.numbers.len()];
        let target_weights = vec![each as f32; batch.target_count()];
        let losses = pass.gradient(&base, &weights, &batch, &target_weights, &mut gradient).expect("it runs");
        let got = losses.iter().copied().map(f64::from).sum::<f64>() * each;
        assert!((got - loss).abs() < 0.01 * loss, "{architecture}: the loss is {got}, and {loss} in f64");
        failures.extend(deviations(&weights, &gradient, &expected).map(|said| format!("{architecture} {said}")));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Names the factors whose gradient is not the expected one.
fn deviations(weights: &LoraWeights, gradient: &[f32], expected: &[f64]) -> impl Iterator<Item = String> {
    let gradient: Vec<f64> = gradient.iter().copied().map(f64::from).collect();
    let of_module = |module: &LoraModule| {
        [("A", module.a.clone()), ("B", module.b.clone())].map(|(factor, range)| {
            let (got, expected) = (&gradient[range.clone()], &expected[range]);
            let (cosine, ratio) = (cosine(got, expected), length(got) / length(expected));
            let said = format!("{} {} {factor}: cosine {cosine:.5}, length {ratio:.4}", module.layer, module.tensor);
            (!(cosine >= 0.999 && (ratio - 1.0).abs() < 0.05)).then_some(said)
        })
    };
    weights.modules.iter().flat_map(of_module).flatten().collect::<Vec<_>>().into_iter()
}

#[test]
fn gradients_of_preferences_are_those_of_f64() {
    for architecture in ["llama3", "gemma2"] {
        let (file, base) = (gguf(architecture), base(architecture, POSITIONS));
        let options = TrainOptions { preference_weight: 1.5, beta: 3.0, ..options() };
        let weights = random_factors(&base, &options);
        // One pair with answers of different lengths, the other activated, and an item without a rejected answer.
        let [mut long, mut short] = <[Item; 2]>::try_from(items(&base)).expect("two items");
        let rejected = |item: &Item, len, document| {
            let mut other = crate::support::item(&base, len, 4, document);
            other.tokens[..4].copy_from_slice(&item.tokens[..4]);
            Some(Box::new(Item { active_from: item.active_from, ..other }))
        };
        long.rejected = rejected(&long, 14, 7);
        short.rejected = rejected(&short, 12, 8);
        let items = [long, item(&base, 11, 5, 9), short];
        let (loss, expected) = Reference::new(&file, &weights, POSITIONS).objective(&items, &options);
        let batch = Batch::new(&items);
        let mut pass = Pass::new(&base, &weights, &Machine::new(2), batch.rows());
        let references = batch.leads(&pass.losses(&base, &weights, &batch, false).expect("it runs"));
        let mut gradient = vec![0.0; weights.numbers.len()];
        let weigh = |losses: &[f32]| batch.target_weights(losses, &references, &options);
        let losses = pass.gradient_by(&base, &weights, &batch, weigh, &mut gradient).expect("it runs");
        assert!(loss.is_finite() && batch.leads(&losses) != references, "{architecture}: the adapter moves leads");
        let failures: Vec<String> = deviations(&weights, &gradient, &expected).collect();
        assert!(failures.is_empty(), "{architecture}:\n{}", failures.join("\n"));
    }
}

#[test]
fn the_f64_reference_agrees_with_its_own_differences() {
    for architecture in TRAINED {
        let (file, base) = (gguf(architecture), base(architecture, POSITIONS));
        let (weights, items) = (random_factors(&base, &options()), [item(&base, 7, 3, 3)]);
        let (_, gradient) = Reference::new(&file, &weights, POSITIONS).loss(&items, 1.0);
        let mut random = Random(9);
        let direction: Vec<f32> = weights.numbers.iter().map(|_| random.float()).collect();
        // Powers of two, so that floats hold what is added.
        let step = 1.0 / 4096.0;
        let moved = |by: f32| {
            let mut moved: LoraWeights = weights.clone();
            moved.numbers.iter_mut().zip(&direction).for_each(|(number, way)| *number += by * way);
            let way: Vec<f64> = moved
                .numbers
                .iter()
                .zip(&weights.numbers)
                .map(|(to, from)| f64::from(*to) - f64::from(*from))
                .collect();
            (Reference::new(&file, &moved, POSITIONS).loss(&items, 1.0).0, way)
        };
        let ((up, way_up), (down, way_down)) = (moved(step), moved(-step));
        let expected: f64 =
            gradient.iter().zip(way_up.iter().zip(&way_down)).map(|(g, (up, down))| g * (up - down)).sum();
        let got = up - down;
        assert!((got - expected).abs() < 1e-3 * expected.abs() + 1e-7, "{architecture}: {got} is not {expected}");
    }
}

#[test]
fn the_f64_reference_has_the_logits_of_transformers() {
    for architecture in TRAINED {
        let (file, base) = (gguf(architecture), base(architecture, POSITIONS));
        let weights = random_factors(&base, &options());
        let known: Value =
            serde_json::from_slice(&fs::read(folder(architecture).join("logits.json")).unwrap()).unwrap();
        let shortest = known["prompts"]
            .as_array()
            .unwrap()
            .iter()
            .min_by_key(|prompt| prompt["tokens"].as_array().expect("tokens").len());
        let prompt = shortest.expect("a prompt");
        let tokens: Vec<u32> = serde_json::from_value(prompt["tokens"].clone()).unwrap();
        let logits = Reference::new(&file, &weights, tokens.len().max(POSITIONS)).plain_logits(&tokens);
        for (row, want) in prompt["rows"].as_object().unwrap() {
            let want: Vec<f64> = serde_json::from_value(want.clone()).unwrap();
            let got = &logits[row.parse::<usize>().unwrap()];
            let worst = got.iter().zip(&want).map(|(got, want)| (got - want).abs()).fold(0.0, f64::max);
            assert!(worst < 5e-3, "{architecture}, row {row}: {worst}");
        }
    }
}

#[test]
fn models_whose_layers_have_no_gradient_here_are_refused_by_name() {
    for (architecture, what) in [
        ("qwen3moe", "experts"),
        ("gpt-oss", "experts"),
        ("lfm2", "recurrent"),
        ("qwen35", "recurrent"),
        ("gemma4", "of their own for each layer"),
    ] {
        match Base::open(gguf(architecture), POSITIONS) {
            Err(error @ TrainError::Unsupported { .. }) => {
                assert!(error.to_string().contains(what), "{architecture}: {error}");
            }
            other => panic!("{architecture}: {other:?}"),
        }
    }
}

#[test]
fn a_row_that_the_adapter_does_not_apply_to_keeps_the_loss_of_the_model() {
    let base = base("llama3", POSITIONS);
    let weights = random_factors(&base, &options());
    let mut activated = item(&base, 12, 1, 4);
    activated.active_from = 6;
    let batch = Batch::new([&activated]);
    let mut pass = Pass::new(&base, &weights, &Machine::new(1), batch.rows());
    let with = pass.losses(&base, &weights, &batch, true).unwrap();
    let without = pass.losses(&base, &weights, &batch, false).unwrap();
    assert_eq!(with[..6], without[..6], "before it begins");
    assert!(with[6..].iter().zip(&without[6..]).all(|(with, without)| with != without));
}
