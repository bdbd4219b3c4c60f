//! What a router sees of a request.

use ruvllm_learning::routing::{AskedText, Features};

use crate::{Message, Prompt, Request};

/// Returns the features of a request. `None` for token ids, which mean something to one model only.
pub fn features_of(request: &Request) -> Option<Features> {
    let messages = match &request.prompt {
        Prompt::Messages(messages) => &messages[..],
        Prompt::Text(_) | Prompt::Tokens(_) => &[],
    };
    let text = match &request.prompt {
        Prompt::Messages(messages) => {
            let asked = messages.iter().rfind(|message| message.role == "user").or(messages.last());
            asked.map_or("", |message| &message.content)
        }
        Prompt::Text(text) => text,
        Prompt::Tokens(_) => return None,
    };
    let all: usize = messages.iter().map(|message: &Message| message.content.len()).sum();
    Some(Features::of(&AskedText {
        text,
        other_bytes: all.saturating_sub(text.len()),
        messages: messages.len(),
        has_system: messages.iter().any(|message| message.role == "system"),
        tools: request.tools.offered().len(),
        has_format: request.output_format.is_some(),
        max_tokens: request.max_tokens,
    }))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn it_is_the_last_question_that_counts_and_a_megabyte_takes_no_time() {
        let of = |messages: Vec<Message>| features_of(&Request::new(Prompt::Messages(messages))).unwrap();
        let asked = of(vec![Message::user("A?"), Message::assistant("B."), Message::user("C?")]);
        assert_eq!(asked, of(vec![Message::user("X?"), Message::assistant("Y."), Message::user("C?")]));
        assert_ne!(asked, of(vec![Message::user("C?"), Message::assistant("B."), Message::user("A?")]));
        assert_eq!(features_of(&Request::new(Prompt::Tokens(vec![1]))), None);
        let long = vec![Message::user(&"word ".repeat(200_000))];
        let started = Instant::now();
        of(long);
        // Two hundred times what it takes: it must not depend on the length.
        assert!(started.elapsed() < Duration::from_millis(200), "{:?}", started.elapsed());
    }
}
