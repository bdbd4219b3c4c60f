//! Vocabularies as Hugging Face's `tokenizer.json`, for programs that encode texts for a model themselves.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::TokenizerError;
use super::patterns::{self, Pattern, Spelling};
use crate::vocabulary::{TokenKind, Vocabulary};

/// Whitespace leaves its last character to the word that follows.
const WHITESPACE: &str = r"\s+(?!\S)|\s+";

impl Vocabulary {
    /// Returns the `tokenizer.json` of a byte-level BPE. Others cannot be written as one without changing what some texts become.
    pub fn to_tokenizer_json(&self) -> Result<Value, TokenizerError> {
        self.validate()?;
        let family = self.pre.as_deref().and_then(patterns::family).filter(|_| self.model == "gpt2");
        let Some(family) = family.filter(|family| family.spelling == Spelling::Bytes) else {
            return Err(TokenizerError::NotWritable { model: self.model.clone() });
        };
        let adds_bos = self.add_bos.unwrap_or(family.adds_bos);
        let split = |pattern: &Pattern| {
            let regex = match pattern {
                Pattern::Plain(regex) => (*regex).to_owned(),
                Pattern::WordsThenWhitespace(words) => format!("{words}|{WHITESPACE}"),
            };
            json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
        };
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        let splits: Vec<Value> = family.splits.iter().map(split).chain([bytes.clone()]).collect();
        let vocab: Map<String, Value> =
            self.tokens.iter().enumerate().map(|(id, text)| (text.clone(), id.into())).collect();
        Ok(json!({
            "version": "1.0",
            "truncation": null,
            "padding": null,
            "added_tokens": self.added_tokens(),
            "normalizer": null,
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": splits},
            "post_processor": self.bos.filter(|_| adds_bos).map(|bos| self.with_bos(bos)),
            "decoder": bytes,
            "model": {
                "type": "BPE",
                "dropout": null,
                "unk_token": null,
                "continuing_subword_prefix": null,
                "end_of_word_suffix": null,
                "fuse_unk": false,
                "byte_fallback": false,
                "ignore_merges": family.takes_whole_words,
                "vocab": vocab,
                "merges": self.merges,
            },
        }))
    }

    /// Checks that a `tokenizer.json` numbers the tokens as this vocabulary does.
    pub fn check_tokenizer_json(&self, json: &Value) -> Result<(), TokenizerError> {
        let vocab = match &json["model"]["vocab"] {
            Value::Object(by_text) => by_text.iter().map(|(text, id)| (text.as_str(), id.as_u64())).collect(),
            // Unigram: texts with scores, in the order of their ids.
            Value::Array(in_order) => {
                in_order.iter().zip(0..).map(|(entry, id)| (entry[0].as_str().unwrap_or_default(), Some(id))).collect()
            }
            _ => HashMap::new(),
        };
        let added = json["added_tokens"].as_array().into_iter().flatten();
        let added = added.map(|token| (token["content"].as_str().unwrap_or_default(), token["id"].as_u64()));
        let reason = |reason: String| TokenizerError::OtherTokenizer { reason };
        if vocab.is_empty() {
            return Err(reason("it has no vocabulary".to_owned()));
        }
        for (text, id) in vocab.into_iter().chain(added) {
            let own = id.and_then(|id| self.tokens.get(usize::try_from(id).ok()?));
            if own.is_none_or(|own| own != text) {
                let id = id.map_or("no number".to_owned(), |id| format!("the number {id}"));
                return Err(reason(format!("{text:?} has {id} in it, which is {own:?} here")));
            }
        }
        Ok(())
    }

    fn added_tokens(&self) -> Vec<Value> {
        let token = |(id, content): (usize, &String)| {
            let special = match self.kind(u32::try_from(id).ok()?) {
                TokenKind::Control | TokenKind::Unknown => true,
                TokenKind::UserDefined => false,
                TokenKind::Normal | TokenKind::Unused | TokenKind::Byte => return None,
            };
            Some(json!({
                "id": id, "content": content, "special": special,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
            }))
        };
        self.tokens.iter().enumerate().filter_map(token).collect()
    }

    fn with_bos(&self, bos: u32) -> Value {
        let text = &self.tokens[bos as usize];
        let token = json!({"SpecialToken": {"id": text, "type_id": 0}});
        let sequence = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
        json!({
            "type": "TemplateProcessing",
            "single": [token, sequence("A")],
            "pair": [token, sequence("A"), sequence("B")],
            "special_tokens": {text: {"id": text, "ids": [bos], "tokens": [text]}},
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vocabulary() -> Vocabulary {
        let tokens = ["<|end|>", "a", "b", "ab", "<tool>"].map(str::to_owned).to_vec();
        let kinds =
            [TokenKind::Control, TokenKind::Normal, TokenKind::Normal, TokenKind::Normal, TokenKind::UserDefined];
        Vocabulary {
            model: "gpt2".to_owned(),
            pre: Some("smollm".to_owned()),
            tokens,
            kinds: kinds.to_vec(),
            merges: vec!["a b".to_owned()],
            bos: Some(0),
            add_bos: Some(true),
            ..Vocabulary::default()
        }
    }

    #[test]
    fn what_is_written_is_of_the_vocabulary() {
        let json = vocabulary().to_tokenizer_json().unwrap();
        assert_eq!(json["model"]["vocab"]["ab"], 3);
        assert_eq!(json["added_tokens"][1]["content"], "<tool>");
        assert_eq!(
            (&json["added_tokens"][0]["special"], &json["added_tokens"][1]["special"]),
            (&json!(true), &json!(false))
        );
        assert_eq!(json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"], r"\p{N}");
        assert_eq!(json["post_processor"]["special_tokens"]["<|end|>"]["ids"], json!([0]));
        vocabulary().check_tokenizer_json(&json).unwrap();
    }

    #[test]
    fn a_file_of_another_model_is_told() {
        let mut json = vocabulary().to_tokenizer_json().unwrap();
        for (place, value) in [("b", json!(7)), ("b", json!(1)), ("c", json!(2)), ("b", json!("2"))] {
            let before = json["model"]["vocab"].clone();
            json["model"]["vocab"][place] = value;
            assert!(vocabulary().check_tokenizer_json(&json).is_err(), "{json}");
            json["model"]["vocab"] = before;
        }
        json["added_tokens"][1]["id"] = json!(2);
        assert!(vocabulary().check_tokenizer_json(&json).is_err());
        assert!(vocabulary().check_tokenizer_json(&json!([])).is_err());
    }

    #[test]
    fn what_cannot_be_written_is_refused() {
        let sentence_piece = Vocabulary { model: "llama".to_owned(), scores: vec![0.0; 5], ..vocabulary() };
        assert!(matches!(sentence_piece.to_tokenizer_json(), Err(TokenizerError::NotWritable { .. })));
    }
}
