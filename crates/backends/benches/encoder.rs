//! How quick the embedding model is: one short text, and many of mixed length. `cargo bench -p ruvllm-backends`

use std::time::{Duration, Instant};

use ruvllm_backends::Encoder;
use ruvllm_runtime::{EmbedInput, EmbedRequest, Embedder};
use ruvllm_store::{Store, default_home};

const RUNS: usize = 30;

fn main() {
    let name = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or("minilm".to_owned());
    let store = Store::open(&default_home().expect("a home folder"));
    let file = store.ensure(&name, &mut |_| {}).expect("the model can be fetched");
    let started = Instant::now();
    let encoder = Encoder::open(&file.path).expect("it loads");
    println!("{name}: loaded in {:.0} ms, {} numbers in a vector", millis(started.elapsed()), encoder.dimensions());
    report(&encoder, "one short text", &["How is the weather today?".to_owned()]);
    let sentence = "The quick brown fox jumps over the lazy dog, and nobody knows why it does so. ";
    report(&encoder, "one long text", &[sentence.repeat(12)]);
    report(&encoder, "64 short texts", &(0..64).map(|text| format!("This is sentence {text}.")).collect::<Vec<_>>());
    report(&encoder, "64 of 20 to 220 tokens", &(0..64).map(|text| sentence.repeat(1 + text % 11)).collect::<Vec<_>>());
}

fn report(encoder: &Encoder, what: &str, texts: &[String]) {
    let inputs = texts.iter().cloned().map(EmbedInput::Text).collect();
    let request = EmbedRequest { inputs, ..EmbedRequest::default() };
    let tokens: usize = encoder.embed(&request).expect("vectors").tokens.iter().sum();
    let once = || {
        let started = Instant::now();
        encoder.embed(&request).expect("vectors");
        started.elapsed()
    };
    let mut times: Vec<Duration> = (0..RUNS).map(|_| once()).collect();
    times.sort();
    let median = times[RUNS / 2].as_secs_f64();
    println!(
        "{what:<24} {:8.2} ms (best {:.2}), {:7.0} texts/s, {:7.0} tokens/s",
        median * 1e3,
        millis(times[0]),
        texts.len() as f64 / median,
        tokens as f64 / median
    );
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
