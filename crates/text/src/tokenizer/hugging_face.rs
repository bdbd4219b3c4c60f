//! Tokenizers described by a `tokenizer.json`, run by the `tokenizers` crate.
//!
//! The crate's own handling of added tokens is switched off: special tokens are found by us, so that text which a user
//! wrote stays text whatever the file says.

use serde_json::Value;
use tokenizers::AddedVocabulary;

use super::pair::PairTemplate;
use super::special_tokens::{SpecialTokenFinder, Surroundings, is_trusted};
use super::token_table::TokenTable;
use super::{Decoding, Encoder, SpacePrefix, Tokenizer, TokenizerError, end_of_generation};
use crate::vocabulary::{TokenKind, Vocabulary, byte_token_value};

#[derive(Debug)]
pub(crate) struct HuggingFace {
    inner: tokenizers::Tokenizer,
}

impl HuggingFace {
    pub(crate) fn encode(&self, text: &str, table: &TokenTable, out: &mut Vec<u32>) {
        let start = out.len();
        self.encode_run(text, out);
        let is_special = |id: &u32| table.kind(*id) == TokenKind::Control;
        if out[start..].iter().any(is_special) {
            // The model's own vocabulary can hold special tokens that it matches as text (unigram does). Taken
            // character by character none of them can form.
            out.truncate(start);
            for char in text.chars() {
                self.encode_run(char.encode_utf8(&mut [0; 4]), out);
            }
            let spelled = out.split_off(start);
            out.extend(spelled.into_iter().filter(|id| !is_special(id)));
        }
    }

    fn encode_run(&self, text: &str, out: &mut Vec<u32>) {
        // It fails only where a model lacks the unknown token that it needs; loading has made sure that it does not.
        if let Ok(encoding) = self.inner.encode_fast(text, false) {
            out.extend_from_slice(encoding.get_ids());
        }
    }
}

/// The crate checks most of what it reads; where it does not, a hostile file must not take the process down.
pub(super) fn load(bytes: &[u8]) -> Result<Tokenizer, TokenizerError> {
    std::panic::catch_unwind(|| load_unfenced(bytes))
        .unwrap_or_else(|_| Err(TokenizerError::TokenizerJson { reason: "it is inconsistent".to_owned() }))
}

fn load_unfenced(bytes: &[u8]) -> Result<Tokenizer, TokenizerError> {
    let unreadable = |reason: String| TokenizerError::TokenizerJson { reason };
    let json: Value = serde_json::from_slice(bytes).map_err(|error| unreadable(error.to_string()))?;
    let mut inner = tokenizers::Tokenizer::from_bytes(bytes).map_err(|error| unreadable(error.to_string()))?;
    // Limits of a training run, not of the model.
    inner.with_truncation(None).map_err(|error| unreadable(error.to_string()))?.with_padding(None);

    let added = inner.get_added_tokens_decoder();
    let (texts, mut kinds) = texts_and_kinds(&inner)?;
    if let Some(unknown) = unknown_token(&json, &inner).filter(|unknown| (*unknown as usize) < kinds.len()) {
        kinds[unknown as usize] = TokenKind::Unknown;
    }
    inner.with_added_vocabulary(AddedVocabulary::new());
    // A character that no vocabulary has: a model that cannot even say "unknown" fails here, not on a user's text.
    inner.encode_fast("\u{10FFFD}", false).map_err(|error| unreadable(error.to_string()))?;

    let decoding = decoding(&json);
    let table = decoding.table(texts, kinds);
    let specials = SpecialTokenFinder::new(&table, |id| {
        added.get(&id).map_or_else(Surroundings::default, |token| Surroundings {
            swallows_whitespace_before: token.lstrip,
            swallows_whitespace_after: token.rstrip,
            needs_word_boundary: token.single_word,
        })
    })?;
    let space_prefix = if decoding == Decoding::VisibleSpaces && strips_first_space(&json) {
        SpacePrefix::Added
    } else {
        SpacePrefix::Omitted
    };
    let (before, after) = wrapping_tokens(&inner, &table);
    let pair = pair_template(&inner, &table);
    Ok(Tokenizer {
        longest_token: table.longest(),
        end_of_generation: end_of_generation::ids(&table, after),
        encoder: Encoder::HuggingFace(Box::new(HuggingFace { inner })),
        specials,
        bos: before,
        eos: after,
        adds_bos: before.is_some(),
        adds_eos: after.is_some(),
        pair,
        space_prefix,
        table,
    })
}

