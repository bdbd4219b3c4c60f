//! The forward pass on the default model against llama.cpp, candle and plain float arithmetic.
//!
//! All quantized implementations round activations to 8 bits, each a little differently; that moves logits by 0.1 to
//! 0.2 (root mean square over the 20 highest) from exact arithmetic. The tolerances below are stated in those terms.

use crate::candle_oracle;
use crate::support::{Golden, distance, engine, golden, logits, smollm2};
use ruvllm_kernels::KernelSet;
use ruvllm_runtime::Engine;
use std::sync::OnceLock;

/// Against exact arithmetic, over the 20 highest logits of a prompt.
const EXACT_TOLERANCE: f64 = 0.45;
/// Against another implementation that rounds too.
const PEER_TOLERANCE: f64 = 0.5;
/// A choice that was ahead by less may fall either way.
const TIE_MARGIN: f32 = 0.5;

/// What our model makes of a prompt and of llama.cpp's answer to it.
struct Continuation {
    prompt: Golden,
    /// After the prompt.
    logits: Vec<f32>,
    /// How far llama.cpp's choice is behind ours at each step. We go on with its choice even so, so that every step can be
    /// compared after a tie.
    behind: Vec<f32>,
}

/// Computed once: nothing here takes longer.
fn continuations() -> &'static [Continuation] {
    static ALL: OnceLock<Vec<Continuation>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut engine = engine();
        let of = |prompt: Golden| {
            let first = prompt.tokens.len() - 1;
            let tokens = [&prompt.tokens[..], &prompt.greedy].concat();
            let (mut after_prompt, mut behind) = (Vec::new(), Vec::new());
            let look = |position: usize, logits: &[f32]| {
                if position == first {
                    after_prompt = logits.to_vec();
                }
                let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                behind.push(best - logits[prompt.greedy[position - first] as usize]);
            };
            engine.core().evaluate(&tokens, first..first + prompt.greedy.len(), look).expect("it fits");
            Continuation { logits: after_prompt, behind, prompt }
        };
        golden().into_iter().map(of).collect()
    })
}

#[test]
fn logits_are_as_close_to_exact_arithmetic_as_those_of_llama_cpp() {
    let (mut ours, mut theirs) = (0.0, 0.0);
    let prompts = continuations();
    assert!(prompts.len() >= 20);
    for Continuation { prompt, logits: all, .. } in prompts {
        let got: Vec<f32> = prompt.top.iter().map(|(token, _)| all[*token as usize]).collect();
        let peer: Vec<f32> = prompt.top.iter().map(|(_, logit)| *logit).collect();
        let (error, peer_error) = (distance(&got, &prompt.exact), distance(&peer, &prompt.exact));
        println!("{:16} {error:.3} from exact, llama.cpp {peer_error:.3}", prompt.name);
        assert!(error < EXACT_TOLERANCE, "{}: {error} from exact arithmetic", prompt.name);
        assert!(distance(&got, &peer) < PEER_TOLERANCE, "{}: {} from llama.cpp", prompt.name, distance(&got, &peer));
        ours += error / prompts.len() as f64;
        theirs += peer_error / prompts.len() as f64;
    }
    println!("on average {ours:.3} from exact, llama.cpp {theirs:.3}");
    assert!(ours < theirs * 1.5, "{ours} from exact arithmetic on average, llama.cpp {theirs}");
}

#[test]
fn greedy_continuations_equal_those_of_llama_cpp_up_to_ties() {
    let (mut steps, mut ties, mut widest) = (0, 0, 0f32);
    for Continuation { prompt, behind, .. } in continuations() {
        for (step, &behind) in behind.iter().enumerate() {
            let (expected, margin) = (prompt.greedy[step], prompt.margins[step]);
            steps += 1;
            if behind > 0.0 {
                ties += 1;
                widest = widest.max(margin);
            }
            assert!(
                behind == 0.0 || (margin < TIE_MARGIN && behind < TIE_MARGIN),
                "{} step {step}: llama.cpp chose {expected} by {margin}, ours is {behind} behind the best",
                prompt.name
            );
        }
    }
    println!("{ties} of {steps} choices fell the other way; llama.cpp was ahead by {widest:.3} at most");
}

#[test]
fn logits_agree_with_candle() {
    let mut oracle = candle_oracle::Oracle::load(&smollm2()).expect("candle loads the model");
    let mut engine = engine();
    // Candle takes seconds for each.
    for prompt in golden().iter().filter(|prompt| prompt.tokens.len() < 27).take(4) {
        let want = oracle.logits(&prompt.tokens).expect("candle runs");
        let all = logits(&mut engine, &prompt.tokens);
        let pick = |from: &[f32]| prompt.top.iter().map(|(token, _)| from[*token as usize]).collect::<Vec<_>>();
        let error = distance(&pick(&all), &pick(&want));
        assert!(error < PEER_TOLERANCE, "{}: {error} from candle", prompt.name);
    }
}

#[test]
fn every_kernel_set_gives_the_same_logits_up_to_rounding() {
    for set in KernelSet::available() {
        let mut engine = Engine::builder(smollm2()).context(Some(256)).kernels(set).build().expect("it loads");
        // Plain scalar code takes a second for a few tokens.
        for prompt in golden().iter().filter(|prompt| prompt.tokens.len() < 27).take(5) {
            let all = logits(&mut engine, &prompt.tokens);
            let got: Vec<f32> = prompt.top.iter().map(|(token, _)| all[*token as usize]).collect();
            let error = distance(&got, &prompt.exact);
            assert!(error < EXACT_TOLERANCE, "{} with {} kernels: {error}", prompt.name, set.name());
        }
    }
}

#[test]
fn prompts_are_tokenized_as_llama_cpp_does() {
    use ruvllm_text::SpecialTokens;
    let engine = engine();
    for prompt in golden() {
        assert_eq!(engine.tokenizer().encode(&prompt.text, SpecialTokens::Parse), prompt.tokens, "{}", prompt.name);
    }
}
