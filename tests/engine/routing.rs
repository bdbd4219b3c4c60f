//! What choosing between two real models is worth: what each makes of the same texts, replayed as a log of choices.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use ruvllm_learning::routing::{
    AskedText, Bandit, Candidate, Features, LoggedChoice, Outcome, RewardRule, drawn, explored,
};
use ruvllm_runtime::{Engine, Prompt};

use crate::support::model;

/// Texts of four kinds, six of each: English, German, Python, French.
const TEXTS: &str = include_str!("../data/kinds.txt");
/// A time that does not depend on the machine: an answer reads all weights as often as it has tokens.
const WEIGHT_BYTES_PER_SECOND: f64 = 10e9;
const ANSWER_TOKENS: f64 = 100.0;
/// Time counts: for what both models can do, the smaller one is the better choice.
const PRICE_PER_SECOND: f64 = 0.1;
const CHOICES: usize = 300;
const EXPLORATION: f64 = 0.3;

/// Returns what a model is worth for each text: how well it predicts the second half, less the price of its time.
fn rewards(name: &str, texts: &[&str]) -> Vec<f64> {
    let rule = RewardRule::new(PRICE_PER_SECOND).expect("a price");
    let file = model(name);
    let bytes = std::fs::metadata(&file).expect("a file").len() as f64;
    let engine = Engine::builder(file).context(Some(256)).build().expect("the model loads");
    let reward = |text: &&str| {
        let tokens = engine.encode(&Prompt::Text((*text).to_owned())).expect("encodable");
        let targets: Vec<bool> = (0..tokens.len()).map(|place| 2 * place >= tokens.len()).collect();
        let losses = engine.target_losses(None, &tokens, &targets).expect("the model computes");
        // Per character, so that models with other tokens can be compared; 1 nat is a bad prediction.
        let characters = text.chars().count() as f64 * losses.len() as f64 / tokens.len() as f64;
        let quality = 1.0 - losses.iter().sum::<f64>() / characters;
        let seconds = ANSWER_TOKENS * bytes / WEIGHT_BYTES_PER_SECOND;
        rule.reward(&Outcome { feedback: Some(quality.clamp(-1.0, 1.0)), seconds, ..Outcome::default() })
    };
    texts.iter().map(reward).collect()
}

/// A number from 0 to below 1 that follows from the others.
fn unit(seed: u64, index: usize, what: u8) -> f64 {
    let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one((seed, index, what));
    (hash >> 11) as f64 / (1u64 << 53) as f64
}

/// Mean regret of choices: how much less than the best one they are worth.
fn regret(worth: &[Vec<f64>; 2], chosen: impl IntoIterator<Item = (usize, usize)>) -> f64 {
    let lost = |(text, place): (usize, usize)| worth[0][text].max(worth[1][text]) - worth[place][text];
    let lost: Vec<f64> = chosen.into_iter().map(lost).collect();
    lost.iter().sum::<f64>() / lost.len() as f64
}

/// With `RUVLLM_TEST_LARGE=1`, of two models of which one is three times as large as the other.
#[test]
fn replayed_logs_of_two_models_teach_which_one_to_ask() {
    let names = match std::env::var_os("RUVLLM_TEST_LARGE") {
        Some(_) => ["qwen2.5-coder:0.5b", "qwen2.5-coder:1.5b"],
        None => ["smollm2", "gemma3:270m"],
    };
    let texts: Vec<&str> = TEXTS.split("\n\n").map(str::trim).collect();
    let worth = names.map(|name| rewards(name, &texts));
    let features: Vec<Features> =
        texts.iter().map(|text| Features::of(&AskedText { text, ..AskedText::default() })).collect();
    // Every other text is only asked about in the end.
    let (learned, held_out): (Vec<usize>, Vec<usize>) = (0..texts.len()).partition(|text| text % 2 == 0);
    let always = |texts: &[usize]| [0, 1].map(|place| regret(&worth, texts.iter().map(|text| (*text, place))));
    let (fixed, fixed_of_others) = (always(&learned), always(&held_out));
    println!("always {} or {}: {fixed:.3?}; other texts {fixed_of_others:.3?}", names[0], names[1]);
    for seed in 0..5 {
        let mut log: Vec<LoggedChoice> = Vec::new();
        let mut decided = Vec::new();
        let mut bandit = Bandit::default();
        for index in 0..CHOICES {
            let text = learned[(unit(seed, index, 0) * learned.len() as f64) as usize];
            let place = bandit.decide(&features[text], &names, 0).place;
            decided.push((text, place));
            let probabilities = explored(place, names.len(), EXPLORATION);
            let chosen = drawn(&probabilities, unit(seed, index, 1));
            let candidate = |(model, probability): (&&str, f64)| Candidate { model: (*model).to_owned(), probability };
            log.push(LoggedChoice {
                features: features[text],
                candidates: names.iter().zip(probabilities).map(candidate).collect(),
                chosen,
                default: 0,
                is_named: false,
                reward: worth[chosen][text],
            });
            // As a server does from time to time.
            if index % 10 == 9 {
                bandit = Bandit::of(&log);
            }
        }
        let [first, last] =
            [&decided[..50], &decided[CHOICES - 100..]].map(|part| regret(&worth, part.iter().copied()));
        let others = held_out.iter().map(|text| (*text, bandit.decide(&features[*text], &names, 0).place));
        let of_others = regret(&worth, others);
        println!("seed {seed}: {first:.3} to {last:.3}; other texts {of_others:.3}");
        assert!(last < 0.5 * first && last < fixed[0].min(fixed[1]), "seed {seed}: {first} {last} {fixed:?}");
        assert!(of_others <= fixed_of_others[0], "seed {seed}: worse than the default, {of_others}");
    }
}
