//! Gemma 3 with its real weights against llama.cpp on the same file: windows, two RoPE bases, QK norm, GeGLU, post-norms.

use ruvllm_runtime::{Engine, Prompt};
use serde_json::Value;

use crate::support::model;

/// A choice that was ahead by less may fall either way: both round activations to 8 bits, each a little differently.
const TIE_MARGIN: f32 = 0.7;

fn references() -> Value {
    serde_json::from_str(include_str!("../golden/gemma3.json")).expect("the references are JSON")
}

fn engine() -> Engine {
    Engine::builder(model("gemma3:270m")).context(Some(1024)).build().expect("the model loads")
}

#[test]
fn greedy_continuations_of_gemma_equal_those_of_llama_cpp_up_to_ties() {
    let (mut engine, references) = (engine(), references());
    let prompts = references["prompts"].as_array().expect("prompts");
    assert!(prompts.len() >= 20);
    let (mut steps, mut ties) = (0, 0);
    for prompt in prompts {
        let ids = |key: &str| -> Vec<u32> { serde_json::from_value(prompt[key].clone()).expect("token ids") };
        let (tokens, greedy) = (ids("tokens"), ids("greedy"));
        let margins: Vec<f32> = serde_json::from_value(prompt["margins"].clone()).expect("numbers");
        let (name, text) = (&prompt["name"], prompt["text"].as_str().expect("a text"));
        assert_eq!(engine.encode(&Prompt::Text(text.to_owned())).expect("plain text"), tokens, "{name}");
        // Both go on with llama.cpp's choice, so that every step is compared even after a tie.
        let first = tokens.len() - 1;
        let all = [&tokens[..], &greedy].concat();
        let check = |position: usize, logits: &[f32]| {
            let step = position - first;
            let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let behind = best - logits[greedy[step] as usize];
            steps += 1;
            ties += usize::from(behind > 0.0);
            assert!(
                behind == 0.0 || (margins[step] < TIE_MARGIN && behind < TIE_MARGIN),
                "{name} step {step}: llama.cpp was ahead by {}, its choice is {behind} behind here",
                margins[step]
            );
        };
        engine.core().evaluate(&all, first..all.len() - 1, check).expect("it fits");
    }
    println!("{} of {steps} choices are llama.cpp's, the others were ties", steps - ties);
    assert!(ties * 20 < steps, "{ties} of {steps}");
}

#[test]
fn perplexity_of_gemma_agrees_with_llama_cpp_within_half_a_percent() {
    let (engine, references) = (engine(), references());
    let (context, expected) = (&references["perplexity"][0]["context"], &references["perplexity"][0]["value"]);
    let (context, expected) = (context.as_u64().expect("tokens"), expected.as_f64().expect("a number"));
    let text = include_str!("../data/essays.txt");
    let got = engine.perplexity(text, context as usize, |_, _, _| {}).expect("the text is long enough").value;
    println!("{got:.3}, llama.cpp {expected:.3}");
    assert!((got / expected - 1.0).abs() < 0.005, "{got} for {expected}");
}
