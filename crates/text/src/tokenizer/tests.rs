use super::*;
use proptest::prelude::*;

fn byte_level(control: &[&str]) -> Tokenizer {
    let mut tokens: Vec<String> = byte_alphabet::byte_to_char().iter().map(char::to_string).collect();
    let mut kinds = vec![TokenKind::Normal; tokens.len()];
    for &text in control {
        tokens.push(text.to_owned());
        kinds.push(TokenKind::Control);
    }
    let (bos, eos) = (Some(256), Some(257));
    let pre = Some("gpt-2".to_owned());
    Tokenizer::from_vocabulary(Vocabulary { model: "gpt2".into(), pre, tokens, kinds, bos, eos, ..Default::default() })
        .unwrap()
}

#[test]
fn control_tokens_come_only_from_parsed_text() {
    let tokenizer = byte_level(&["<s>", "</s>"]);
    assert_eq!(tokenizer.encode("<s>a", SpecialTokens::Parse), [256, b'a'.into()]);
    assert_eq!(tokenizer.encode("<s>a", SpecialTokens::AsText), b"<s>a".map(u32::from));
    assert!(tokenizer.is_control(256) && !tokenizer.is_control(97));
    assert!(tokenizer.is_end_of_generation(257) && !tokenizer.is_end_of_generation(256));
    assert_eq!((tokenizer.token_bytes(256), tokenizer.token_text(256)), (&b""[..], "<s>"));
}

#[test]
fn bos_and_eos_are_added_as_the_model_wants_and_not_twice() {
    let mut tokenizer = byte_level(&["<s>", "</s>"]);
    assert_eq!(tokenizer.with_bos_and_eos(vec![1]), [1]);
    (tokenizer.adds_bos, tokenizer.adds_eos) = (true, true);
    assert_eq!(tokenizer.with_bos_and_eos(vec![1]), [256, 1, 257]);
    assert_eq!(tokenizer.with_bos_and_eos(vec![256, 1, 257]), [256, 1, 257]);
}

#[test]
fn ids_outside_the_vocabulary_are_harmless() {
    let tokenizer = byte_level(&["<s>", "</s>"]);
    assert_eq!((tokenizer.token_bytes(u32::MAX), tokenizer.token_text(9999)), (&b""[..], ""));
    assert!(!tokenizer.is_control(u32::MAX) && !tokenizer.is_end_of_generation(u32::MAX));
}

#[test]
fn unknown_models_and_pre_tokenizers_are_named() {
    let vocabulary = |model: &str, pre: Option<&str>| Vocabulary {
        model: model.into(),
        pre: pre.map(str::to_owned),
        tokens: vec!["a".into()],
        ..Default::default()
    };
    let error = |vocabulary| Tokenizer::from_vocabulary(vocabulary).unwrap_err().to_string();
    assert!(error(vocabulary("rwkv", None)).contains("\"rwkv\""));
    assert!(error(vocabulary("gpt2", Some("martian"))).contains("\"martian\" is not known; known are default, gpt-2"));
    assert!(error(vocabulary("gpt2", None)).contains("tokenizer.ggml.pre"));
}

/// A unigram model whose own vocabulary holds its special token: spelled out, it would be matched.
const UNIGRAM: &str = r#"{
  "version": "1.0",
  "added_tokens": [
    {"id": 1, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},
    {"id": 6, "content": "<|x|>", "single_word": false, "lstrip": false, "rstrip": true, "normalized": false, "special": false}
  ],
  "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": true},
  "decoder": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": true},
  "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0], ["<s>", 0], ["<", -1], ["s", -1], [">", -1], ["▁", -1]]}
}"#;

#[test]
fn tokenizer_json_never_takes_control_tokens_from_text() {
    let tokenizer = Tokenizer::from_tokenizer_json(UNIGRAM.as_bytes()).unwrap();
    assert_eq!(tokenizer.encode("s<s> s", SpecialTokens::Parse), [3, 1, 5, 3]);
    assert_eq!(tokenizer.encode("s<s> s", SpecialTokens::AsText), [3, 2, 3, 4, 5, 3]);
    assert_eq!(tokenizer.encode("<|x|>  s", SpecialTokens::Parse), [6, 3]);
    assert!(!tokenizer.encode("<|x|>", SpecialTokens::AsText).contains(&6));
    assert_eq!(tokenizer.token_bytes(5), b" ");
}

/// As in the files of XLM-RoBERTa, which list the unknown token among the special ones.
#[test]
fn an_unknown_character_leaves_the_rest_of_a_text_as_it_is() {
    let unknown = r#"{"id": 0, "content": "<unk>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true},"#;
    let json =
        UNIGRAM.replacen("{\"id\": 1,", &format!("{unknown}{{\"id\": 1,"), 1).replace("[\"▁\", -1]", "[\"ss\", -1]");
    let tokenizer = Tokenizer::from_tokenizer_json(json.as_bytes()).unwrap();
    assert_eq!(tokenizer.encode("ssü", SpecialTokens::AsText), [5, 0]);
}

#[test]
fn a_broken_tokenizer_json_is_an_error() {
    for broken in ["", "{", "[]", "{\"model\": {\"type\": \"BPE\"}}"] {
        assert!(Tokenizer::from_tokenizer_json(broken.as_bytes()).is_err(), "{broken}");
    }
}

fn any_kind() -> impl Strategy<Value = TokenKind> {
    (1..=6).prop_map(|number| TokenKind::from_gguf(number).unwrap())
}

fn any_vocabulary() -> impl Strategy<Value = Vocabulary> {
    let text = "[ab<>▁ \n]{0,3}|<0x4[0-9]>";
    let id = || prop::option::of(0u32..12);
    (
        prop::sample::select(vec!["gpt2", "llama", "gemma4"]),
        prop::collection::btree_map(text, (any_kind(), -3.0f32..3.0), 0..12),
        prop::collection::vec("[ab<>] [ab<>]", 0..4),
        (id(), id(), id()),
        any::<[bool; 3]>(),
    )
        .prop_map(|(model, tokens, merges, (bos, eos, unk), [add_bos, add_eos, space])| Vocabulary {
            model: model.into(),
            pre: Some("llama-bpe".into()),
            scores: tokens.values().map(|token| token.1).collect(),
            kinds: tokens.values().map(|token| token.0).collect(),
            tokens: tokens.into_keys().collect(),
            merges,
            bos,
            eos,
            unk,
            add_bos: Some(add_bos),
            add_eos: Some(add_eos),
            add_space_prefix: Some(space),
            ..Default::default()
        })
}

proptest! {
    /// Refused or built, and then usable: nothing in a vocabulary leads to a panic or to a forged control token.
    #[test]
    fn any_vocabulary_is_refused_or_works(vocabulary in any_vocabulary(), text in "[ab<>▁ \n0x4é]{0,20}") {
        let Ok(tokenizer) = Tokenizer::from_vocabulary(vocabulary) else { return Ok(()) };
        let ids = tokenizer.encode(&text, SpecialTokens::AsText);
        let controls = ids.iter().filter(|&&id| tokenizer.table.kind(id) == TokenKind::Control);
        prop_assert!(controls.count() == 0 || tokenizer.first_unencodable(&text).is_some());
        let ids = tokenizer.with_bos_and_eos(tokenizer.encode(&text, SpecialTokens::Parse));
        prop_assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
    }
}
