//! Tools with the default model's vocabulary, real chat templates and random answers.

use crate::grammar_support;
use crate::support;
use std::path::PathBuf;
use std::sync::Arc;

use crate::grammar_support::{COMPILER, Dice, TOKENIZER, follow, random_answer};
use ruvllm_text::{
    ChatTemplate, Conversation, Explanation, GrammarCompiler, GrammarError, NextTurn, OutputFormat, Strictness,
    TokenKind, Tokenizer, Tool, ToolCallParser, ToolChoice, ToolFormat, ToolPiece, Vocabulary,
};
use serde_json::{Map, Value, json};

const FORMATS: [ToolFormat; 3] =
    [ToolFormat::Hermes, ToolFormat::BareJson, ToolFormat::Generic(Explanation::SystemMessage)];

fn tool(name: &str, parameters: Value) -> Tool {
    Tool { name: name.into(), description: Some(format!("Does {name}.")), parameters, strictness: Strictness::Strict }
}

fn tools() -> Vec<Tool> {
    vec![
        tool(
            "get_weather",
            json!({
                "type": "object",
                "properties": {
                    "city": {"type": "string", "minLength": 1, "maxLength": 20},
                    "days": {"type": "integer", "minimum": 1, "maximum": 14},
                    "unit": {"$ref": "#/$defs/unit"}
                },
                "required": ["city", "unit"], "additionalProperties": false,
                "$defs": {"unit": {"enum": ["C", "F"]}}
            }),
        ),
        tool("get", json!({})),
        tool("tree-2", json!({"properties": {"left": {"$ref": "#"}}, "additionalProperties": false})),
    ]
}

#[derive(Debug, PartialEq)]
struct Call {
    name: String,
    arguments: Value,
}

/// Text and calls of a whole answer.
fn parse(format: ToolFormat, answer: &str) -> (String, Vec<Call>) {
    let mut parser = ToolCallParser::new(format);
    let mut pieces = parser.push(answer);
    pieces.extend(parser.finish());
    let (mut text, mut names, mut arguments, mut ends) = (String::new(), Vec::new(), Vec::<String>::new(), 0);
    for piece in pieces {
        match piece {
            ToolPiece::Text(more) => text += &more,
            ToolPiece::Call { name, .. } => {
                names.push(name);
                arguments.push(String::new());
            }
            ToolPiece::Arguments { index, delta } => arguments[index] += &delta,
            ToolPiece::CallEnd { .. } => ends += 1,
        }
    }
    assert_eq!(ends, names.len(), "{answer}");
    let parse = |(name, text): (String, String)| Call {
        name,
        arguments: serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")),
    };
    (text, names.into_iter().zip(arguments).map(parse).collect())
}

fn check_call(call: &Call) {
    let tool = tools().into_iter().find(|tool| tool.name == call.name).unwrap_or_else(|| panic!("{call:?}"));
    assert!(call.arguments.is_object(), "{call:?}");
    let validator = jsonschema::validator_for(&tool.parameters).unwrap();
    assert!(validator.is_valid(&call.arguments), "{call:?} is invalid by {}", tool.parameters);
}

fn random_answers(format: ToolFormat, choice: &ToolChoice, parallel: bool, mut check: impl FnMut(String, Vec<Call>)) {
    let output_format = format.output_format(&tools(), choice, parallel).unwrap().unwrap();
    let mut dice = Dice::new(17);
    let mut finished = 0;
    for _ in 0..30 {
        let mut matcher = COMPILER.compile(&output_format).unwrap();
        let Some(answer) = random_answer(&mut matcher, &mut dice, 500) else { continue };
        let (text, calls) = parse(format, &answer);
        calls.iter().for_each(check_call);
        check(text, calls);
        finished += 1;
    }
    assert!(finished >= 15, "only {finished} answers came to an end");
}

