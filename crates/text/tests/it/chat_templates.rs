//! Published chat templates: each one renders, and no conversation can add special tokens to it.
//!
//! The templates come with llama.cpp (see `llama_cpp_vectors.rs`), under models/templates.

use crate::support;
use std::path::{Path, PathBuf};

use ruvllm_text::{ChatTemplate, ChatTemplateError, Conversation, NextTurn, TokenKind, Tokenizer, Vocabulary};
use serde_json::{Map, Value, json};

const AT_LEAST: usize = 60;

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
