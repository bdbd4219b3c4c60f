//! Requests with a memory, from the runtime's API: their sessions continue, and what cannot be a session is refused.

use std::sync::Arc;

use crate::support::smollm2;
use ruvllm_memory::{Memory, MemoryOptions};
use ruvllm_runtime::{
    CancellationToken, Engine, Message, Prompt, Request, RequestError, RequestIdentity, RequestRecorder, Response,
    Sampling,
};

fn request(text: &str) -> Request {
    Request {
        max_tokens: Some(8),
        sampling: Sampling::greedy(),
        session: Some("tulips".to_owned()),
        ..Request::new(Prompt::Messages(vec![Message::user(text)]))
    }
}

fn ask(engine: &Engine, recorder: &RequestRecorder, request: Request, model: &str) -> Result<Response, RequestError> {
    let identity = RequestIdentity { request: "request-1".to_owned(), model: model.to_owned(), ..Default::default() };
    let cancellation = CancellationToken::default();
    let mut streams = engine.recorded_streams(recorder, vec![request], &identity, &cancellation)?;
    let mut stream = streams.pop().expect("a stream");
    for piece in &mut stream {
        piece?;
    }
    Ok(stream.into_response())
}

#[test]
fn a_recorded_request_continues_its_session() {
    let folder = tempfile::tempdir().expect("a folder");
    let memory = Memory::open(MemoryOptions::in_folder(folder.path())).expect("a memory");
    let recorder = RequestRecorder::start(Arc::new(memory), None, false).expect("it starts");
    let builder = Engine::builder(smollm2()).context(Some(512)).keep_hidden_states(recorder.uses_hidden_states());
    let engine = builder.build().expect("the default model loads");
    recorder.prepare(&engine, "smollm2");

    let first = ask(&engine, &recorder, request("I like tulips."), "smollm2").expect("an answer");
    assert!(first.embeddings.prompt.is_some(), "hidden states are stored");
    let second = ask(&engine, &recorder, request("What do I like?"), "smollm2").expect("an answer");
    assert!(second.usage.prompt_tokens > first.usage.prompt_tokens + first.usage.completion_tokens);
    while !recorder.recorder().flush() {}
    let session = recorder.recorder().session("", "tulips").expect("readable").expect("stored");
    let messages: Vec<Message> = session.messages.iter().filter_map(Message::from_json).collect();
    let expected = ["I like tulips.", &first.text, "What do I like?", &second.text];
    assert_eq!(messages.iter().map(|message| &*message.content).collect::<Vec<_>>(), expected);
    assert!(recorder.embed("flowers", Some(&engine)).is_ok());

    let other = ask(&engine, &recorder, request("And I?"), "qwen3").expect_err("another model's session");
    assert!(matches!(other, RequestError::OtherModel { .. }), "{other}");
    let several = ask(&engine, &recorder, Request { choices: 2, ..request("And I?") }, "smollm2");
    assert!(matches!(several, Err(RequestError::NotASession)));
}