#[test]
fn required_answers_are_calls_and_nothing_else() {
    for format in FORMATS {
        let mut most = 0;
        random_answers(format, &ToolChoice::Required, true, |text, calls| {
            assert!(text.is_empty() && !calls.is_empty(), "{text:?} {calls:?}");
            most = most.max(calls.len());
        });
        assert_eq!(most > 1, format != ToolFormat::BareJson, "{format:?}: at most {most} calls");
        random_answers(format, &ToolChoice::Required, false, |text, calls| {
            assert!(text.is_empty() && calls.len() == 1, "{text:?} {calls:?}");
        });
    }
}

#[test]
fn a_named_tool_is_the_one_that_is_called() {
    for format in FORMATS {
        random_answers(format, &ToolChoice::Named("get_weather".into()), false, |_, calls| {
            assert!(calls.len() == 1 && calls[0].name == "get_weather", "{calls:?}");
        });
    }
}

#[test]
fn free_answers_are_text_and_whatever_begins_as_a_call_ends_as_one() {
    for format in FORMATS {
        let output_format = format.output_format(&tools(), &ToolChoice::Auto, true).unwrap().unwrap();
        let compile = || COMPILER.compile(&output_format).unwrap();
        for text in ["", "The weather is fine.", "a < b, <tool_cal", "日本 {\"x\": 1}"] {
            assert_eq!(follow(&mut compile(), text), Ok(()), "{format:?}: {text}");
        }
        let (call, wrong_name, wrong_arguments) = match format {
            ToolFormat::BareJson => (
                "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Oslo\", \"unit\": \"C\"}}",
                "{\"name\": \"delete\", \"parameters\": {}}",
                "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Oslo\"}}",
            ),
            _ => (
                "One moment.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\", \"unit\": \"C\"}}\n</tool_call>",
                "<tool_call>\n{\"name\": \"delete\", \"arguments\": {}}\n</tool_call>",
                "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
            ),
        };
        let mut matcher = compile();
        assert_eq!(follow(&mut matcher, call), Ok(()), "{format:?}");
        assert_eq!(matcher.is_complete(), format == ToolFormat::BareJson);
        assert_eq!(parse(format, call).1.len(), 1);
        for wrong in [wrong_name, wrong_arguments, &call[..call.len() - 1]] {
            assert!(follow(&mut compile(), wrong).is_err(), "{format:?}: {wrong}");
        }
        // With one call only, the answer is over after it.
        let single = format.output_format(&tools(), &ToolChoice::Auto, false).unwrap().unwrap();
        let mut matcher = COMPILER.compile(&single).unwrap();
        assert_eq!(follow(&mut matcher, call), Ok(()), "{format:?}");
        assert!(matcher.is_complete());
    }
}

