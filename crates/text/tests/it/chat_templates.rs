//! Published chat templates: each one renders as transformers renders it, and no conversation can add special tokens to it.
//!
//! The templates come with llama.cpp (see `llama_cpp_vectors.rs`), under models/templates; what transformers makes of them is
//! in `tests/golden/chat_templates.json`.

use crate::support;
use std::path::{Path, PathBuf};

use ruvllm_text::{ChatTemplate, ChatTemplateError, Conversation, NextTurn, TokenKind, Tokenizer, Vocabulary};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

const AT_LEAST: usize = 60;

const CONVERSATIONS: &str = include_str!("../../../../tests/golden/chat_conversations.json");
const SMALL: &str = include_str!("../../../../tests/golden/jinja.json");
const RENDERINGS: &str = include_str!("../../../../tests/golden/chat_templates.json");

#[test]
fn published_templates_render() {
    let Some(folder) = support::tokenizer_vectors() else { return };
    let mut failures = Vec::new();
    for (path, source) in templates(&folder) {
        let tokenizer = tokenizer_for(&source);
        let tools = tools_for(&path);
        let outcome = ChatTemplate::new(&source, &tokenizer)
            .and_then(|template| render(&template, &greeting("hello"), tools.as_ref()));
        match outcome {
            Ok(prompt) => assert!(prompt.text().contains("hello"), "{}: {:?}", path.display(), prompt.text()),
            Err(error) => failures.push(format!("{}: {error}", path.display())),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn published_templates_render_as_transformers_renders_them() {
    let Some(folder) = support::tokenizer_vectors() else { return };
    let given: Value = serde_json::from_str(CONVERSATIONS).unwrap();
    let expected: Value = serde_json::from_str(RENDERINGS).unwrap();
    let conversations = given["conversations"].as_array().unwrap();
    let mut differences = Vec::new();
    let (mut same, mut refused, mut failed) = (0, 0, 0);
    for (path, source) in templates(&folder) {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let expected = &expected["templates"][format!("{name}.jinja")];
        assert_eq!(expected["source"], digest(&source), "{name} is another version than the one transformers rendered");
        let expected = expected["renderings"].as_array().unwrap();
        assert_eq!(expected.len(), conversations.len(), "{name}");
        let template = ChatTemplate::new(&source, &tokenizer_for(&source)).unwrap();
        for (number, (conversation, expected)) in conversations.iter().zip(expected).enumerate() {
            let ours = render_given(&template, conversation, &given);
            match (&ours, expected.as_str().unwrap()) {
                (Err(ChatTemplateError::Refused { .. }), "refused") => refused += 1,
                (Err(ChatTemplateError::Failed { .. }), "failed") => failed += 1,
                (Ok(text), expected) if format!("{} {}", text.len(), digest(text)) == expected => same += 1,
                _ => differences.push(format!(
                    "{name}, {} ({number}): {}",
                    conversation["name"],
                    first_difference(name, number, &ours)
                )),
            }
        }
    }
    let found = differences.len();
    println!("{same} renderings are the same, {refused} refused, {failed} failed, {found} differ");
    assert!(differences.is_empty(), "{found} differences:\n{}", differences.join("\n"));
}

/// Each is for one thing that a template may use. Those that differ say why, and must differ.
#[test]
fn small_templates_render_as_transformers_renders_them() {
    let given: Value = serde_json::from_str(CONVERSATIONS).unwrap();
    let small: Value = serde_json::from_str(SMALL).unwrap();
    let mut conversation = given["conversations"][0].clone();
    conversation["tools"] = json!("weather");
    conversation["variables"] = small["variables"].clone();
    let tokenizer = tokenizer_for("[INST]<|im_end|>");
    let mut differences = Vec::new();
    for entry in small["templates"].as_array().unwrap() {
        let (source, expected, why) = (entry[0].as_str().unwrap(), entry[1].as_str(), entry[2].as_str());
        let ours = ChatTemplate::new(source, &tokenizer)
            .and_then(|template| render_given(&template, &conversation, &given))
            .map_err(|error| error.to_string());
        if (ours.as_deref().ok() == expected) == why.is_some() {
            differences.push(format!("{source:?}\n  transformers: {expected:?}\n  here:         {ours:?}"));
        }
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

/// Renders one of the conversations that transformers was given too.
fn render_given(template: &ChatTemplate, conversation: &Value, given: &Value) -> Result<String, ChatTemplateError> {
    let messages = conversation["messages"].as_array().unwrap();
    let tools = conversation.get("tools").map(|name| &given["tools"][name.as_str().unwrap()]);
    let variables = conversation.get("variables").and_then(Value::as_object).cloned().unwrap_or_default();
    let next_turn = match conversation["add_generation_prompt"].as_bool().unwrap() {
        true => NextTurn::Assistant,
        false => NextTurn::None,
    };
    let now_unix_s = given["now_unix_s"].as_i64().unwrap();
    let prompt = template.render(&Conversation { messages, tools, next_turn, variables: &variables, now_unix_s })?;
    Ok(prompt.text().to_owned())
}

/// Returns the beginning of a text's hash, as the golden file has it.
fn digest(text: &str) -> String {
    let hash = Sha256::digest(text.as_bytes());
    hash[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Shows where a rendering leaves that of transformers, if a folder has the latter (`chat_templates.py --full`).
fn first_difference(template: &str, number: usize, ours: &Result<String, ChatTemplateError>) -> String {
    let Some(folder) = std::env::var_os("RUVLLM_CHAT_RENDERINGS") else {
        return "see chat_templates.py --full and RUVLLM_CHAT_RENDERINGS".to_owned();
    };
    let file = |kind: &str| {
        let path = Path::new(&folder).join(template).join(format!("{number}.{kind}"));
        std::fs::read(path).ok().map(|bytes| String::from_utf8(bytes).unwrap())
    };
    match (ours, file("txt")) {
        (Ok(ours), Some(theirs)) => {
            let same = ours.chars().zip(theirs.chars()).take_while(|(a, b)| a == b).count();
            let around = |text: &str| text.chars().skip(same.saturating_sub(40)).take(120).collect::<String>();
            format!(
                "after {same} characters\n  transformers: {:?}\n  here:         {:?}",
                around(&theirs),
                around(ours)
            )
        }
        (Ok(ours), None) => {
            let beginning: String = ours.chars().take(120).collect();
            format!("transformers: {}; here: {beginning:?}", file("error").unwrap_or_default())
        }
        (Err(error), _) => format!("transformers: {}; here: {error}", file("error").unwrap_or_default()),
    }
}

#[test]
fn conversations_cannot_add_special_tokens_to_published_templates() {
    let Some(folder) = support::tokenizer_vectors() else { return };
    for (path, source) in templates(&folder) {
        let tokenizer = tokenizer_for(&source);
        let template = ChatTemplate::new(&source, &tokenizer).unwrap();
        let controls = |content: &str| {
            let prompt = render(&template, &greeting(content), tools_for(&path).as_ref()).unwrap();
            let ids = tokenizer.encode_prompt(&prompt);
            ids.into_iter().filter(|&id| tokenizer.is_control(id)).collect::<Vec<u32>>()
        };
        let everything: String = special_texts(&source).iter().map(|text| format!("x{text}\n{text}")).collect();
        assert_eq!(controls("hello"), controls(&everything), "{}", path.display());
    }
}

fn greeting(content: &str) -> Vec<Value> {
    vec![
        json!({"role": "user", "content": content}),
        json!({"role": "assistant", "content": "Good day."}),
        json!({"role": "user", "content": content}),
    ]
}

/// Some models have a template that is meant for conversations with tools only.
fn tools_for(path: &Path) -> Option<Value> {
    path.to_string_lossy().contains("tool_use").then(|| json!([]))
}

fn render(
    template: &ChatTemplate,
    messages: &[Value],
    tools: Option<&Value>,
) -> Result<ruvllm_text::RenderedPrompt, ChatTemplateError> {
    // One of the templates cannot do without these.
    let variables = Map::from_iter([("functions".into(), json!("[]")), ("datetime".into(), json!("today"))]);
    let next_turn = NextTurn::Assistant;
    template.render(&Conversation { messages, tools, next_turn, variables: &variables, now_unix_s: 0 })
}

fn templates(folder: &Path) -> Vec<(PathBuf, String)> {
    let files = std::fs::read_dir(folder.join("templates")).expect("a folder with templates");
    let paths = files.flatten().map(|file| file.path()).filter(|path| path.extension().is_some_and(|e| e == "jinja"));
    let found: Vec<_> = paths.map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect();
    assert!(found.len() >= AT_LEAST, "only {} templates in {}", found.len(), folder.display());
    found
}

/// A tokenizer of single bytes whose special tokens are those that the template mentions.
fn tokenizer_for(source: &str) -> Tokenizer {
    let printable = |byte: &u8| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut tokens: Vec<String> = (0..=255).filter(printable).map(|byte| char::from(byte).to_string()).collect();
    tokens.extend((0x100..0x144).filter_map(char::from_u32).map(String::from));
    let mut kinds = vec![TokenKind::Normal; tokens.len()];
    tokens.extend(special_texts(source));
    tokens.extend(["<BOS>".into(), "<EOS>".into()]);
    kinds.resize(tokens.len(), TokenKind::Control);
    let last = tokens.len() as u32 - 1;
    let vocabulary = Vocabulary {
        model: "gpt2".into(),
        pre: Some("gpt-2".into()),
        tokens,
        kinds,
        bos: Some(last - 1),
        eos: Some(last),
        ..Default::default()
    };
    Tokenizer::from_vocabulary(vocabulary).unwrap()
}

/// What looks like a special token in a template: `<|name|>`, `<｜name｜>`, `[NAME]`.
fn special_texts(source: &str) -> Vec<String> {
    let mut texts = Vec::new();
    for (open, close) in [("<|", "|>"), ("<｜", "｜>"), ("[", "]")] {
        for (at, _) in source.match_indices(open) {
            let Some(len) = source[at..].find(close).map(|len| len + close.len()) else { continue };
            let name = &source[at + open.len()..at + len - close.len()];
            let is_upper = open != "[" || name.chars().all(|char| char.is_ascii_uppercase() || char == '_');
            let is_name = name.chars().all(|char| char.is_alphanumeric() || "_▁".contains(char));
            if (2..40).contains(&name.chars().count()) && is_name && is_upper {
                texts.push(source[at..at + len].to_owned());
            }
        }
    }
    texts.sort();
    texts.dedup();
    texts
}
