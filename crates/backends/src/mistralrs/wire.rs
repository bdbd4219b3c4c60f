//! The part of OpenAI's API that mistral.rs is asked by: a completion of a text, as events.

use ruvllm_runner::TokenChoice;
use serde::Deserialize;
use serde_json::{Value, json};

/// Characters of a message of mistral.rs that are passed on.
const MESSAGE_CHARS_MAX: usize = 400;

/// What an event adds to an answer.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Chunk {
    pub text: String,
    pub end: Option<End>,
}

/// Why an answer has ended.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum End {
    /// The model ended it.
    Stop,
    /// In the words of mistral.rs.
    Other(String),
}

/// Returns the body of a request for the text that follows `prompt`.
pub(super) fn request(prompt: &str, max_tokens: usize, choice: &TokenChoice) -> Value {
    let TokenChoice { temperature, top_k, top_p, min_p, .. } = *choice;
    let mut body = json!({
        "model": "default",
        "prompt": prompt,
        "max_tokens": max_tokens,
        "stream": true,
        // Not the likeliest tokens, but the bytes of the chosen one.
        "logprobs": 0,
        "temperature": decimal(temperature),
        "top_p": decimal(top_p),
        "min_p": decimal(min_p),
    });
    let penalties = [
        ("repetition_penalty", choice.repetition_penalty, 1.0),
        ("presence_penalty", choice.presence_penalty, 0.0),
        ("frequency_penalty", choice.frequency_penalty, 0.0),
    ];
    let fields = body.as_object_mut().expect("it is an object");
    if top_k > 0 {
        fields.insert("top_k".to_owned(), json!(top_k));
    }
    for (name, value, off) in penalties {
        if value != off {
            fields.insert(name.to_owned(), decimal(value));
        }
    }
    body
}

/// Returns a number as people write it: 0.8, not 0.800000011920929.
fn decimal(value: f32) -> Value {
    value.to_string().parse::<f64>().map_or(Value::Null, |value| json!(value))
}

#[derive(Deserialize)]
struct Event {
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    text: String,
    logprobs: Option<Logprob>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Logprob {
    bytes: Option<Vec<u8>>,
}

/// Reads a line of a stream of events. `None` is one that says nothing; an error is what mistral.rs says went wrong.
pub(super) fn read_line(line: &str, is_first: bool) -> Result<Option<Chunk>, String> {
    let Some(data) = line.strip_prefix("data:").map(str::trim).filter(|data| *data != "[DONE]") else {
        return Ok(None);
    };
    // Errors come as plain text, or as an object with a message.
    let event: Event = serde_json::from_str(data).map_err(|_| message(data))?;
    let Some(choice) = event.choices.into_iter().next() else { return Ok(None) };
    let end = choice.finish_reason.map(|reason| match &*reason {
        "stop" => End::Stop,
        _ => End::Other(reason),
    });
    let whole = choice.logprobs.and_then(|one| String::from_utf8(one.bytes?).ok());
    // White space at the beginning of an answer is left out of its text; the first token still has it.
    let text = match whole.filter(|whole| is_first && end != Some(End::Stop) && whole.trim_start() == choice.text) {
        Some(whole) => whole,
        None => choice.text,
    };
    Ok(Some(Chunk { text, end }))
}

/// Returns what an error says.
pub(super) fn message(text: &str) -> String {
    let value: Option<Value> = serde_json::from_str(text).ok();
    let found = value.as_ref().and_then(|value| value["message"].as_str().or(value["error"]["message"].as_str()));
    let found = found.unwrap_or(text).trim();
    if found.is_empty() { "no reason given".to_owned() } else { found.chars().take(MESSAGE_CHARS_MAX).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(text: &str, end: Option<End>) -> Result<Option<Chunk>, String> {
        Ok(Some(Chunk { text: text.to_owned(), end }))
    }

    #[test]
    fn events_become_chunks() {
        let event = |text: &str, end: &str, bytes: &str| {
            let logprobs = format!(r#"{{"token":"x","logprob":0.0,"top_logprobs":[],"bytes":{bytes}}}"#);
            format!(
                r#"data: {{"choices":[{{"index":0,"text":"{text}","finish_reason":{end},"logprobs":{logprobs}}}]}}"#
            )
        };
        assert_eq!(read_line(&event("Paris", "null", "[32,80,97,114,105,115]"), true), chunk(" Paris", None));
        assert_eq!(read_line(&event("Paris", "null", "[32,80,97,114,105,115]"), false), chunk("Paris", None));
        assert_eq!(read_line(&event("", "\"stop\"", "[60,47,115,62]"), true), chunk("", Some(End::Stop)));
        let full = End::Other("length".to_owned());
        assert_eq!(read_line(&event("a", "\"length\"", "null"), false), chunk("a", Some(full)));
        for nothing in ["", ": still here", "data: [DONE]", r#"data: {"choices":[]}"#] {
            assert_eq!(read_line(nothing, false), Ok(None));
        }
        assert_eq!(read_line("data: too long for me", false), Err("too long for me".to_owned()));
        assert_eq!(read_line(r#"data: {"message":"no"}"#, false), Err("no".to_owned()));
    }

    #[test]
    fn a_request_says_what_differs_from_nothing() {
        let plain = TokenChoice {
            temperature: 0.8,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
        };
        let body = request("Hi", 7, &plain);
        assert_eq!(
            (&body["temperature"], &body["max_tokens"], &body["prompt"]),
            (&json!(0.8), &json!(7), &json!("Hi"))
        );
        assert!(body.get("top_k").is_none() && body.get("repetition_penalty").is_none());
        let body = request("Hi", 7, &TokenChoice { top_k: 3, repetition_penalty: 1.1, ..plain });
        assert_eq!((&body["top_k"], &body["repetition_penalty"]), (&json!(3), &json!(1.1)));
    }
}
