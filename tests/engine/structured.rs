//! Answers of the real model that must have a shape: they have it, however they are generated.

use crate::support::smollm2;
use ruvllm_runtime::{
    Engine, FinishReason, GenerateError, Message, OutputFormat, Piece, Prompt, Request, Response, Sampling,
    Speculation, Strictness, Tool, ToolChoice, Tools,
};
use serde_json::{Value, json};

fn engine() -> Engine {
    Engine::builder(smollm2()).context(Some(1024)).sequences(8).build().expect("the default model loads")
}

fn ask(text: &str, shape: OutputFormat) -> Request {
    Request {
        sampling: Sampling::greedy(),
        max_tokens: Some(200),
        output_format: Some(shape),
        ..Request::new(Prompt::Messages(vec![Message::user(text)]))
    }
}

fn person() -> OutputFormat {
    OutputFormat::strict_schema(json!({
        "type": "object",
        "properties": {
            "first_name": { "type": "string", "maxLength": 20 },
            "age": { "type": "integer", "minimum": 0, "maximum": 150 },
            "tags": { "type": "array", "items": { "enum": ["red", "green", "blue"] }, "minItems": 1, "maxItems": 3 },
            "is_registered_customer": { "type": "boolean" },
        },
        "required": ["first_name", "age", "tags", "is_registered_customer"],
        "additionalProperties": false,
    }))
}

fn check_person(response: &Response) {
    assert_eq!(response.finish_reason, Some(FinishReason::Stop), "{}", response.text);
    let value: Value = serde_json::from_str(&response.text).expect("the answer is JSON");
    assert!(value["first_name"].is_string() && value["is_registered_customer"].is_boolean(), "{value}");
    assert!(value["age"].as_u64().is_some_and(|age| age <= 150), "{value}");
    let tags = value["tags"].as_array().expect("an array");
    assert!((1..=3).contains(&tags.len()), "{value}");
    assert!(tags.iter().all(|tag| ["red", "green", "blue"].contains(&tag.as_str().unwrap_or_default())), "{value}");
    assert_eq!(value.as_object().expect("an object").len(), 4, "{value}");
}

#[test]
fn an_answer_keeps_to_its_schema_at_any_temperature() {
    let engine = engine();
    for (temperature, seed) in [(0.0, 0), (0.8, 1), (1.5, 2), (5.0, 3), (100.0, 4)] {
        let mut request = ask("Describe a customer.", person());
        request.sampling = Sampling { temperature, seed, top_k: 0, top_p: 1.0, min_p: 0.0, ..Sampling::default() };
        request.max_tokens = Some(400);
        check_person(&engine.generate(request).expect("a sound request"));
    }
}

#[test]
fn guesses_and_company_make_no_difference_to_a_constrained_answer() {
    let engine = engine();
    for sampling in [Sampling::greedy(), Sampling { seed: 7, ..Sampling::default() }] {
        let request = Request { sampling, ..ask("Describe a customer.", person()) };
        let alone = engine.generate(Request { speculation: Speculation::Off, ..request.clone() }).expect("sound");
        check_person(&alone);
        assert_eq!(alone.usage.drafted_tokens, 0);
        let guessed = engine.generate(Request { speculation: Speculation::On, ..request.clone() }).expect("sound");
        assert_eq!(guessed.text, alone.text);
        assert!(guessed.usage.accepted_tokens > 5, "keys are foreseen: {:?}", guessed.usage);
        let streams: Vec<_> = (0..6)
            .map(|i| {
                let shape = if i % 2 == 0 { person() } else { OutputFormat::Regex("[a-f]{10,40}".to_owned()) };
                engine.stream(Request { output_format: Some(shape), ..request.clone() }).expect("sound")
            })
            .collect();
        for (i, mut stream) in streams.into_iter().enumerate() {
            (&mut stream).for_each(|piece| drop(piece.expect("sound logits")));
            let text = stream.into_response().text;
            if i % 2 == 0 {
                assert_eq!(text, alone.text);
            } else {
                assert!(text.len() >= 10 && text.chars().all(|c| ('a'..='f').contains(&c)), "{text}");
            }
        }
    }
}

