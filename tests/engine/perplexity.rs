//! Perplexity of a text against llama.cpp's figure for the same file, context and chunking.

use crate::support::{engine, golden_perplexity};

#[test]
fn perplexity_agrees_with_llama_cpp_within_half_a_percent() {
    let engine = engine();
    let text = include_str!("../data/essays.txt");
    // The other context takes as long and goes the same way: RUVLLM_TEST_LARGE=1 has it, too.
    let contexts = if std::env::var_os("RUVLLM_TEST_LARGE").is_some() { usize::MAX } else { 1 };
    for (context, expected) in golden_perplexity().into_iter().take(contexts) {
        let got = engine.perplexity(text, context, |_, _, _| {}).expect("the text is long enough").value;
        println!("context {context}: {got:.4}, llama.cpp {expected:.4}, {:+.2} %", (got / expected - 1.0) * 100.0);
        assert!((got / expected - 1.0).abs() < 0.005, "context {context}: {got} for {expected}");
    }
}

#[test]
fn a_text_that_is_too_short_is_an_error_that_says_how_much_is_needed() {
    let message = engine().perplexity("too short", 512, |_, _, _| {}).unwrap_err().to_string();
    assert!(message.contains("1024"), "{message}");
}
