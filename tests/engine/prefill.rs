//! Prompts in bf16: the same in any company, and no farther from float arithmetic than prompts that are computed exactly.

use crate::support::{distance, golden, run_together, smollm2};
use ruvllm_engine::{PrefixUse, Request, Sampling, Speculation};
use ruvllm_kernels::KernelSet;
use ruvllm_runtime::{Engine, Prefill};

fn build(sequences: usize, batch_rows: usize, threads: usize, prefill: Prefill) -> Engine {
    let builder = Engine::builder(smollm2()).context(Some(1024)).sequences(sequences).prefill(prefill);
    builder.batch_rows(batch_rows).threads(Some(threads)).build().expect("the default model loads")
}

/// Prompts that are long enough, and short ones between them.
fn prompts() -> Vec<Vec<u32>> {
    let texts = golden().into_iter().map(|prompt| prompt.tokens);
    let mut all: Vec<Vec<u32>> = texts.filter(|tokens| (24..400).contains(&tokens.len())).collect();
    let long: Vec<u32> = all.iter().flatten().copied().take(300).collect();
    all.push(long[..65].to_vec());
    all.push(long);
    all
}

/// Without bf16 all prompts are exact, and a comparison would be one with itself.
fn has_bf16() -> bool {
    let has_bf16 = KernelSet::best().has_bf16();
    if !has_bf16 {
        eprintln!("skipped: this processor does not multiply bf16");
    }
    has_bf16
}

#[test]
fn fast_prompts_give_the_same_tokens_alone_in_company_and_in_any_portions() {
    if !has_bf16() {
        return;
    }
    let request = |prompt: Vec<u32>| {
        let sampling = Sampling::greedy();
        let (speculation, prefix_use) = (Speculation::Off, PrefixUse::OFF);
        Request { sampling, max_tokens: Some(8), speculation, prefix_use, ..Request::new(prompt) }
    };
    let requests: Vec<Request> = prompts().into_iter().map(request).collect();
    let tokens = |engine: &mut Engine, requests: &[Request]| -> Vec<Vec<u32>> {
        let events = run_together(engine, requests);
        events.iter().map(|events| events.iter().map(|event| event.sampled.token).collect()).collect()
    };
    let mut alone = build(1, 512, 2, Prefill::Fast);
    let expected: Vec<Vec<u32>> =
        requests.iter().map(|one| tokens(&mut alone, std::slice::from_ref(one)).remove(0)).collect();
    for (sequences, batch_rows, threads) in [(8, 512, 3), (3, 33, 1)] {
        let mut engine = build(sequences, batch_rows, threads, Prefill::Fast);
        let got = tokens(&mut engine, &requests);
        assert_eq!(got, expected, "{sequences} sequences, {batch_rows} rows, {threads} threads");
    }
}

#[test]
fn fast_prompts_are_as_near_to_float_arithmetic_as_exact_ones() {
    if !has_bf16() {
        return;
    }
    let mean = |prefill: Prefill| {
        let mut engine = build(1, 512, 2, prefill);
        let mut errors = Vec::new();
        for prompt in golden().iter().filter(|prompt| prompt.tokens.len() >= 64) {
            let (last, mut got) = (prompt.tokens.len() - 1, Vec::new());
            let pick = |_: usize, logits: &[f32]| got = prompt.top.iter().map(|(id, _)| logits[*id as usize]).collect();
            engine.core().evaluate(&prompt.tokens, last..last + 1, pick).expect("it fits");
            errors.push(distance(&got, &prompt.exact));
        }
        assert!(!errors.is_empty());
        errors.iter().sum::<f64>() / errors.len() as f64
    };
    let (exact, fast) = (mean(Prefill::Exact), mean(Prefill::Fast));
    println!("from float arithmetic: exact {exact:.4}, fast {fast:.4}");
    assert!(fast <= exact * 1.1, "fast {fast}, exact {exact}");
}

#[test]
fn perplexity_is_that_of_exact_prompts_within_their_rounding() {
    if !has_bf16() {
        return;
    }
    let text: String = include_str!("../data/essays.txt").chars().take(8000).collect();
    let of = |prefill| build(1, 512, 2, prefill).perplexity(&text, 512, |_, _, _| {}).expect("long enough").value;
    let (exact, fast) = (of(Prefill::Exact), of(Prefill::Fast));
    println!("perplexity: exact {exact:.4}, fast {fast:.4}, {:+.3} %", (fast / exact - 1.0) * 100.0);
    // Both are some way from that of floats, the exact one farther.
    assert!((fast / exact - 1.0).abs() < 0.006, "{fast} for {exact}");
}

#[test]
fn what_is_measured_for_auto_is_kept_and_taken_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let build = || {
        let builder = Engine::builder(smollm2()).context(Some(1024)).threads(Some(2)).prefill(Prefill::Auto);
        builder.calibration_folder(folder.path().to_owned()).build().expect("the default model loads")
    };
    let found = build().fast_prefill().cloned();
    assert_eq!(build().fast_prefill(), found.as_ref());
    let files = std::fs::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(files, usize::from(found.is_some()), "{found:?}");
    if let Some(found) = found {
        assert!(found.divergence > 0.0 && found.divergence < 0.05, "{found:?}");
    }
}

/// The text that tells would not fit.
#[test]
fn a_context_that_is_too_short_to_measure_in_is_served_exactly() {
    let folder = tempfile::tempdir().expect("a folder");
    let builder = Engine::builder(smollm2()).context(Some(256)).threads(Some(2)).prefill(Prefill::Auto);
    let engine = builder.calibration_folder(folder.path().to_owned()).build().expect("it loads with a short context");
    assert_eq!((engine.fast_prefill(), engine.fast_rows_min()), (None, None));
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
}
