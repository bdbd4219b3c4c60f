//! The contract of `Embedder`: every implementation passes the same checks.

use crate::support::{minilm, smollm2};
use ruvllm_backends::Encoder;
use ruvllm_runtime::{CancellationToken, EmbedError, EmbedInput, EmbedRequest, Embedder, Embeddings, Engine, TooLong};

/// An ordinary token in the vocabulary of all models here.
const TOKEN: u32 = 2000;

fn text(text: &str) -> EmbedInput {
    EmbedInput::Text(text.to_owned())
}

fn request(inputs: Vec<EmbedInput>, too_long: TooLong) -> EmbedRequest {
    EmbedRequest { inputs, too_long, ..EmbedRequest::default() }
}

fn embed(embedder: &dyn Embedder, inputs: Vec<EmbedInput>) -> Embeddings {
    embedder.embed(&request(inputs, TooLong::Refuse)).expect("vectors")
}

fn embed_cut(embedder: &dyn Embedder, inputs: Vec<EmbedInput>) -> Embeddings {
    embedder.embed(&request(inputs, TooLong::CutEnd)).expect("vectors")
}

fn refusal(embedder: &dyn Embedder, inputs: Vec<EmbedInput>) -> EmbedError {
    embedder.embed(&request(inputs, TooLong::Refuse)).expect_err("a refusal")
}

/// Batches may be computed in another order than single texts.
fn assert_same(a: &[f32], b: &[f32], what: &str) {
    let product: f32 = a.iter().zip(b).map(|(a, b)| a * b).sum();
    assert!(product > 0.9999, "{what}: {product}");
}

fn check_contract(embedder: &dyn Embedder) {
    check_vectors(embedder);
    check_order(embedder);
    check_empty(embedder);
    check_tokens(embedder);
    check_refusal_of_long_texts(embedder);
    check_cut_end(embedder);
    check_cancellation(embedder);
}

fn check_vectors(embedder: &dyn Embedder) {
    let Embeddings { vectors, tokens, cut_tokens } = embed(embedder, vec![text("A cat sits on the mat."), text("x")]);
    assert_eq!((vectors.len(), tokens.len(), cut_tokens), (2, 2, 0));
    assert!(tokens[0] > tokens[1] && tokens[1] > 0, "{tokens:?}");
    for vector in vectors {
        assert_eq!(vector.len(), embedder.dimensions());
        let length: f32 = vector.iter().map(|x| x * x).sum();
        assert!((length - 1.0).abs() < 1e-4, "{length}");
    }
    assert_eq!(embed(embedder, Vec::new()), Embeddings::default());
}

fn check_order(embedder: &dyn Embedder) {
    let texts = ["short", "A text of some more words than the others.", "another short one", "Où est la gare ?"];
    let together = embed(embedder, texts.map(text).into());
    let mut backwards = embed(embedder, texts.iter().rev().map(|one| text(one)).collect());
    backwards.vectors.reverse();
    backwards.tokens.reverse();
    assert_eq!(together.tokens, backwards.tokens);
    for (index, one) in texts.iter().enumerate() {
        let alone = embed(embedder, vec![text(one)]);
        assert_eq!(alone.tokens[0], together.tokens[index]);
        assert_same(&alone.vectors[0], &together.vectors[index], one);
        assert_same(&backwards.vectors[index], &together.vectors[index], one);
    }
}

fn check_empty(embedder: &dyn Embedder) {
    for empty in [text(""), EmbedInput::Tokens(Vec::new())] {
        assert_eq!(refusal(embedder, vec![text("a"), empty]), EmbedError::Empty { index: 1 });
    }
}

fn check_tokens(embedder: &dyn Embedder) {
    let tokens_max = embedder.context();
    let tokens = |count: usize| EmbedInput::Tokens(vec![TOKEN; count]);
    assert_eq!(embed(embedder, vec![tokens(3), tokens(tokens_max)]).tokens, [3, tokens_max], "nothing is added");
    let error = refusal(embedder, vec![tokens(3), tokens(tokens_max + 1)]);
    assert_eq!(error, EmbedError::TooLong { index: 1, tokens: tokens_max + 1, tokens_max });
    let cut = embed_cut(embedder, vec![tokens(tokens_max + 5)]);
    assert_eq!((&*cut.tokens, cut.cut_tokens), (&[tokens_max][..], 5));
    let error = refusal(embedder, vec![text("a"), EmbedInput::Tokens(vec![TOKEN, u32::MAX])]);
    assert!(matches!(error, EmbedError::NoSuchToken { index: 1, token: u32::MAX, .. }), "{error:?}");
}

fn check_refusal_of_long_texts(embedder: &dyn Embedder) {
    let tokens_max = embedder.context();
    for words in [2 * tokens_max, 100 * tokens_max] {
        match refusal(embedder, vec![text("short"), text(&"word ".repeat(words))]) {
            EmbedError::TooLong { index: 1, tokens, tokens_max: max } => {
                assert!(tokens >= words && max == tokens_max, "{tokens} tokens, at most {max}");
            }
            error => panic!("{error:?}"),
        }
    }
}

/// What is cut makes no difference, what stays does, and results say how much was cut.
fn check_cut_end(embedder: &dyn Embedder) {
    let tokens_max = embedder.context();
    let long = |first: &str, last: &str| text(&format!("{first}{}", last.repeat(tokens_max)));
    let beginning = "The harbour was quiet. ".repeat(tokens_max);
    let ends = [long(&beginning, "fish "), long(&beginning, "taxes "), long("Interest rates. ", "taxes ")];
    let inputs = [&[text("short")][..], &ends].concat();
    let Embeddings { vectors, tokens, cut_tokens } = embed_cut(embedder, inputs);
    assert!(tokens[0] < tokens_max);
    assert_eq!(tokens[1..], [tokens_max; 3]);
    let whole = |input: &EmbedInput| match refusal(embedder, vec![input.clone()]) {
        EmbedError::TooLong { tokens, .. } => tokens,
        error => panic!("{error:?}"),
    };
    assert_eq!(cut_tokens, ends.iter().map(|end| whole(end) - tokens_max).sum::<usize>());
    assert_same(&vectors[1], &vectors[2], "texts that differ where they are cut");
    let product: f32 = vectors[1].iter().zip(&vectors[3]).map(|(a, b)| a * b).sum();
    assert!(product < 0.999, "texts that differ where they are read: {product}");
    assert_eq!(embed_cut(embedder, vec![text("short")]), embed(embedder, vec![text("short")]));
}

fn check_cancellation(embedder: &dyn Embedder) {
    let cancellation = CancellationToken::default();
    cancellation.cancel();
    let request = EmbedRequest { cancellation, ..request(vec![text("a")], TooLong::Refuse) };
    assert_eq!(embedder.embed(&request), Err(EmbedError::Abandoned { tokens: 0 }));
}

#[test]
fn a_sentence_encoder_keeps_the_contract() {
    check_contract(&Encoder::open(&minilm()).expect("the model loads"));
}

/// Its texts are messages in a chat template.
#[test]
fn a_generating_engine_keeps_the_contract() {
    let engine = Engine::builder(smollm2()).context(Some(96)).keep_hidden_states(true);
    check_contract(&engine.build().expect("the model loads"));
}
