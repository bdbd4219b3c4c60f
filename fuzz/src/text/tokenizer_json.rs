//! Reads any bytes as a `tokenizer.json`, and encodes and decodes with what loads.

use std::sync::Arc;

use ruvllm_text::{Detokenizer, SpecialTokens, Tokenizer};
use serde_json::Value;

/// What a stranger writes to a model: words, numbers, other scripts, runs of spaces, special tokens spelt out.
const TEXTS: [&str; 6] = [
    "",
    "Hello, world! It's 12345.",
    "  two  spaces\n\n\ttab ",
    "Größe 你好 \u{1F600}\u{200D}\u{10FFFD}\u{0}\u{301}",
    "<s>[CLS] a[SEP]</s><|endoftext|><unk>\u{2581}Ġ##a",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab",
];

pub fn run(bytes: &[u8]) {
    match Tokenizer::from_tokenizer_json(bytes) {
        Ok(tokenizer) => {
            let json: Value = serde_json::from_slice(bytes).expect("it was read");
            // Unigram models name it by its number.
            let model = &json["model"];
            let by_number =
                model["unk_id"].as_u64().and_then(|id| model["vocab"].get(usize::try_from(id).ok()?)?[0].as_str());
            exercise(&Arc::new(tokenizer), model["unk_token"].as_str().or(by_number));
        }
        Err(error) => assert!(error.to_string().len() < 5_000, "{} bytes of error", error.to_string().len()),
    }
}

/// What a vocabulary cannot spell becomes its unknown token; no other control token comes from a text.
fn exercise(tokenizer: &Arc<Tokenizer>, unknown: Option<&str>) {
    let size = tokenizer.vocab_size() as u32;
    for text in TEXTS {
        for special in [SpecialTokens::AsText, SpecialTokens::Parse] {
            let ids = tokenizer.encode(text, special);
            assert!(ids.iter().all(|id| *id < size), "an id of no token");
            let mut detokenizer = Detokenizer::from_start(tokenizer.clone());
            ids.iter().for_each(|id| drop(detokenizer.push(*id)));
            detokenizer.flush();
            if special == SpecialTokens::AsText {
                let mut controls =
                    ids.iter().filter(|id| tokenizer.is_control(**id)).map(|id| tokenizer.token_text(*id));
                assert_eq!(controls.find(|token| Some(*token) != unknown), None, "{text:?} became a control token");
            }
        }
    }
}
