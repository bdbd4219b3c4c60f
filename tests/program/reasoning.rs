//! Reasoning with a real model. Its own template knows none, so it gets one that does, and a budget that ends what it
//! would never end by itself.

use crate::server;
use crate::support;
use crate::support::smollm2;
use ruvllm_runtime::{
    Engine, FinishReason, Message, OutputFormat, Piece, Prompt, Request, Sampling, Speculation, Strictness, Tool,
    ToolChoice, Tools,
};
use serde_json::{Value, json};

const TEMPLATE: &str = include_str!("../data/reasoning.jinja");
const HARMONY: &str = include_str!("../data/harmony.jinja");
const BUDGET: usize = 12;

fn engine() -> Engine {
    engine_with(TEMPLATE)
}

fn engine_with(template: &str) -> Engine {
    let builder = Engine::builder(smollm2()).context(Some(1024)).sequences(4);
    builder.chat_template(Some(template.to_owned())).build().expect("the default model loads")
}

fn ask(text: &str) -> Request {
    Request {
        sampling: Sampling::greedy(),
        max_tokens: Some(300),
        reasoning_budget: Some(BUDGET),
        ..Request::new(Prompt::Messages(vec![Message::user(text)]))
    }
}

#[test]
fn reasoning_ends_with_its_budget_and_the_answer_follows() {
    let engine = engine();
    assert!(engine.reasons());
    for speculation in [Speculation::Off, Speculation::On] {
        // Without its end token it answers whatever it reasoned.
        let end = engine.tokenizer().end_of_generation().iter().map(|token| (*token, -100.0)).collect();
        let sampling = Sampling { logit_bias: end, ..Sampling::greedy() };
        let request = Request { speculation, sampling, max_tokens: Some(50), ..ask("Count from 1 to 20.") };
        let mut stream = engine.stream(request).expect("sound");
        let pieces: Vec<Piece> = (&mut stream).map(|piece| piece.expect("sound logits")).collect();
        let response = stream.into_response();
        assert!(!response.reasoning.is_empty() && !response.text.is_empty(), "{response:?}");
        assert!(!response.text.contains("think>") && !response.reasoning.contains("think>"), "{response:?}");
        let reasoned = response.usage.reasoning_tokens;
        assert!((BUDGET..BUDGET + 8).contains(&reasoned), "{reasoned} tokens with the marker");
        let of = |kind: fn(&Piece) -> Option<&str>| pieces.iter().filter_map(kind).collect::<String>();
        let reasoning = |piece: &Piece| matches!(piece, Piece::Reasoning(_));
        assert_eq!(of(|piece| if let Piece::Reasoning(text) = piece { Some(text) } else { None }), response.reasoning);
        assert_eq!(of(|piece| Some(piece.text())), response.text);
        let first_text = pieces.iter().position(|piece| !piece.text().is_empty()).expect("an answer");
        assert!(!pieces[first_text..].iter().any(reasoning), "nothing is reasoned behind the answer's beginning");
    }
}

#[test]
fn a_budget_makes_no_difference_before_it_is_used_up() {
    let engine = engine();
    let generous = engine.generate(Request { reasoning_budget: Some(900), ..ask("Hi") }).expect("sound");
    let limited = engine.generate(ask("Hi")).expect("sound");
    assert_eq!(generous.tokens[..BUDGET], limited.tokens[..BUDGET]);
    let unlimited = Request { reasoning_budget: None, max_tokens: Some(BUDGET), ..ask("Hi") };
    let unlimited = engine.generate(unlimited).expect("sound");
    assert!(limited.tokens.starts_with(&unlimited.tokens[..unlimited.tokens.len() - 1]));
}

#[test]
fn whoever_turns_it_off_gets_the_answer_only() {
    let mut request = ask("What is 2 + 2?");
    request.template_variables.insert("enable_thinking".to_owned(), false.into());
    let response = engine().generate(request).expect("sound");
    assert_eq!((response.reasoning.as_str(), response.usage.reasoning_tokens), ("", 0));
    assert!(!response.text.is_empty());
}

#[test]
fn structured_output_and_tool_calls_begin_behind_it() {
    let engine = engine();
    let schema = json!({"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"], "additionalProperties": false});
    for (sampling, speculation) in [
        (Sampling::greedy(), Speculation::On),
        (
            Sampling { temperature: 1.5, seed: 5, top_k: 0, top_p: 1.0, min_p: 0.0, ..Sampling::default() },
            Speculation::Off,
        ),
    ] {
        let request = Request { sampling, speculation, ..ask("Name a colour.") };
        let format = Some(OutputFormat::relaxed_schema(schema.clone()));
        let response = engine.generate(Request { output_format: format, ..request.clone() }).expect("sound");
        let value = serde_json::from_str::<Value>(&response.text).unwrap_or_else(|_| panic!("{response:?}"));
        assert!(["red", "blue"].contains(&value["colour"].as_str().unwrap_or_default()), "{value}");
        assert!(!response.reasoning.is_empty() && response.finish_reason == Some(FinishReason::Stop));

        let paint = Tool {
            name: "paint".into(),
            description: None,
            parameters: schema.clone(),
            strictness: Strictness::Relaxed,
        };
        let tools = Tools { definitions: vec![paint], choice: ToolChoice::Required, are_parallel: Some(false) };
        let response = engine.generate(Request { tools, ..request }).expect("sound");
        assert_eq!(response.tool_calls.len(), 1, "{response:?}");
        assert!(serde_json::from_str::<Value>(&response.tool_calls[0].arguments).is_ok(), "{response:?}");
        assert!(!response.reasoning.is_empty() && response.text.is_empty(), "{response:?}");
    }
}

