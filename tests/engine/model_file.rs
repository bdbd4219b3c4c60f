//! What becomes of a model file while it is served.

use crate::support;
use ruvllm_runtime::{Engine, Message, Prompt, Request};

#[test]
fn a_model_file_that_is_cut_short_while_it_is_served_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join("copy.gguf");
    std::fs::copy(support::smollm2(), &copy).expect("room for a copy");
    let engine = Engine::builder(&copy).context(Some(256)).build().expect("the copy loads");
    let answer = || {
        let request = Request::new(Prompt::Messages(vec![Message::user("Why is the sky blue?")]));
        engine.generate(Request { max_tokens: Some(8), ..request }).expect("an answer").tokens
    };
    let before = answer();
    let file = std::fs::File::options().write(true).open(&copy).expect("the copy");
    file.set_len(1 << 20).expect("it is cut short");
    assert_eq!(answer(), before);
}
