//! What kind of tokenizer a `tokenizer.json` describes, and which of GGUF's pre-tokenizers it has.

use serde_json::{Map, Value as Json};

use super::HuggingFaceError;
use super::vocabulary::TOKENIZER;
use crate::formats::gguf::{cut, shortened};

/// What the tokens are written in.
#[derive(Debug, PartialEq)]
pub(super) enum Kind {
    /// Bytes, with the pre-tokenizer of this name.
    Bytes { pre: &'static str },
    /// Characters with a visible space, as SentencePiece has them.
    Characters { spaces: Spaces },
}

/// Whether a text gets a space before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spaces {
    Prefixed,
    Kept,
}

/// Of what is shown of a file in errors.
const JSON_CHARS_MAX: usize = 200;

/// What pre-tokenizers of bytes split by, in their order.
const DIGITS: &str = "each digit";
const GPT2: &str = "the words of GPT-2";

macro_rules! words {
    ($words:literal) => {
        concat!($words, r"|\s*[\r\n]+|\s+(?!\S)|\s+")
    };
}

/// Splits, and GGUF's names where words that are tokens are taken whole and where they are not.
const KNOWN: &[(&[&str], Option<&str>, Option<&str>)] = &[
    (
        &[words!(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*")],
        Some("llama-bpe"),
        Some("dbrx"),
    ),
    (
        &[words!(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*")],
        None,
        Some("qwen2"),
    ),
    (
        &[words!(r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*")],
        None,
        Some("qwen35"),
    ),
    (
        &[words!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
        )],
        Some("granite-embed-multi-97m"),
        Some("gpt-4o"),
    ),
    (
        &[words!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
        )],
        Some("tekken"),
        None,
    ),
    (&[DIGITS, GPT2], None, Some("smollm")),
    (&[GPT2], None, Some("gpt-2")),
];

fn fault(problem: String) -> HuggingFaceError {
    HuggingFaceError::Tokenizer { file: TOKENIZER, problem }
}

/// Finds out what a tokenizer does with a text before it merges.
pub(super) fn kind(tokenizer: &Map<String, Json>, model: &Map<String, Json>) -> Result<Kind, HuggingFaceError> {
    match model.get("type").and_then(Json::as_str) {
        // Old files leave the type of BPE out.
        Some("BPE") | None => {}
        Some(other) => {
            return Err(fault(format!("the model {:?} is not supported; it must be BPE", shortened(other))));
        }
    }
    let empty = Json::Null;
    let pre = sequence(tokenizer.get("pre_tokenizer").unwrap_or(&empty), "pretokenizers");
    let normalizers = sequence(tokenizer.get("normalizer").unwrap_or(&empty), "normalizers");
    if pre.iter().any(|one| one["type"] == "ByteLevel") {
        refuse_other_normalizers(&normalizers)?;
        return Ok(Kind::Bytes { pre: bytes(&pre, model)? });
    }
    Ok(Kind::Characters { spaces: spaces(&pre, &normalizers)? })
}

fn sequence<'a>(one: &'a Json, list: &str) -> Vec<&'a Json> {
    match one {
        Json::Null => Vec::new(),
        _ => one[list].as_array().map_or_else(|| vec![one], |all| all.iter().collect()),
    }
}

/// Composed characters are what nearly every text has; others are left to the merges of bytes, as llama.cpp does.
fn refuse_other_normalizers(normalizers: &[&Json]) -> Result<(), HuggingFaceError> {
    match normalizers.iter().find(|one| one["type"] != "NFC") {
        Some(other) => {
            Err(fault(format!("the normalizer {} is not supported", cut(&other.to_string(), JSON_CHARS_MAX))))
        }
        None => Ok(()),
    }
}

fn bytes(pre: &[&Json], model: &Map<String, Json>) -> Result<&'static str, HuggingFaceError> {
    let mut splits: Vec<&str> = Vec::new();
    for one in pre {
        let unknown = || fault(format!("the pre-tokenizer {} is not supported", cut(&one.to_string(), JSON_CHARS_MAX)));
        match one["type"].as_str() {
            // What matches is a word, or what lies between matches is removed: the patterns match everything.
            Some("Split") if one["behavior"] == if one["invert"] == true { "Removed" } else { "Isolated" } => {
                splits.push(one["pattern"]["Regex"].as_str().ok_or_else(unknown)?);
            }
            Some("Digits") if one["individual_digits"] == true => splits.push(DIGITS),
            Some("ByteLevel") if one["add_prefix_space"] == true => return Err(unknown()),
            Some("ByteLevel") if one["use_regex"] == false => {}
            Some("ByteLevel") => splits.push(GPT2),
            _ => return Err(unknown()),
        }
    }
    let takes_whole = model.get("ignore_merges").and_then(Json::as_bool) == Some(true);
    let known = KNOWN.iter().find(|(known, ..)| *known == splits);
    let name = known.and_then(|(_, whole, merged)| if takes_whole { *whole } else { *merged });
    name.ok_or_else(|| {
        let whole = if takes_whole { " with ignore_merges" } else { "" };
        let splits = cut(&format!("{splits:?}"), 3 * JSON_CHARS_MAX);
        fault(format!("the pre-tokenizer that splits by {splits}{whole} is not known"))
    })
}

/// Finds out whether spaces become visible, and whether one is put before a text.
fn spaces(pre: &[&Json], normalizers: &[&Json]) -> Result<Spaces, HuggingFaceError> {
    let mut spaces = None;
    for one in normalizers {
        match one["type"].as_str() {
            Some("Prepend") if one["prepend"] == "▁" => spaces = Some(Spaces::Prefixed),
            Some("Replace") if one["pattern"]["String"] == " " && one["content"] == "▁" => {
                spaces = spaces.or(Some(Spaces::Kept));
            }
            Some("NFC") => {}
            _ => {
                return Err(fault(format!(
                    "the normalizer {} is not supported",
                    cut(&one.to_string(), JSON_CHARS_MAX)
                )));
            }
        }
    }
    for one in pre {
        match one["type"].as_str() {
            Some("Metaspace") if one["replacement"] == "▁" => {
                let is_kept = one["prepend_scheme"] == "never" || one["add_prefix_space"] == false;
                spaces = Some(if is_kept { Spaces::Kept } else { Spaces::Prefixed });
            }
            // There are no spaces left to split at.
            Some("Split") if one["pattern"]["String"] == " " && spaces.is_some() => {}
            _ => {
                return Err(fault(format!(
                    "the pre-tokenizer {} is not supported",
                    cut(&one.to_string(), JSON_CHARS_MAX)
                )));
            }
        }
    }
    spaces.ok_or_else(|| fault("neither bytes nor visible spaces are what it writes tokens in".to_owned()))
}
