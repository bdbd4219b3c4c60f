//! Prints digests of what a build computes for the 24 golden prompts, so that two builds can be compared bit by bit:
//! `benches/outputs/compare OLD NEW` does. Which kernels run is chosen by `RUVLLM_KERNELS`.
//!
//! One line for each KV format, way of running and prompt. Greedy answers carry the log-probabilities of the 20 likeliest
//! tokens, which depend on every logit of their row.

#[path = "../../../tests/support/mod.rs"]
mod support;

use blake3::Hasher;
use ruvllm_engine::{Event, PrefixUse, Request, Sampling, Speculation};
use ruvllm_runtime::{Engine, KvChoice};
use support::{Golden, golden, run_together, smollm2};

/// The last of them reaches its coldest tier within the longest prompts.
const FORMATS: [&str; 4] = ["f16", "q8", "auto", "f16:64,q8:256,q8/q4"];

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut count = |default| {
        arguments.next().map_or(default, |count| count.parse().expect("usage: outputs [TOKENS [PROMPT_TOKENS]]"))
    };
    let (answer_tokens, prompt_tokens) = (count(24), count(usize::MAX));
    for format in FORMATS {
        let mut prompts = golden();
        prompts.iter_mut().for_each(|prompt| prompt.tokens.truncate(prompt_tokens));
        let mut engine = build(format);
        logits(&mut engine, format, &prompts);
        let ways = [("plain", Speculation::Off, PrefixUse::OFF), ("speculation", Speculation::On, PrefixUse::OFF)];
        for (way, speculation, prefix_use) in ways {
            let requests = requests(&prompts, answer_tokens, speculation, prefix_use);
            for (prompt, request) in prompts.iter().zip(&requests) {
                let events = run_together(&mut engine, std::slice::from_ref(request));
                report(format, &format!("{way} alone"), prompt, &events[0]);
            }
            batch(&mut engine, format, &format!("{way} batch"), &prompts, &requests);
        }
        // The first time fills the cache, the second finds all of it.
        let requests = requests(&prompts, answer_tokens, Speculation::Auto, PrefixUse::default());
        for way in ["cold cache", "warm cache"] {
            batch(&mut engine, format, way, &prompts, &requests);
        }
    }
}

fn build(format: &str) -> Engine {
    let choice: KvChoice = format.parse().expect("a KV format");
    let builder = Engine::builder(smollm2()).context(Some(1024)).sequences(8).batch_rows(64);
    builder.threads(Some(2)).kv(choice).build().expect("the default model loads")
}

fn requests(prompts: &[Golden], answer_tokens: usize, speculation: Speculation, prefix_use: PrefixUse) -> Vec<Request> {
    let sampling = Sampling { top_logprobs: Some(20), ..Sampling::greedy() };
    let request = |prompt: &Golden| Request {
        sampling: sampling.clone(),
        max_tokens: Some(answer_tokens),
        speculation,
        prefix_use,
        ..Request::new(prompt.tokens.clone())
    };
    prompts.iter().map(request).collect()
}

/// Every logit after every token of each prompt.
fn logits(engine: &mut Engine, format: &str, prompts: &[Golden]) {
    for prompt in prompts {
        let mut digest = Hasher::new();
        let hash = |_, logits: &[f32]| {
            logits.iter().for_each(|logit| {
                digest.update(&logit.to_bits().to_le_bytes());
            })
        };
        engine.core().evaluate(&prompt.tokens, 0..prompt.tokens.len(), hash).expect("it fits");
        println!("{format} | logits | {} | {}", prompt.name, hex(digest));
    }
}

fn batch(engine: &mut Engine, format: &str, way: &str, prompts: &[Golden], requests: &[Request]) {
    for (prompt, events) in prompts.iter().zip(run_together(engine, requests)) {
        report(format, way, prompt, &events);
    }
}

fn report(format: &str, way: &str, prompt: &Golden, events: &[Event]) {
    let mut digest = Hasher::new();
    for event in events {
        let (logprob, top) = event.sampled.logprobs.as_ref().expect("they were asked for");
        digest.update(&logprob.to_bits().to_le_bytes());
        for other in top {
            digest.update(&other.token.to_le_bytes());
            digest.update(&other.logprob.to_bits().to_le_bytes());
        }
    }
    let tokens: Vec<String> = events.iter().map(|event| event.sampled.token.to_string()).collect();
    println!("{format} | {way} | {} | {} {}", prompt.name, tokens.join(" "), hex(digest));
}

fn hex(digest: Hasher) -> String {
    digest.finalize().to_hex()[..16].to_owned()
}
