//! The default model's real vocabulary and chat template, against what llama.cpp makes of the same texts.

use crate::support;
use std::sync::{Arc, LazyLock};

use ruvllm_text::{ChatTemplate, Conversation, Detokenizer, NextTurn, SpecialTokens, Tokenizer};
use serde_json::{Map, Value, json};

static TOKENIZER: LazyLock<Arc<Tokenizer>> =
    LazyLock::new(|| Arc::new(support::load_tokenizer(&support::default_model())));

struct Case {
    text: String,
    as_text: Vec<u32>,
    parsed: Vec<u32>,
}

fn cases() -> Vec<Case> {
    let fixture: Value = serde_json::from_str(include_str!("../fixtures/smollm2_tokens.json")).unwrap();
    let ids = |ids: &Value| ids.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    let case = |case: &Value| Case {
        text: case["text"].as_str().unwrap().to_owned(),
        as_text: ids(&case["as_text"]),
        parsed: ids(case.get("parsed").unwrap_or(&case["as_text"])),
    };
    fixture["cases"].as_array().unwrap().iter().map(case).collect()
}

fn decode(ids: &[u32]) -> String {
    let mut detokenizer = Detokenizer::from_start(TOKENIZER.clone());
    let mut text: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
    text += &detokenizer.flush();
    text
}

#[test]
fn token_ids_are_those_of_llama_cpp() {
    for case in cases() {
        assert_eq!(TOKENIZER.encode(&case.text, SpecialTokens::AsText), case.as_text, "{:?} as text", case.text);
        assert_eq!(TOKENIZER.encode(&case.text, SpecialTokens::Parse), case.parsed, "{:?} parsed", case.text);
    }
}

#[test]
fn user_text_never_becomes_a_control_token() {
    for case in cases() {
        let ids = TOKENIZER.encode(&case.text, SpecialTokens::AsText);
        assert!(!ids.iter().any(|&id| TOKENIZER.is_control(id)), "{:?}", case.text);
    }
}

#[test]
fn decoding_token_by_token_gives_the_text_back() {
    for case in cases() {
        assert_eq!(TOKENIZER.first_unencodable(&case.text), None, "{:?}", case.text);
        assert_eq!(decode(&TOKENIZER.encode(&case.text, SpecialTokens::AsText)), case.text);
    }
}

#[test]
fn the_vocabulary_is_as_the_model_says() {
    assert_eq!(TOKENIZER.vocab_size(), 49_152);
    assert_eq!((TOKENIZER.bos(), TOKENIZER.eos()), (Some(1), Some(2)));
    assert_eq!(TOKENIZER.token_id("<|im_end|>"), Some(2));
    assert_eq!(TOKENIZER.end_of_generation(), [0, 2]);
    assert!(!TOKENIZER.adds_bos());
    // This vocabulary has no token for some control characters.
    assert_eq!(TOKENIZER.first_unencodable("a\u{4}"), Some('\u{4}'));
}

#[test]
fn the_models_own_chat_template_keeps_turns_apart() {
    let source = support::load_chat_template(&support::default_model()).expect("the model has a chat template");
    let template = ChatTemplate::new(&source, &TOKENIZER).unwrap();
    let render = |content: &str| {
        let messages = [json!({"role": "user", "content": content})];
        let variables = Map::new();
        let next_turn = NextTurn::Assistant;
        let conversation =
            Conversation { messages: &messages, tools: None, next_turn, variables: &variables, now_unix_s: 0 };
        template.render(&conversation).unwrap()
    };
    for case in cases() {
        let prompt = render(&case.text);
        assert!(prompt.text().contains(&case.text));
        let ids = TOKENIZER.encode_prompt(&prompt);
        // System, user and assistant open; system and user close.
        let controls: Vec<u32> = ids.iter().copied().filter(|&id| TOKENIZER.is_control(id)).collect();
        assert_eq!(controls, [1, 2, 1, 2, 1], "{:?}", case.text);
        if case.as_text == case.parsed {
            assert_eq!(ids, TOKENIZER.encode(prompt.text(), SpecialTokens::Parse), "{:?}", case.text);
        }
    }
}

/// A megabyte each of prose, of one letter, of spaces and of opening brackets: this would not end in quadratic time.
#[test]
fn large_inputs_take_linear_time() {
    let size = 1 << 20;
    let prose: String = cases().iter().map(|case| case.text.as_str()).cycle().take(size / 40).collect();
    for text in [prose, "a".repeat(size), " ".repeat(size), "<|im_".repeat(size / 5), "\n \n".repeat(size / 3)] {
        let ids = TOKENIZER.encode(&text, SpecialTokens::AsText);
        let bytes: usize = ids.iter().map(|id| TOKENIZER.token_bytes(*id).len()).sum();
        assert_eq!(bytes, text.len(), "{:?}...", &text[..6]);
    }
}
