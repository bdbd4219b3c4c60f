//! Nothing is left out of a prompt unasked, and what is left out is told.

mod support;

use ruvllm_runtime::{Engine, Message, Prompt, Request, Sampling, Truncation};
use support::smollm2;

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