#[test]
fn grammars_of_all_kinds_are_followed() {
    let engine = engine();
    let check = |shape: OutputFormat, is_right: fn(&str) -> bool| {
        let response = engine.generate(ask("Answer.", shape.clone())).expect("a sound request");
        assert!(is_right(&response.text), "{:?} for {shape:?}", response.text);
    };
    let json = ask("Write {\"colour\": \"red\"}", OutputFormat::JsonObject);
    let json = engine.generate(json).expect("a sound request").text;
    assert!(serde_json::from_str::<Value>(&json).is_ok_and(|value| value.is_object()), "{json}");
    check(OutputFormat::Regex(r"(yes|no), because [a-z ]{5,30}\.".to_owned()), |text| {
        (text.starts_with("yes, because ") || text.starts_with("no, because ")) && text.ends_with('.')
    });
    check(OutputFormat::Gbnf("root ::= \"colour: \" colour\ncolour ::= \"red\" | \"green\"".to_owned()), |text| {
        ["colour: red", "colour: green"].contains(&text)
    });
    check(OutputFormat::Lark("start: \"<\" WORD \">\"\nWORD: /[A-Z]{3}/".to_owned()), |text| {
        text.len() == 5 && text.starts_with('<') && text.ends_with('>')
    });
}

#[test]
fn an_answer_that_is_cut_off_says_so() {
    let response = engine().generate(Request { max_tokens: Some(5), ..ask("Describe a customer.", person()) });
    assert_eq!(response.expect("a sound request").finish_reason, Some(FinishReason::Length));
}

fn weather_and_mail() -> Vec<Tool> {
    let tool = |name: &str, description: &str, parameters| Tool {
        name: name.to_owned(),
        description: Some(description.to_owned()),
        parameters,
        strictness: Strictness::Strict,
    };
    vec![
        tool(
            "get_weather",
            "The weather of a city",
            json!({
                "type": "object",
                "properties": { "city": { "type": "string", "maxLength": 30 }, "unit": { "enum": ["celsius", "kelvin"] } },
                "required": ["city", "unit"],
                "additionalProperties": false,
            }),
        ),
        tool(
            "send_mail",
            "Sends a mail",
            json!({ "type": "object", "properties": { "to": { "type": "string", "maxLength": 30 } }, "required": ["to"],
                    "additionalProperties": false }),
        ),
    ]
}

fn call(choice: ToolChoice, are_parallel: bool, sampling: Sampling) -> Request {
    Request {
        sampling,
        max_tokens: Some(300),
        tools: Tools { definitions: weather_and_mail(), choice, are_parallel: Some(are_parallel) },
        ..Request::new(Prompt::Messages(vec![Message::user("What is the weather in Paris?")]))
    }
}

#[test]
fn tools_are_called_as_they_are_defined() {
    let engine = engine();
    for seed in 0..6 {
        let sampling = Sampling { seed, temperature: 1.0, ..Sampling::default() };
        let response = engine.generate(call(ToolChoice::Required, true, sampling)).expect("a sound request");
        if response.finish_reason == Some(FinishReason::Length) {
            continue;
        }
        assert!(!response.tool_calls.is_empty() && response.text.trim().is_empty(), "{response:?}");
        for call in &response.tool_calls {
            let arguments: Value = serde_json::from_str(&call.arguments).expect("arguments are JSON");
            match call.name.as_str() {
                "get_weather" => assert!(arguments["city"].is_string() && arguments["unit"].is_string(), "{arguments}"),
                "send_mail" => assert!(arguments["to"].is_string(), "{arguments}"),
                name => panic!("there is no tool {name}"),
            }
        }
    }
}

#[test]
fn a_named_tool_is_called_once_and_streams_its_arguments() {
    let engine = engine();
    let request = call(ToolChoice::Named("send_mail".to_owned()), false, Sampling::greedy());
    let mut stream = engine.stream(request).expect("a sound request");
    let pieces: Vec<Piece> = (&mut stream).map(|piece| piece.expect("sound logits")).collect();
    let response = stream.into_response();
    assert_eq!(response.tool_calls.len(), 1);
    let call = &response.tool_calls[0];
    assert_eq!(call.name, "send_mail");
    let started = pieces.iter().filter(|piece| matches!(piece, Piece::ToolCall { name, .. } if name == "send_mail"));
    assert_eq!(started.count(), 1);
    let deltas = pieces.iter().filter_map(|piece| match piece {
        Piece::Arguments { index: 0, text } => Some(text.as_str()),
        _ => None,
    });
    let deltas: Vec<&str> = deltas.collect();
    assert!(deltas.len() > 1, "they come as they are generated: {deltas:?}");
    assert_eq!(deltas.concat(), call.arguments);
}

#[test]
fn a_conversation_with_calls_and_results_goes_on() {
    let engine = engine();
    let first = call(ToolChoice::Named("get_weather".to_owned()), false, Sampling::greedy());
    let Prompt::Messages(mut messages) = first.prompt.clone() else { panic!("a conversation") };
    let response = engine.generate(first).expect("a sound request");
    let called = response.tool_calls[0].clone();
    messages.push(Message { tool_calls: vec![called.clone()], ..Message::assistant(&response.text) });
    messages.push(Message::tool(&called, "18 degrees, cloudy"));
    let mut second = call(ToolChoice::None, false, Sampling::greedy());
    second.max_tokens = Some(20);
    second.prompt = Prompt::Messages(messages);
    let answer = engine.generate(second).expect("a sound request");
    assert!(answer.tool_calls.is_empty() && !answer.text.is_empty());
}