/// Every token's text and kind; ids that the file leaves out become empty, unused tokens.
fn texts_and_kinds(inner: &tokenizers::Tokenizer) -> Result<(Vec<String>, Vec<TokenKind>), TokenizerError> {
    let vocab = inner.get_vocab(true);
    let len = vocab.values().max().map_or(0, |&id| id as usize + 1);
    // The same limits as for a vocabulary from a model file; a single huge id must not allocate a huge table.
    let mut vocabulary = Vocabulary { tokens: Vec::new(), ..Default::default() };
    if len > 4 * vocab.len().max(1 << 16) {
        let reason = format!("token ids reach {len} for {} tokens", vocab.len());
        return Err(TokenizerError::TokenizerJson { reason });
    }
    vocabulary.tokens.resize(len, String::new());
    let mut kinds = vec![TokenKind::Unused; len];
    for (text, id) in inner.get_vocab(false) {
        let other = &vocabulary.tokens[id as usize];
        if kinds[id as usize] != TokenKind::Unused && *other != text {
            let reason =
                format!("the id {id} belongs to two tokens, {:?} and {:?}", (&text).min(other), (&text).max(other));
            return Err(TokenizerError::TokenizerJson { reason });
        }
        kinds[id as usize] = if byte_token_value(&text).is_some() { TokenKind::Byte } else { TokenKind::Normal };
        vocabulary.tokens[id as usize] = text;
    }
    for (id, token) in inner.get_added_tokens_decoder() {
        kinds[id as usize] = if token.special { TokenKind::Control } else { TokenKind::UserDefined };
        vocabulary.tokens[id as usize] = token.content;
    }
    vocabulary.validate()?;
    Ok((vocabulary.tokens, kinds))
}

/// What WordPiece says for a word that it cannot spell, and Unigram for a character that it does not have. Files list it among
/// the special tokens, but it comes from texts: a model was trained to read it there.
fn unknown_token(json: &Value, inner: &tokenizers::Tokenizer) -> Option<u32> {
    let model = &json["model"];
    match model["type"].as_str()? {
        "WordPiece" => inner.token_to_id(model["unk_token"].as_str()?),
        "Unigram" => u32::try_from(model["unk_id"].as_u64()?).ok(),
        _ => None,
    }
}

/// The tokens that the file's post-processor puts around a text.
fn wrapping_tokens(inner: &tokenizers::Tokenizer, table: &TokenTable) -> (Option<u32>, Option<u32>) {
    let ids = |special| inner.encode_fast("a", special).map(|encoding| encoding.get_ids().to_vec()).unwrap_or_default();
    let (bare, wrapped) = (ids(false), ids(true));
    if wrapped.len() <= bare.len() {
        return (None, None);
    }
    let special = |id: &u32| is_trusted(table.kind(*id), table.text(*id));
    (wrapped.first().copied().filter(special), wrapped.last().copied().filter(special))
}

/// The tokens and segments that the file's post-processor gives a pair of texts; `None` if nothing marks where the second begins.
fn pair_template(inner: &tokenizers::Tokenizer, table: &TokenTable) -> Option<PairTemplate> {
    let encoding = inner.encode(("a", "a"), true).ok()?;
    let tokens: Vec<(u32, u32)> =
        encoding.get_ids().iter().copied().zip(encoding.get_type_ids().iter().copied()).collect();
    let text_of = encoding.get_sequence_ids();
    let range = |text| {
        let is_of = |of: &Option<usize>| *of == Some(text);
        Some(text_of.iter().position(is_of)?..text_of.iter().rposition(is_of)? + 1)
    };
    let (first, second) = (range(0)?, range(1)?);
    let is_special = |(id, _): &(u32, u32)| is_trusted(table.kind(*id), table.text(*id));
    let is_usable = first.end < second.start
        && [&tokens[..first.start], &tokens[first.end..second.start], &tokens[second.end..]]
            .iter()
            .all(|part| part.iter().all(is_special));
    is_usable.then(|| PairTemplate::new(&tokens, first, second)).flatten()
}

fn decoding(json: &Value) -> Decoding {
    let description = [&json["decoder"], &json["pre_tokenizer"], &json["normalizer"]];
    let mentions = |word: &str| description.iter().any(|part| mentions(part, word));
    if mentions("ByteLevel") {
        Decoding::ByteLevel
    } else if mentions("Metaspace") || mentions("\u{2581}") || mentions("ByteFallback") {
        Decoding::VisibleSpaces
    } else {
        Decoding::Plain
    }
}

fn mentions(json: &Value, word: &str) -> bool {
    match json {
        Value::String(text) => text == word,
        Value::Array(items) => items.iter().any(|item| mentions(item, word)),
        Value::Object(fields) => fields.values().any(|field| mentions(field, word)),
        _ => false,
    }
}

fn strips_first_space(json: &Value) -> bool {
    let parts = [&json["pre_tokenizer"], &json["normalizer"]];
    parts.iter().any(|part| mentions(part, "Prepend") || (mentions(part, "Metaspace") && !mentions(part, "never")))
}
