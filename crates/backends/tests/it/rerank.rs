//! The scores of tiny random cross-encoders against those of transformers on PyTorch, written by `tests/golden/rerank.py` one
//! pair at a time. Here several are computed together, so padding is checked as well.

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use ruvllm_backends::{CrossEncoder, Encoder, EncoderFacts, LoadError, Purpose};
use ruvllm_runtime::{RerankError, RerankRequest, RerankScores, Reranker, TooLong};
use serde_json::{Value, json};

const CONTEXT: usize = 64;

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/rerank").join(name)
}

fn open(name: &str) -> CrossEncoder {
    CrossEncoder::open(&folder(name).join("model.safetensors")).expect("the model loads")
}

fn request(query: &str, documents: &[&str]) -> RerankRequest {
    RerankRequest {
        query: query.to_owned(),
        documents: documents.iter().map(|text| (*text).to_owned()).collect(),
        too_long: TooLong::CutEnd,
        ..RerankRequest::default()
    }
}

fn rerank(model: &CrossEncoder, query: &str, documents: &[&str]) -> RerankScores {
    model.rerank(&request(query, documents)).expect("scores")
}

fn check_golden(name: &str) {
    let model = open(name);
    let golden = std::fs::read_to_string(folder("scores.json")).expect("the references");
    let golden: Value = serde_json::from_str(&golden).expect("JSON");
    let cases = golden[name].as_array().expect("cases");
    let text = |case: &Value, field: &str| case[field].as_str().expect("a text").to_owned();
    let documents: Vec<String> = cases.iter().map(|case| text(case, "document")).collect();
    let documents: Vec<&str> = documents.iter().map(|text| &**text).collect();
    let mut difference_max: f64 = 0.0;
    for (index, case) in cases.iter().enumerate() {
        let query = text(case, "query");
        let (together, alone) = (rerank(&model, &query, &documents), rerank(&model, &query, &documents[index..=index]));
        assert_eq!(together.tokens[index] as u64, case["tokens"].as_u64().expect("a count"), "{name} {case}");
        for logit in [together.logits[index], alone.logits[0]] {
            let difference = (f64::from(logit) - case["logit"].as_f64().expect("a number")).abs();
            assert!(difference < 1e-4, "{name}: {logit} for {case}");
            difference_max = difference_max.max(difference);
        }
    }
    println!("{name}: the largest difference is {difference_max:e}");
}

#[test]
fn bert_computes_what_pytorch_computes() {
    check_golden("bert");
}

#[test]
fn roberta_computes_what_pytorch_computes() {
    check_golden("roberta");
}

#[test]
fn xlm_roberta_computes_what_pytorch_computes() {
    check_golden("xlm-roberta");
}

#[test]
fn mpnet_computes_what_pytorch_computes() {
    check_golden("mpnet");
}

#[test]
fn what_is_cut_is_counted_or_refused() {
    let model = open("bert");
    assert_eq!(model.context(), CONTEXT);
    let long = "ice ".repeat(500);
    let scores = rerank(&model, "ice", &["ice", &long]);
    assert_eq!(scores.tokens[1], CONTEXT);
    let (query, whole) = (scores.tokens[0] - 3, (scores.tokens[0] - 3) / 2 * 500);
    assert_eq!(scores.cut_tokens, [0, whole - (CONTEXT - 3 - query / 2)]);
    assert_eq!(scores.query_cut_tokens, 0);
    let both = rerank(&model, &long, &[&long]);
    assert_eq!((both.tokens[0], both.query_cut_tokens > 0), (CONTEXT, true));
    let refused = model.rerank(&RerankRequest { too_long: TooLong::Refuse, ..request("ice", &["ice", &long]) });
    assert!(matches!(refused, Err(RerankError::TooLong { index: 1, tokens_max: CONTEXT, .. })), "{refused:?}");
    let short = RerankRequest { document_tokens_max: Some(2), ..request("ice", &["ice", &long]) };
    let short = model.rerank(&RerankRequest { too_long: TooLong::Refuse, ..short }).expect("they fit");
    assert_eq!((short.tokens[1], short.cut_tokens[1]), (3 + query / 2 + 2, whole - 2));
}

