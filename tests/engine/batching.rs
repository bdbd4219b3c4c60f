//! A sequence gives the same tokens whatever else runs, and however its prompt is cut.

use crate::support::{golden, run_together, smollm2};
use ruvllm_engine::{AdapterId, HeldAdapter, Request, Sampling, Speculation, SubmitError};
use ruvllm_runtime::{Engine, Prompt};

fn build(sequences: usize, batch_rows: usize, threads: usize) -> Engine {
    let builder = Engine::builder(smollm2()).context(Some(1024)).sequences(sequences);
    builder.batch_rows(batch_rows).threads(Some(threads)).build().expect("the default model loads")
}

fn request(prompt: &[u32], sampling: Sampling) -> Request {
    // Without speculation: tests/engine/speculation.rs compares with this.
    let speculation = Speculation::Off;
    Request { sampling, max_tokens: Some(16), speculation, ..Request::new(prompt.to_vec()) }
}

fn together(engine: &mut Engine, requests: &[Request]) -> Vec<Vec<u32>> {
    let events = run_together(engine, requests);
    events.iter().map(|events| events.iter().map(|event| event.sampled.token).collect()).collect()
}

#[test]
fn batched_results_equal_single_results() {
    let prompts = golden().into_iter().map(|prompt| prompt.tokens).filter(|tokens| tokens.len() < 110);
    // More than run together, so that some come when others end.
    let prompts: Vec<Vec<u32>> = prompts.step_by(2).collect();
    // Every second one is sampled: its seed alone must decide.
    let sampling = |i: usize| {
        if i.is_multiple_of(2) { Sampling::greedy() } else { Sampling { seed: i as u64, ..Sampling::default() } }
    };
    let requests: Vec<Request> = prompts.iter().enumerate().map(|(i, prompt)| request(prompt, sampling(i))).collect();
    let mut alone = build(1, 128, 2);
    let expected: Vec<Vec<u32>> =
        requests.iter().map(|one| together(&mut alone, std::slice::from_ref(one)).remove(0)).collect();
    for (sequences, batch_rows, threads) in [(8, 128, 2), (3, 17, 1), (8, 64, 3)] {
        let mut engine = build(sequences, batch_rows, threads);
        let got = together(&mut engine, &requests);
        assert_eq!(got, expected, "{sequences} sequences, {batch_rows} rows, {threads} threads");
    }
}

#[test]
fn decoding_token_by_token_gives_the_choices_of_a_whole_pass() {
    let mut engine = build(1, 128, 2);
    for prompt in golden().into_iter().map(|prompt| prompt.tokens).filter(|tokens| tokens.len() < 45).step_by(3) {
        let mut request = request(&prompt, Sampling::greedy());
        request.max_tokens = Some(64);
        let generated = together(&mut engine, &[request]).remove(0);
        assert_eq!(generated.len(), 64);
        let (first, all) = (prompt.len() - 1, [&prompt[..], &generated].concat());
        let check = |position: usize, logits: &[f32]| {
            let chosen = generated[position - first] as usize;
            assert!(logits.iter().all(|logit| *logit <= logits[chosen]), "step {}", position - first);
        };
        engine.core().evaluate(&all, first..first + 64, check).expect("it fits");
    }
}

#[test]
fn a_cancelled_sequence_frees_its_pages_and_leaves_the_others_alone() {
    let prompt = golden().remove(2).tokens;
    let mut engine = build(2, 64, 2);
    let core = &mut engine.core();
    let kept = core.submit(request(&prompt, Sampling::greedy())).unwrap();
    let dropped = core.submit(request(&prompt, Sampling::greedy())).unwrap();
    core.step();
    core.cancel(dropped);
    let mut seen = Vec::new();
    while !core.is_idle() {
        seen.extend(core.step().into_iter().map(|event| event.unwrap()));
    }
    assert!(seen.iter().all(|event| event.sequence == kept));
    assert_eq!(seen.len(), 15);
    let stats = core.cache_stats();
    assert_eq!(stats.pages, stats.cached_pages);
}

#[test]
fn requests_beyond_the_limits_are_refused_with_the_numbers() {
    let mut engine = build(1, 64, 1);
    let core = &mut engine.core();
    let mut check = |change: fn(&mut Request), part: &str| {
        let mut request = request(&[1, 2, 3], Sampling::greedy());
        change(&mut request);
        let message = core.submit(request).unwrap_err().to_string();
        assert!(message.contains(part), "{message}");
    };
    check(|r| r.prompt.clear(), "empty");
    check(|r| r.prompt = vec![49_152], "49152");
    check(|r| r.prompt = vec![1; 1024], "1024");
    check(|r| r.max_tokens = Some(0), "max_tokens");
    check(|r| r.max_tokens = Some(1022), "context of 1024");
    check(|r| r.max_tokens = Some(usize::MAX), "max_tokens");
    check(|r| r.sampling.temperature = f32::NAN, "temperature");
    assert!(core.is_idle());
}

#[test]
fn a_request_with_an_adapter_that_is_not_loaded_is_refused() {
    let mut engine = build(1, 128, 2);
    let adapter = Some(HeldAdapter::new(AdapterId([1; 32]), true, None, std::sync::Arc::new(())));
    let refused = engine.core().submit(Request { adapter: adapter.clone(), ..request(&[1, 2, 3], Sampling::greedy()) });
    assert_eq!(refused, Err(SubmitError::NoSuchAdapter));
    let request = ruvllm_runtime::Request { adapter, ..ruvllm_runtime::Request::new(Prompt::Tokens(vec![1, 2, 3])) };
    let message = engine.generate(request).expect_err("there are none").to_string();
    assert!(message.contains("adapter") && message.contains("load it first"), "{message}");
}
