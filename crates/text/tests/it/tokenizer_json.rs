//! The default model's vocabulary written as a `tokenizer.json` and run by the `tokenizers` crate: a second
//! implementation that must agree with ours, and the proof that such files load.

use crate::support;
use std::sync::Arc;

use ruvllm_text::{Detokenizer, SpecialTokens, TokenKind, Tokenizer, Vocabulary};
use serde_json::{Map, Value, json};

#[test]
fn both_ways_to_load_a_tokenizer_agree() {
    let vocabulary = support::load_vocabulary(&support::default_model());
    let from_json = Arc::new(Tokenizer::from_tokenizer_json(tokenizer_json(&vocabulary).as_bytes()).unwrap());
    let ours = Tokenizer::from_vocabulary(vocabulary).unwrap();

    assert_eq!(from_json.vocab_size(), ours.vocab_size());
    assert_eq!(from_json.end_of_generation(), ours.end_of_generation());
    for id in 0..ours.vocab_size() as u32 {
        assert_eq!(from_json.token_bytes(id), ours.token_bytes(id), "token {id}");
    }
    for text in texts() {
        for special in [SpecialTokens::AsText, SpecialTokens::Parse] {
            assert_eq!(from_json.encode(&text, special), ours.encode(&text, special), "{text:?} {special:?}");
        }
        let mut detokenizer = Detokenizer::from_start(from_json.clone());
        let ids = from_json.encode(&text, SpecialTokens::AsText);
        let decoded: String = ids.into_iter().map(|id| detokenizer.push(id)).collect();
        assert_eq!(decoded + &detokenizer.flush(), text);
    }
}

fn texts() -> Vec<String> {
    let fixture: Value = serde_json::from_str(include_str!("../fixtures/smollm2_tokens.json")).unwrap();
    fixture["cases"].as_array().unwrap().iter().map(|case| case["text"].as_str().unwrap().to_owned()).collect()
}

fn tokenizer_json(vocabulary: &Vocabulary) -> String {
    let ids = || vocabulary.tokens.iter().enumerate();
    let vocab: Map<String, Value> = ids().map(|(id, text)| (text.clone(), json!(id))).collect();
    let merges: Vec<Value> = vocabulary.merges.iter().map(|merge| json!(merge.split_once(' ').unwrap())).collect();
    let added: Vec<Value> = ids()
        .filter(|(id, _)| vocabulary.kinds[*id] == TokenKind::Control)
        .map(|(id, text)| {
            json!({"id": id, "content": text, "special": true, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false})
        })
        .collect();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let digits = json!({"type": "Digits", "individual_digits": true});
    json!({
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    })
    .to_string()
}

/// A small BERT vocabulary.
fn word_pieces() -> Tokenizer {
    let words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "cat", "##s", "sep", "[", "]"];
    let vocab: Map<String, Value> =
        words.iter().enumerate().map(|(id, word)| ((*word).to_owned(), json!(id))).collect();
    let special = |id: usize| {
        json!({ "id": id, "content": words[id], "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true })
    };
    let around = |token: &str, id: u32| (token.to_owned(), json!({ "id": token, "ids": [id], "tokens": [token] }));
    let file = json!({
        "version": "1.0", "truncation": { "max_length": 4, "strategy": "LongestFirst", "stride": 0 }, "padding": null,
        "added_tokens": (0..4).map(special).collect::<Vec<_>>(),
        "normalizer": { "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true,
                        "strip_accents": null, "lowercase": true },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": { "type": "TemplateProcessing",
            "single": [{ "SpecialToken": { "id": "[CLS]", "type_id": 0 } }, { "Sequence": { "id": "A", "type_id": 0 } },
                       { "SpecialToken": { "id": "[SEP]", "type_id": 0 } }],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
            "special_tokens": Map::from_iter([around("[CLS]", 2), around("[SEP]", 3)]) },
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": { "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                   "max_input_chars_per_word": 100, "vocab": vocab },
    });
    Tokenizer::from_tokenizer_json(file.to_string().as_bytes()).unwrap()
}

#[test]
fn word_pieces_read_unknown_words_as_unknown_and_keep_the_others() {
    let tokenizer = word_pieces();
    let encode = |text: &str| tokenizer.with_bos_and_eos(tokenizer.encode(text, SpecialTokens::AsText));
    assert_eq!(encode("A CATS zebra, a cat"), [2, 4, 5, 6, 1, 1, 4, 5, 3]);
    assert_eq!(encode(""), [2, 3]);
}

#[test]
fn word_pieces_do_not_take_special_tokens_from_text() {
    let tokenizer = word_pieces();
    assert_eq!(tokenizer.encode("cat [SEP] cat", SpecialTokens::AsText), [5, 8, 7, 9, 5]);
}

#[test]
fn an_id_belongs_to_one_token() {
    let model = json!({ "type": "WordLevel", "unk_token": "[UNK]", "vocab": { "[UNK]": 0, "yes": 1, "a": 1 } });
    let file = json!({ "version": "1.0", "model": model }).to_string();
    let error = Tokenizer::from_tokenizer_json(file.as_bytes()).unwrap_err().to_string();
    assert!(error.contains(r#"the id 1 belongs to two tokens, "a" and "yes""#), "{error}");
}