#[test]
fn an_answer_calls_a_tool_or_has_the_shape_that_was_asked_for() {
    let engine = engine();
    let schema = json!({ "type": "object", "properties": { "answer": { "type": "string", "maxLength": 40 } },
                         "required": ["answer"], "additionalProperties": false });
    for seed in 0..6 {
        let mut request = call(ToolChoice::Auto, true, Sampling { seed, ..Sampling::default() });
        request.output_format = Some(OutputFormat::strict_schema(schema.clone()));
        request.max_tokens = Some(200);
        let response = engine.generate(request).expect("a sound request");
        match response.finish_reason {
            Some(FinishReason::Length) => continue,
            _ if !response.tool_calls.is_empty() => assert_eq!(response.text, ""),
            _ => {
                let value: Value = serde_json::from_str(&response.text).expect("the answer is JSON");
                assert!(value["answer"].is_string() && value.as_object().is_some_and(|fields| fields.len() == 1));
            }
        }
    }
    let mut request = call(ToolChoice::Required, false, Sampling::greedy());
    request.output_format = Some(OutputFormat::strict_schema(schema));
    let response = engine.generate(request).expect("a sound request");
    assert_eq!((response.tool_calls.len(), response.text.as_str()), (1, ""));
    let mut request = call(ToolChoice::Auto, false, Sampling::greedy());
    request.output_format = Some(OutputFormat::strict_schema(json!({ "uniqueItems": true })));
    assert!(matches!(engine.generate(request), Err(GenerateError::OutputFormat(_))));
}

#[test]
fn shapes_that_cannot_be_kept_to_are_refused_by_name() {
    let engine = engine();
    let check = |shape: OutputFormat, wanted: &str| {
        let error = engine.generate(ask("Answer.", shape)).expect_err("it is refused").to_string();
        assert!(error.contains(wanted), "{error}");
    };
    check(OutputFormat::strict_schema(json!({ "type": "array", "uniqueItems": true })), "uniqueItems");
    check(OutputFormat::Regex("(unclosed".to_owned()), "(unclosed");
    check(OutputFormat::Gbnf("root ::= missing".to_owned()), "missing");
    check(OutputFormat::Lark("start: (".to_owned()), "Expected token");
    let mut request = call(ToolChoice::Auto, true, Sampling::greedy());
    request.tools.definitions[1].parameters =
        json!({ "type": "object", "properties": { "a": { "uniqueItems": true } } });
    let error = engine.generate(request.clone()).expect_err("it is refused").to_string();
    assert!(error.contains("send_mail") && error.contains("uniqueItems"), "{error}");
    request.tools.definitions[1] = weather_and_mail()[0].clone();
    let error = engine.generate(request).expect_err("it is refused").to_string();
    assert!(error.contains("get_weather"), "{error}");
}

/// Every answer keeps to what a grammar can hold; whether it keeps to the rest is found out at its end.
#[test]
fn what_a_grammar_cannot_hold_is_named_and_checked() {
    let engine = engine();
    let list = |items: usize| {
        json!({ "type": "array", "items": { "type": "string", "pattern": "^a?$" }, "minItems": items,
                                      "maxItems": items, "uniqueItems": true })
    };
    let answer = |schema: Value| {
        let mut stream = engine.stream(ask("List letters.", OutputFormat::relaxed_schema(schema))).expect("sound");
        (&mut stream).for_each(|piece| drop(piece.expect("sound logits")));
        let named: Vec<String> = stream.not_enforced().places().map(ToString::to_string).collect();
        (named, stream.into_response())
    };
    // Nothing can satisfy it, which no grammar notices.
    let (named, response) = answer(list(3));
    assert_eq!(named, ["uniqueItems at #"]);
    let found = response.validity.expect("it was checked").expect_err("two letters in three places");
    assert!(found.contains("uniqueItems"), "{found}");
    let (named, response) = answer(list(1));
    assert!(named.is_empty() && response.validity.is_none(), "one item is always unique: {named:?}");
    let (named, response) =
        answer(json!({ "type": "integer", "not": { "const": 100_000_000 }, "x-note": 1, "minimum": 1 }));
    assert!(response.validity.is_none_or(|validity| validity.is_ok()), "{named:?}");
    assert!(named.contains(&"x-note at #".to_owned()), "{named:?}");
    let error = engine.generate(ask("List letters.", OutputFormat::strict_schema(list(3)))).expect_err("strict");
    assert!(error.to_string().contains("uniqueItems"), "{error}");
}