#[test]
fn beside_calls_an_answer_may_have_a_format_of_its_own() {
    let person = json!({ "type": "object", "properties": { "name": { "type": "string" } }, "required": ["name"],
                         "additionalProperties": false });
    let call =
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\", \"unit\": \"C\"}}\n</tool_call>";
    let sums = "start: NUMBER (\"+\" NUMBER)*\nNUMBER: /[0-9]+/\n%ignore \" \"\n";
    let answers = [
        (OutputFormat::strict_schema(person), r#"{"name": "Ada"}"#, r#"{"name": 1}"#),
        (OutputFormat::Regex("yes|no".into()), "yes", "maybe"),
        (OutputFormat::Gbnf("root ::= \"a\"+ body\nbody ::= \"b\"".into()), "aab", "aa"),
        (OutputFormat::Lark(sums.into()), "1 + 22+3", "1 +"),
    ];
    for (answer, good, bad) in answers {
        let output_format = |choice| {
            let Some(OutputFormat::ToolCalls(calls)) =
                ToolFormat::Hermes.output_format(&tools(), &choice, true).unwrap()
            else {
                panic!("there are tools");
            };
            OutputFormat::ToolCalls(calls.or(answer.clone()).unwrap())
        };
        let follows = |choice, text| follow(&mut COMPILER.compile(&output_format(choice)).unwrap(), text).is_ok();
        assert!(follows(ToolChoice::Auto, good) && follows(ToolChoice::Auto, call), "{answer:?}");
        assert!(!follows(ToolChoice::Auto, bad) && !follows(ToolChoice::Auto, "Some text."), "{answer:?}");
        assert!(!follows(ToolChoice::Required, good) && follows(ToolChoice::Required, call), "{answer:?}");
    }
    let Some(OutputFormat::ToolCalls(bare)) =
        ToolFormat::BareJson.output_format(&tools(), &ToolChoice::Auto, true).unwrap()
    else {
        panic!("there are tools");
    };
    assert_eq!(bare.or(OutputFormat::JsonObject), Err(GrammarError::FormatOrBareCall));
}

#[test]
fn without_a_choice_there_is_no_output_format() {
    for format in FORMATS {
        assert_eq!(format.output_format(&tools(), &ToolChoice::None, true), Ok(None));
        assert_eq!(format.output_format(&[], &ToolChoice::Auto, true), Ok(None));
    }
}

#[test]
fn what_is_not_enforced_is_named_with_its_tool() {
    let unique = json!({"type": "object", "properties": {"a": {"type": "array", "uniqueItems": true}}});
    let relaxed = Tool { strictness: Strictness::Relaxed, ..tool("relaxed", unique.clone()) };
    let output_format = |tools: &[Tool]| ToolFormat::Hermes.output_format(tools, &ToolChoice::Required, true).unwrap();
    let compiled = COMPILER.compile_for("", &output_format(&[tools().remove(0), relaxed]).unwrap()).unwrap();
    let [place] = compiled.not_enforced.constraints.as_slice() else { panic!("{:?}", compiled.not_enforced) };
    assert_eq!((place.tool.as_deref(), place.keyword.as_str()), (Some("relaxed"), "uniqueItems"));
    assert_eq!(place.pointer, "#/properties/a");
    let strict = output_format(&[tool("strict", unique)]).unwrap();
    let error = COMPILER.compile_for("", &strict).unwrap_err().to_string();
    assert!(error.contains("tool \"strict\": the keyword \"uniqueItems\" at #/properties/a"), "{error}");
}

#[test]
fn bad_tools_are_named() {
    let format = ToolFormat::Hermes;
    let output_format = |tools: &[Tool], choice: ToolChoice| format.output_format(tools, &choice, true);
    let message = |tools: &[Tool], choice: ToolChoice| match output_format(tools, choice) {
        Err(error) => error.to_string(),
        Ok(Some(output_format)) => COMPILER.compile(&output_format).unwrap_err().to_string(),
        Ok(None) => panic!("no output format"),
    };
    let good = tools();
    let with = |parameters: Value| vec![good[0].clone(), tool("bad_one", parameters)];
    for (tools, choice, expected) in [
        (
            with(json!({"properties": {"a": {"not": {"multipleOf": 2}}}})),
            ToolChoice::Auto,
            "tool \"bad_one\": the keyword \"not\" at #/properties/a",
        ),
        (
            with(json!({"type": "string"})),
            ToolChoice::Required,
            "tool \"bad_one\": the schema at # must have the type \"object\"",
        ),
        (with(json!([])), ToolChoice::Required, "tool \"bad_one\": the schema at # must be an object"),
        (vec![tool("a b", json!({}))], ToolChoice::Auto, "tools[0]: the name \"a b\""),
        (vec![tool("", json!({}))], ToolChoice::Auto, "tools[0]: the name \"\""),
        (vec![tool(&"x".repeat(65), json!({}))], ToolChoice::Auto, "1 to 64"),
        (
            vec![tool("a", json!({})), tool("a", json!({}))],
            ToolChoice::None,
            "tools[1]: there is another tool with the name \"a\"",
        ),
        (
            good.clone(),
            ToolChoice::Named("get_it".into()),
            "\"get_it\", which is not among the tools (get_weather, get, tree-2)",
        ),
        (Vec::new(), ToolChoice::Required, "there are no tools"),
        (vec![tool("a", json!({})); 129], ToolChoice::Auto, "129 tools were given; at most 128"),
    ] {
        let message = message(&tools, choice);
        assert!(message.contains(expected), "{message}");
    }
    let mut deep = Value::Bool(true);
    for _ in 0..60_000 {
        deep = Value::Object(Map::from_iter([("items".to_owned(), deep)]));
    }
    let deep = [tool("deep", deep)];
    assert!(matches!(output_format(&deep, ToolChoice::Auto), Err(GrammarError::Tool { name, .. }) if name == "deep"));
    // Dropping it would recurse.
    std::mem::forget(deep);
}

/// A conversation as OpenAI's clients send it: arguments are text, contents may be missing.
fn history() -> Vec<Value> {
    let call = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    vec![
        json!({"role": "user", "content": "Weather in Oslo?"}),
        json!({"role": "assistant", "content": null, "tool_calls": [
            call("1", "get_weather", "{\"city\": \"Oslo\", \"unit\": \"C\"}"), call("2", "get", "")
        ]}),
        json!({"role": "tool", "tool_call_id": "1", "content": "4 degrees"}),
        json!({"role": "tool", "tool_call_id": "2", "content": "nothing"}),
        json!({"role": "assistant", "content": "It is 4 degrees."}),
        json!({"role": "user", "content": "Thanks!"}),
    ]
}

fn render(source: &str, messages: &[Value], tools: Option<&Value>) -> String {
    let template = ChatTemplate::new(source, &TOKENIZER).unwrap();
    let conversation =
        Conversation { messages, tools, next_turn: NextTurn::Assistant, variables: &Map::new(), now_unix_s: 0 };
    template.render(&conversation).unwrap().text().to_owned()
}

#[test]
fn a_template_without_tools_gets_them_explained() {
    let source = support::load_chat_template(&support::default_model()).unwrap();
    let format = ToolFormat::of_template(&source);
    assert_eq!(format, ToolFormat::Generic(Explanation::SystemMessage));
    let (messages, definitions) = format.conversation(&history(), &tools());
    assert_eq!(definitions, None);
    let text = render(&source, &messages, None);
    assert!(text.starts_with("<|im_start|>system\nYou can call the following tools"), "{text}");
    assert!(text.contains("\"name\":\"get_weather\"") && text.contains("Does get_weather."), "{text}");
    let called = "<|im_start|>assistant\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\":\"Oslo\",\"unit\":\"C\"}}\n\
                  </tool_call>\n<tool_call>\n{\"name\": \"get\", \"arguments\": {}}\n</tool_call><|im_end|>\n";
    assert!(text.contains(called), "{text}");
    let results = "<|im_start|>user\n<tool_response>\n4 degrees\n</tool_response>\n<tool_response>\nnothing\n</tool_response><|im_end|>\n";
    assert!(text.contains(results), "{text}");
    // A system message of the caller's own stays, and without tools nothing is explained.
    let own = [json!({"role": "system", "content": "Be brief."}), json!({"role": "user", "content": "Hi"})];
    let text = render(&source, &format.conversation(&own, &tools()).0, None);
    assert!(text.starts_with("<|im_start|>system\nBe brief.\n\nYou can call"), "{text}");
    let (messages, definitions) = format.conversation(&history(), &[]);
    let text = render(&source, &messages, None);
    assert!(!text.contains("You can call") && text.contains(called) && definitions.is_none(), "{text}");
    // What was called before reads the same to our own parser.
    let assistant = messages[1]["content"].as_str().unwrap();
    let (_, calls) = parse(format, assistant);
    assert_eq!(calls[0].arguments, json!({"city": "Oslo", "unit": "C"}));
}

#[test]
fn a_template_that_refuses_system_messages_gets_tools_explained_by_the_user() {
    let source = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
                  {% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}";
    let format = ToolFormat::of_template(source);
    assert_eq!(format, ToolFormat::Generic(Explanation::FirstUserMessage));
    let text = render(source, &format.conversation(&history(), &tools()).0, None);
    assert!(text.starts_with("user: You can call") && text.contains("\n\nWeather in Oslo?\n"), "{text}");
}

/// Published templates, where the environment names llama.cpp's folder with them.
#[test]
fn published_templates_get_what_they_expect() {
    let Some(folder) = support::tokenizer_vectors() else { return };
    let source = |name: &str| {
        let path: PathBuf = folder.join("templates").join(format!("{name}.jinja"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    for name in ["Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B", "NousResearch-Hermes-3-Llama-3.1-8B-tool_use"] {
        let source = source(name);
        let format = ToolFormat::of_template(&source);
        assert_eq!(format, ToolFormat::Hermes, "{name}");
        let (messages, definitions) = format.conversation(&history(), &tools());
        let text = render(&source, &messages, definitions.as_ref());
        assert!(text.contains("\"name\": \"get_weather\""), "{name}: {text}");
        // Arguments are an object, not a string with an object in it.
        let called = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\", \"unit\": \"C\"}}\n</tool_call>";
        assert!(text.contains(called), "{name}: {text}");
        assert!(text.contains("4 degrees"), "{name}: {text}");
    }
    let llama = source("meta-llama-Llama-3.1-8B-Instruct");
    assert_eq!(ToolFormat::of_template(&llama), ToolFormat::BareJson);
    // It renders one call per message only.
    let single = [
        history()[0].clone(),
        json!({"role": "assistant", "tool_calls": [{"function": {"name": "get", "arguments": "{\"a\": 1}"}}]}),
        json!({"role": "tool", "content": "x"}),
    ];
    let (messages, definitions) = ToolFormat::BareJson.conversation(&single, &tools());
    let text = render(&llama, &messages, definitions.as_ref());
    assert!(text.contains("{\"name\": \"get\", \"parameters\": {\"a\": 1}}"), "{text}");
    for name in [
        "Qwen3-Coder",
        "google-gemma-2-2b-it",
        "deepseek-ai-DeepSeek-V3.1",
        "openai-gpt-oss-120b",
        "microsoft-Phi-3.5-mini-instruct",
    ] {
        let format = ToolFormat::of_template(&source(name));
        assert!(matches!(format, ToolFormat::Generic(_)), "{name}: {format:?}");
    }
}

/// As in Qwen's vocabulary: the tag is one token that is text, and something that looks like control is none.
#[test]
fn a_tag_that_is_one_token_is_used_as_one() {
    let bytes = ('!'..='~').chain(['Ġ', 'Ċ']).map(String::from);
    let tokens: Vec<String> = bytes.chain(["<tool_call>", "<|role|>", "<|end|>"].map(String::from)).collect();
    let special = tokens.len() - 3;
    let mut kinds = vec![TokenKind::Normal; tokens.len()];
    kinds[special..].copy_from_slice(&[TokenKind::UserDefined, TokenKind::UserDefined, TokenKind::Control]);
    let vocabulary = Vocabulary {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        eos: Some(special as u32 + 2),
        tokens,
        kinds,
        ..Default::default()
    };
    let tokenizer = Arc::new(Tokenizer::from_vocabulary(vocabulary).unwrap());
    let compiler = GrammarCompiler::new(&tokenizer).unwrap();
    let output_format = |choice| ToolFormat::Hermes.output_format(&tools(), &choice, false).unwrap().unwrap();
    let tag = special as u32;
    let mut required = compiler.compile(&output_format(ToolChoice::Required)).unwrap();
    assert_eq!(required.forced().first(), Some(&tag));
    required.accept(tag).unwrap();
    let mut free = compiler.compile(&output_format(ToolChoice::Auto)).unwrap();
    let mut mask = Vec::new();
    free.mask(&mut mask).unwrap();
    let is_allowed = |mask: &[u32], id: u32| grammar_support::is_allowed(mask, id);
    assert!(is_allowed(&mask, tag) && !is_allowed(&mask, tag + 1) && is_allowed(&mask, tag + 2));
    free.accept(tag).unwrap();
    // From here on, it is a call.
    let newline = tokenizer.token_id("Ċ").unwrap();
    assert_eq!(free.forced().first(), Some(&newline));
}

#[test]
fn output_formats_of_equal_tools_are_equal() {
    let output_format =
        |parallel| ToolFormat::Hermes.output_format(&tools(), &ToolChoice::Auto, parallel).unwrap().unwrap();
    assert_eq!(output_format(true), output_format(true));
    assert_ne!(output_format(true), output_format(false));
    assert!(matches!(output_format(true), OutputFormat::ToolCalls(_)));
}
