//! Requests that are wrong or cancelled, with the real model.

use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use ruvllm_backends::Encoder;
use ruvllm_runtime::{EmbedError, EmbedInput, EmbedRequest, Embedder, TooLong};
use ruvllm_store::{Store, default_home};

fn encoder() -> &'static Encoder {
    static ENCODER: OnceLock<Encoder> = OnceLock::new();
    ENCODER.get_or_init(|| {
        let store = Store::open(&default_home().expect("a home folder"));
        let file = store.ensure("minilm", &mut |_| {}).expect("the model can be fetched");
        Encoder::open(&file.path).expect("it loads")
    })
}

fn request(inputs: Vec<EmbedInput>) -> EmbedRequest {
    EmbedRequest { inputs, ..EmbedRequest::default() }
}

fn text(text: &str) -> EmbedInput {
    EmbedInput::Text(text.to_owned())
}

#[test]
fn a_text_that_is_too_long_is_refused_by_its_number_or_cut_on_demand() {
    let long = "word ".repeat(300);
    let mut request = request(vec![text("short"), text(&long)]);
    let error = encoder().embed(&request).unwrap_err();
    assert_eq!(error, EmbedError::TooLong { index: 1, tokens: 302, tokens_max: 256 });
    request.too_long = TooLong::CutEnd;
    let embeddings = encoder().embed(&request).unwrap();
    assert_eq!((embeddings.tokens, embeddings.cut_tokens), (vec![3, 256], 46));
}

#[test]
fn tokens_are_taken_as_they_are_and_checked() {
    let by_text = encoder().embed(&request(vec![text("hello world")])).unwrap();
    let by_tokens = encoder().embed(&request(vec![EmbedInput::Tokens(vec![101, 7592, 2088, 102])])).unwrap();
    assert_eq!(by_text, by_tokens);
    let error = encoder().embed(&request(vec![EmbedInput::Tokens(vec![30_522])])).unwrap_err();
    assert_eq!(error, EmbedError::NoSuchToken { index: 0, token: 30_522, vocabulary: 30_522 });
    let error = encoder().embed(&request(vec![EmbedInput::Tokens(vec![5; 257])])).unwrap_err();
    assert_eq!(error, EmbedError::TooLong { index: 0, tokens: 257, tokens_max: 256 });
}

#[test]
fn empty_inputs_are_refused_and_no_inputs_give_no_vectors() {
    for empty in [text(""), EmbedInput::Tokens(Vec::new())] {
        assert_eq!(encoder().embed(&request(vec![text("a"), empty])).unwrap_err(), EmbedError::Empty { index: 1 });
    }
    assert!(encoder().embed(&request(Vec::new())).unwrap().vectors.is_empty());
}

#[test]
fn a_cancelled_request_is_not_computed_to_its_end() {
    let request = request(vec![text(&"word ".repeat(200)); 2000]);
    let cancellation = request.cancellation.clone();
    thread::scope(|scope| {
        let computing = scope.spawn(|| encoder().embed(&request));
        thread::sleep(Duration::from_millis(300));
        cancellation.cancel();
        let error = computing.join().unwrap().unwrap_err();
        assert!(matches!(error, EmbedError::Abandoned { tokens } if tokens < 2000 * 200), "{error:?}");
    });
}