#[test]
fn marks_of_the_model_in_a_text_are_text() {
    let scores = rerank(&open("bert"), "a", &["[SEP]", "[CLS] [PAD]", "b"]);
    assert!(scores.tokens[0] > scores.tokens[2] && scores.tokens[1] > scores.tokens[2], "{:?}", scores.tokens);
}

#[test]
fn empty_texts_are_refused_and_no_documents_have_no_scores() {
    let model = open("bert");
    assert_eq!(model.rerank(&request("", &["a"])), Err(RerankError::EmptyQuery));
    assert_eq!(model.rerank(&request("a", &["a", ""])), Err(RerankError::EmptyDocument { index: 1 }));
    assert_eq!(rerank(&model, "a", &[]), RerankScores::default());
}

#[test]
fn a_cancelled_request_is_not_computed_to_its_end() {
    let model = open("bert");
    let long = "ice ".repeat(60);
    let request = request("ice", &vec![&*long; 50_000]);
    let cancellation = request.cancellation.clone();
    thread::scope(|scope| {
        let computing = scope.spawn(|| model.rerank(&request));
        thread::sleep(Duration::from_millis(100));
        cancellation.cancel();
        let error = computing.join().expect("no panic").expect_err("it was cancelled");
        assert!(matches!(error, RerankError::Abandoned { tokens } if tokens < 50_000 * CONTEXT), "{error:?}");
    });
}

#[test]
fn models_of_the_other_kind_are_refused() {
    let path = folder("bert").join("model.safetensors");
    assert_eq!(EncoderFacts::of(&path).expect("facts").purpose, Purpose::Reranking);
    assert!(matches!(Encoder::open(&path), Err(LoadError::NotForEmbedding)));
    let embedder = changed(|config| {
        config["architectures"] = json!(["BertModel"]);
    });
    assert!(matches!(embedder, Err(LoadError::NotForReranking)), "{embedder:?}");
}

/// Opens the tiny BERT with another config.json.
fn changed(change: impl FnOnce(&mut Value)) -> Result<CrossEncoder, LoadError> {
    let copy = tempfile::tempdir().expect("a folder");
    for file in ["model.safetensors", "tokenizer.json", "tokenizer_config.json", "config.json"] {
        std::fs::copy(folder("bert").join(file), copy.path().join(file)).expect("copied");
    }
    let path = copy.path().join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).expect("read")).expect("JSON");
    change(&mut config);
    std::fs::write(path, config.to_string()).expect("written");
    CrossEncoder::open(&copy.path().join("model.safetensors"))
}

#[test]
fn what_does_not_fit_together_is_told_by_its_name() {
    changed(|_| {}).expect("the sound one loads");
    let several = changed(|config| config["id2label"] = json!({ "0": "no", "1": "yes" })).expect_err("two labels");
    assert!(several.to_string().contains("num_labels is 2"), "{several}");
    let unsaid = changed(|config| drop(config.as_object_mut().expect("an object").remove("id2label")));
    assert!(unsaid.expect_err("two labels").to_string().contains("num_labels"));
    let stated = changed(|config| {
        config.as_object_mut().expect("an object").remove("id2label");
        config["num_labels"] = json!(1);
    });
    stated.expect("one label");
    let one_segment = changed(|config| config["type_vocab_size"] = json!(1)).expect_err("another shape");
    assert!(one_segment.to_string().contains("token_type_embeddings"), "{one_segment}");
    let other = changed(|config| config["model_type"] = json!("deberta-v2")).expect_err("not supported");
    assert!(other.to_string().contains("model_type"), "{other}");
}
