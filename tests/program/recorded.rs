//! Requests with a memory, from the runtime's API: their sessions continue, what cannot be a session is refused, and what is
//! kept to learn from is what the model read and wrote.

use std::sync::Arc;

use crate::support::smollm2;
use ruvllm_memory::{Annotation, ExampleQuery, Feedback, Memory, MemoryOptions, Said, TrajectoryPrompt};
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
    ask_as(engine, recorder, request, &identity)
}

fn ask_as(
    engine: &Engine,
    recorder: &RequestRecorder,
    request: Request,
    identity: &RequestIdentity,
) -> Result<Response, RequestError> {
    let cancellation = CancellationToken::default();
    let mut streams = engine.recorded_streams(recorder, vec![request], identity, &cancellation)?;
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

#[test]
fn a_trajectory_has_the_tokens_that_the_model_read_and_sampled() {
    let folder = tempfile::tempdir().expect("a folder");
    let memory = Memory::open(MemoryOptions::in_folder(folder.path())).expect("a memory");
    let recorder = RequestRecorder::start(Arc::new(memory), None, false).expect("it starts");
    let engine = Engine::builder(smollm2()).context(Some(512)).build().expect("the default model loads");
    let identity = |request: &str, learns| RequestIdentity {
        request: request.to_owned(),
        response: Some(format!("chatcmpl-{request}")),
        user: Some("ada".to_owned()),
        model: "smollm2".to_owned(),
        learns,
        ..Default::default()
    };
    let asked = Request { session: None, ..request("Name a flower.") };
    let answer = ask_as(&engine, &recorder, asked.clone(), &identity("kept", true)).expect("an answer");
    ask_as(&engine, &recorder, asked.clone(), &identity("not kept", false)).expect("an answer");
    for about in ["kept", "not kept"] {
        let known = recorder.recorder().recent_request("", &format!("chatcmpl-{about}")).expect("known at once");
        assert_eq!((known.request.as_str(), known.keeps_text), (about, about == "kept"));
        assert!(recorder.recorder().annotate(Annotation {
            request: "feedback".to_owned(),
            at_ms: ruvllm_memory::now_ms(),
            tenant: String::new(),
            about: Some(about.to_owned()),
            user: None,
            model: "smollm2".to_owned(),
            said: Said::Feedback(Feedback { score: Some(1.0), ..Feedback::default() }),
        }));
    }
    while !recorder.recorder().flush() {}
    let mut kept = Vec::new();
    let each = &mut |example: ruvllm_memory::Example| {
        kept.push(example.trajectory);
        Ok(())
    };
    recorder.memory().learning().examples(&ExampleQuery::default(), each).expect("readable");
    let [kept] = &kept[..] else { panic!("{kept:?}") };
    assert_eq!(kept.prompt_tokens, engine.encode(&asked.prompt).expect("it is encoded"));
    assert_eq!(kept.answer_tokens, answer.tokens);
    assert_eq!(kept.answer["content"].as_str(), Some(answer.text.as_str()));
    let TrajectoryPrompt::Messages(messages) = &kept.prompt else { panic!("{kept:?}") };
    assert_eq!((messages.len(), messages[0]["content"].as_str()), (1, Some("Name a flower.")));
    assert_eq!(
        (kept.user.as_deref(), kept.model_digest.len(), &kept.sampling["temperature"]),
        (Some("ada"), 64, &0.0.into())
    );
}
