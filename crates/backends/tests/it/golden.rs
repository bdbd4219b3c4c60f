//! The vectors of real models against those of sentence-transformers on PyTorch. `golden/generate.py` wrote them, one text
//! at a time; here all are computed together, so padding is checked as well.

use std::path::PathBuf;

use ruvllm_backends::Encoder;
use ruvllm_runtime::{EmbedInput, EmbedRequest, Embedder, Embeddings, TooLong};
use ruvllm_store::{Store, default_home};
use serde_json::Value;

/// The folder of a model, fetched on first use into the store that all tests share.
fn model(name: &str) -> PathBuf {
    let store = Store::open(&default_home().expect("a home folder"));
    store.ensure(name, &mut |_| {}).expect("the model can be fetched").path
}

fn encode(encoder: &Encoder, texts: &[&str]) -> Embeddings {
    let inputs = texts.iter().map(|text| EmbedInput::Text((*text).to_owned())).collect();
    encoder.embed(&EmbedRequest { inputs, too_long: TooLong::CutEnd, ..EmbedRequest::default() }).expect("vectors")
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

fn check_golden(name: &str, golden: &str, tokens_max: usize) {
    let encoder = Encoder::open(&model(name)).expect("the model loads");
    let golden: Vec<Value> = serde_json::from_str(golden).expect("the references are JSON");
    let texts: Vec<&str> = golden.iter().map(|entry| entry["text"].as_str().expect("a text")).collect();
    let ours = encode(&encoder, &texts);
    for (index, entry) in golden.iter().enumerate() {
        let expected: Vec<f32> = serde_json::from_value(entry["vector"].clone()).expect("numbers");
        assert_eq!(ours.tokens[index] as u64, entry["tokens"].as_u64().expect("a count"), "{:?}", texts[index]);
        let similarity = cosine(&ours.vectors[index], &expected);
        assert!(similarity > 0.99999, "{similarity} for {:?}", texts[index]);
        let alone = encode(&encoder, &texts[index..=index]);
        assert!(cosine(&alone.vectors[0], &ours.vectors[index]) > 0.999999, "alone: {:?}", texts[index]);
    }
    assert!(ours.cut_tokens > 0, "the last text is too long");
    assert_eq!(encoder.context(), tokens_max);
    assert_eq!(encoder.dimensions(), ours.vectors[0].len());
}

#[test]
fn minilm_computes_what_pytorch_computes() {
    check_golden("minilm", include_str!("../golden/minilm.json"), 256);
}

/// 438 MB, so only on request.
#[test]
fn mpnet_computes_what_pytorch_computes() {
    if std::env::var_os("RUVLLM_TEST_LARGE").is_none() {
        eprintln!("skipped: set RUVLLM_TEST_LARGE=1 to fetch 438 MB");
        return;
    }
    check_golden("mpnet", include_str!("../golden/mpnet.json"), 384);
}

#[test]
fn similar_sentences_are_nearer_than_others() {
    let encoder = Encoder::open(&model("minilm")).expect("the model loads");
    let texts = ["How do I bake bread?", "What is a good recipe for a loaf?", "The engine of my car makes a noise."];
    let vectors = encode(&encoder, &texts).vectors;
    let (near, far) = (cosine(&vectors[0], &vectors[1]), cosine(&vectors[0], &vectors[2]));
    assert!(near > 0.5 && far < 0.2, "{near} and {far}");
    let length: f32 = vectors[0].iter().map(|value| value * value).sum();
    assert!((length - 1.0).abs() < 1e-5);
}
