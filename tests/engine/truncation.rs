//! Nothing is left out of a prompt unasked, and what is left out is told.

use crate::support::smollm2;
use ruvllm_runtime::{CancellationToken, Engine, GenerateError, Message, Prompt, Request, Sampling, Truncation};

fn request(prompt: Prompt, truncation: Truncation) -> Request {
    Request { max_tokens: Some(8), sampling: Sampling::greedy(), truncation, ..Request::new(prompt) }
}

#[test]
fn a_prompt_that_does_not_fit_is_refused_or_loses_its_oldest_part() {
    let engine = Engine::builder(smollm2()).context(Some(128)).build().expect("the default model loads");
    let turn = |i: usize| [Message::user(&format!("Tell me about number {i}.")), Message::assistant("It is a number.")];
    let mut messages = vec![Message::system("You like numbers.")];
    messages.extend((0..10).flat_map(turn));
    messages.push(Message::user("Which was the last one?"));
    let conversation = Prompt::Messages(messages.clone());
    let refused = engine.generate(request(conversation.clone(), Truncation::Refuse)).expect_err("it is too long");
    assert!(refused.to_string().contains("shorten the prompt"), "{refused}");

    let all = engine.encode(&conversation).expect("a sound conversation").len();
    let answer = engine.generate(request(conversation, Truncation::DropOldest)).expect("the rest fits");
    assert_eq!(answer.usage.truncated_tokens, all - answer.usage.prompt_tokens);
    assert!(answer.usage.prompt_tokens <= 120 && answer.usage.truncated_tokens > 0);
    // The same as if the messages had not been there: the first that is kept is a whole one.
    let rest = (1..messages.len()).map(|first| [&messages[..1], &messages[first..]].concat());
    let kept: Vec<_> = rest
        .filter(|rest| {
            let tokens = engine.encode(&Prompt::Messages(rest.clone())).expect("a sound conversation");
            tokens.len() == answer.usage.prompt_tokens
        })
        .collect();
    let alone = engine.generate(request(Prompt::Messages(kept[0].clone()), Truncation::Refuse)).expect("it fits");
    assert_eq!(alone.tokens, answer.tokens);

    let text = "one two three four five six seven eight nine ten ".repeat(20);
    let answer = engine.generate(request(Prompt::Text(text), Truncation::DropOldest)).expect("the rest fits");
    assert_eq!(answer.usage.prompt_tokens, 120);

    let long = Prompt::Messages(vec![Message::user(&"word ".repeat(200))]);
    let refused = engine.generate(request(long, Truncation::DropOldest)).expect_err("the last message stays");
    assert!(refused.to_string().contains("shorten the prompt"), "{refused}");
}

/// One message fewer would not do. With a try for each message this took minutes.
#[test]
fn of_a_long_conversation_as_much_is_kept_as_fits() {
    let engine = Engine::builder(smollm2()).context(Some(256)).build().expect("the default model loads");
    let mut messages = vec![Message::system("Be brief.")];
    messages.extend((0..8000).map(|i| Message::user(&format!("This is message number {i}."))));
    let prompt = Prompt::Messages(messages.clone());
    let answer = engine.generate(request(prompt, Truncation::DropOldest)).expect("the rest fits");
    let tokens = |kept: usize| {
        let rest = [&messages[..1], &messages[messages.len() - kept..]].concat();
        engine.encode(&Prompt::Messages(rest)).expect("a sound conversation").len()
    };
    let kept = (1..).find(|kept| tokens(kept + 1) > 248).expect("it is too long");
    assert_eq!(answer.usage.prompt_tokens, tokens(kept));
}

#[test]
fn what_nobody_waits_for_is_not_prepared() {
    let engine = Engine::builder(smollm2()).context(Some(128)).build().expect("the default model loads");
    let patience = CancellationToken::default();
    patience.cancel();
    let asked = vec![request(Prompt::Text("word ".repeat(1000)), Truncation::DropOldest)];
    assert!(matches!(engine.streams(asked, &patience), Err(GenerateError::Abandoned)));
}

/// Encoding would take its time, and more than that where several answers are wanted.
#[test]
fn a_prompt_whose_length_alone_tells_that_it_is_too_long_is_refused_before_it_is_encoded() {
    let engine = Engine::builder(smollm2()).context(Some(128)).build().expect("the default model loads");
    let text = "word ".repeat(1_000_000);
    for prompt in [Prompt::Text(text.clone()), Prompt::Messages(vec![Message::user(&text)])] {
        let refused = engine.generate(request(prompt, Truncation::Refuse));
        assert!(matches!(refused, Err(GenerateError::PromptTooLarge { context: 128, .. })), "{refused:?}");
    }
}

#[test]
fn several_answers_to_one_prompt_differ_in_their_seeds_only() {
    let engine = Engine::builder(smollm2()).context(Some(128)).sequences(3).build().expect("the default model loads");
    let prompt = || Prompt::Text("Once upon a time".to_owned());
    let sampling = |seed| Sampling { seed, temperature: 1.5, ..Sampling::default() };
    let asked = Request { choices: 3, sampling: sampling(7), ..request(prompt(), Truncation::Refuse) };
    let together = engine.streams(vec![asked], &CancellationToken::default()).expect("three answers");
    for (choice, mut stream) in together.into_iter().enumerate() {
        (&mut stream).for_each(|piece| drop(piece.expect("a piece")));
        let alone = Request { sampling: sampling(7 + choice as u64), ..request(prompt(), Truncation::Refuse) };
        assert_eq!(stream.response().tokens, engine.generate(alone).expect("an answer").tokens);
    }
}