/// The model does not know this format; whatever of it the grammar and the budget need is forced.
#[test]
fn harmony_channels_are_opened_and_closed_around_the_reasoning() {
    let engine = engine_with(HARMONY);
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["n"], "additionalProperties": false});
    for speculation in [Speculation::Off, Speculation::On] {
        let output_format = Some(OutputFormat::strict_schema(schema.clone()));
        let request = Request { output_format, speculation, ..ask("Name a number.") };
        let response = engine.generate(request).expect("sound");
        assert_eq!(response.finish_reason, Some(FinishReason::Stop), "{response:?}");
        let value = serde_json::from_str::<Value>(&response.text).unwrap_or_else(|_| panic!("{response:?}"));
        assert!((1..=9).contains(&value["n"].as_i64().expect("a number")), "{value}");
        assert!(!response.reasoning.is_empty() && !response.reasoning.contains("<|channel|>"), "{response:?}");
        let text = response.tokens.iter().flat_map(|token| engine.tokenizer().token_bytes(*token)).copied().collect();
        let text = String::from_utf8(text).expect("text");
        assert!(text.starts_with("<|channel|>analysis<|message|>"), "{text}");
        assert!(text.contains("<|end|><|start|>assistant<|channel|>final<|message|>{"), "{text}");
    }
    // What it reasoned in a turn before is shown to the model where its template looks for it.
    let said = Message { reasoning: Some("Seven is prime.".to_owned()), ..Message::assistant("7") };
    let messages = vec![Message::user("Name a number."), said, Message::user("Why?")];
    let prompt = engine.encode(&Prompt::Messages(messages)).expect("it can be rendered");
    let text = prompt.iter().flat_map(|token| engine.tokenizer().token_bytes(*token)).copied().collect();
    assert!(String::from_utf8(text).expect("text").contains("analysis<|message|>Seven is prime.<|end|>"));
}

#[test]
fn stop_strings_apply_to_the_answer_only() {
    let engine = engine();
    let whole = engine.generate(ask("Count from 1 to 20.")).expect("sound");
    let word = whole.reasoning.split_whitespace().next().expect("a word").to_owned();
    let stopped = engine.generate(Request { stop: vec![word], ..ask("Count from 1 to 20.") }).expect("sound");
    assert_eq!(stopped.reasoning, whole.reasoning);
}

/// Each API has its own shape for it.
#[test]
fn every_api_streams_reasoning_apart_from_the_answer() {
    let home = support::home();
    let template = home.path().join("reasoning.jinja");
    std::fs::write(&template, TEMPLATE).expect("a folder");
    let server = server::start(&home, &["smollm2", "--chat-template", template.to_str().expect("a path")]);
    let question = "What is blue?";

    let chat = json!({
        "model": "smollm2", "temperature": 0, "max_tokens": 300, "reasoning_effort": "minimal",
        "messages": [{"role": "user", "content": question}],
    });
    let (status, body) = server.post("/v1/chat/completions", "", &chat);
    assert_eq!(status, 200, "{body}");
    let message = &body["choices"][0]["message"];
    let reasoning = message["reasoning_content"].as_str().expect("reasoning").to_owned();
    assert!(
        !reasoning.is_empty() && body["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64() > Some(10)
    );

    let messages = json!({
        "model": "smollm2", "temperature": 0, "max_tokens": 300, "stream": true,
        "thinking": {"type": "enabled", "budget_tokens": 20}, "messages": [{"role": "user", "content": question}],
    });
    let events = server.post_and_read("/v1/messages", "", &messages);
    let order =
        ["message_start", "thinking_delta", "signature_delta", "content_block_stop", "text_delta", "message_stop"];
    let places: Vec<usize> =
        order.iter().map(|name| events.find(name).unwrap_or_else(|| panic!("{name}: {events}"))).collect();
    assert!(places.is_sorted(), "{events}");

    let responses = json!({
        "model": "smollm2", "temperature": 0, "max_output_tokens": 300, "reasoning": {"effort": "minimal"},
        "include": ["reasoning.encrypted_content"], "input": question,
    });
    let (status, first) = server.post("/v1/responses", "", &responses);
    assert_eq!(status, 200, "{first}");
    let (thought, answer) = (&first["output"][0], &first["output"][1]);
    assert_eq!((&thought["type"], &answer["type"]), (&json!("reasoning"), &json!("message")), "{first}");
    // Sent back, it is taken as the model's own.
    let mut again = responses.clone();
    again["input"] =
        json!([{"role": "user", "content": question}, thought, answer, {"role": "user", "content": "So?"}]);
    let said = server.post_and_read("/v1/responses", "", &again);
    assert!(said.starts_with("HTTP/1.1 200") && !said.contains("x-ruvllm-ignored"), "{said}");
    again["input"][1]["encrypted_content"] = json!("Zm9yZ2Vk");
    let said = server.post_and_read("/v1/responses", "", &again);
    assert!(said.starts_with("HTTP/1.1 200") && said.contains("x-ruvllm-ignored: input[1]:reasoning"), "{said}");
}
