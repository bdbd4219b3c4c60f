//! From `tokenizer.json` and the files beside it to GGUF's vocabulary.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Map, Value as Json};

use super::config::{Settings, count};
use super::pre_tokenizer::{Kind, Spaces, kind};
use super::{HuggingFaceError, read_file, read_json};
use crate::formats::gguf::write::Header;
use crate::formats::gguf::{Value, shortened};

pub(crate) const TOKENIZER: &str = "tokenizer.json";
const CONFIG: &str = "tokenizer_config.json";

/// GGUF's numbers of token types.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

fn fault(problem: impl Into<String>) -> HuggingFaceError {
    HuggingFaceError::Tokenizer { file: TOKENIZER, problem: problem.into() }
}

/// Sets the vocabulary, special tokens and chat template. A folder without a tokenizer gets none; `rows` are those of
/// the embedding.
pub(super) fn fill(
    header: &mut Header,
    folder: &Path,
    settings: &Settings,
    generation: &Map<String, Json>,
    rows: usize,
) -> Result<(), HuggingFaceError> {
    let Some(tokenizer) = read_json(folder, TOKENIZER)? else {
        return refuse_sentence_piece(folder);
    };
    let model = tokenizer.get("model").and_then(Json::as_object).ok_or_else(|| fault("model is missing"))?;
    let is_gemma4 = settings.text("model_type").is_some_and(|kind| kind.starts_with("gemma4"));
    let kind = kind(&tokenizer, model)?;
    let tokens = Tokens::read(&tokenizer, model, rows)?;
    let merges = merges(model)?;
    let prefix = "tokenizer.ggml";
    match &kind {
        Kind::Bytes { pre } => {
            header.set(&format!("{prefix}.model"), Value::String("gpt2"));
            header.set(&format!("{prefix}.pre"), Value::String(pre));
            header.set_strings(&format!("{prefix}.merges"), &merges);
        }
        Kind::Characters { .. } if is_gemma4 => {
            header.set(&format!("{prefix}.model"), Value::String("gemma4"));
            header.set_strings(&format!("{prefix}.merges"), &merges);
        }
        Kind::Characters { spaces } => {
            header.set(&format!("{prefix}.model"), Value::String("llama"));
            header.set(&format!("{prefix}.pre"), Value::String("default"));
            header.set(&format!("{prefix}.add_space_prefix"), Value::Bool(*spaces == Spaces::Prefixed));
            header.set_numbers(&format!("{prefix}.scores"), &tokens.scores(&merges));
        }
    }
    header.set_strings(&format!("{prefix}.tokens"), &tokens.texts);
    header.set_numbers(&format!("{prefix}.token_type"), &tokens.types);
    let config = read_json(folder, CONFIG)?.unwrap_or_default();
    special_tokens(header, folder, &tokenizer, &config, settings, generation, &tokens)?;
    if let Some(template) = chat_template(folder, &config)? {
        header.set("tokenizer.chat_template", Value::String(&template));
    }
    Ok(())
}

/// Refuses a tokenizer that only SentencePiece reads.
fn refuse_sentence_piece(folder: &Path) -> Result<(), HuggingFaceError> {
    match folder.join("tokenizer.model").is_file() {
        true => Err(HuggingFaceError::MissingFile {
            folder: folder.to_owned(),
            missing: TOKENIZER,
            remedy: "tokenizer.model alone is not read; fetch tokenizer.json too, or save the tokenizer again with \
                     transformers (AutoTokenizer.from_pretrained(…).save_pretrained(…))",
        }),
        false => Ok(()),
    }
}

/// Texts and types by id.
struct Tokens {
    texts: Vec<String>,
    types: Vec<i32>,
    ids: HashMap<String, u32>,
}

impl Tokens {
    fn read(tokenizer: &Map<String, Json>, model: &Map<String, Json>, rows: usize) -> Result<Self, HuggingFaceError> {
        let vocab = model.get("vocab").and_then(Json::as_object).ok_or_else(|| fault("model.vocab is missing"))?;
        // As many as the embedding has rows, which the weights justify.
        let mut texts: Vec<Option<String>> = vec![None; rows];
        let mut types = vec![UNUSED; rows];
        let byte_fallback = model.get("byte_fallback").and_then(Json::as_bool) == Some(true);
        let unknown = model.get("unk_token").and_then(Json::as_str);
        for (text, id) in vocab {
            let id = count("model.vocab", id)? as usize;
            let place = texts.get_mut(id).ok_or_else(|| {
                fault(format!("token {:?} has the id {id}, and the model has {rows} tokens", shortened(text)))
            })?;
            if let Some(other) = place.replace(text.clone()) {
                return Err(fault(format!("{:?} and {:?} have the id {id}", shortened(&other), shortened(text))));
            }
            types[id] = match text {
                _ if unknown == Some(text) => UNKNOWN,
                _ if byte_fallback && is_byte(text) => BYTE,
                _ => NORMAL,
            };
        }
        let added = tokenizer.get("added_tokens").and_then(Json::as_array);
        for token in added.into_iter().flatten() {
            let text = token["content"].as_str().ok_or_else(|| fault("an added token has no content"))?;
            let id = count("added_tokens.id", &token["id"])? as usize;
            // Some tokenizers have tokens for images that the text model has no rows for.
            let Some(place) = texts.get_mut(id) else { continue };
            if place.replace(text.to_owned()).is_some_and(|other| other != text) {
                return Err(fault(format!("the added token {:?} has an id of another: {id}", shortened(text))));
            }
            types[id] = match token["special"].as_bool() {
                _ if types[id] == UNKNOWN => UNKNOWN,
                Some(true) => CONTROL,
                _ => USER_DEFINED,
            };
        }
        let texts: Vec<String> =
            (texts.into_iter().enumerate()).map(|(id, text)| text.unwrap_or_else(|| format!("[PAD{id}]"))).collect();
        let ids = texts.iter().enumerate().map(|(id, text)| (text.clone(), id as u32)).collect();
        Ok(Self { texts, types, ids })
    }

    /// Returns scores that lead to the same merges: the earlier a token is made, the higher.
    fn scores(&self, merges: &[String]) -> Vec<f32> {
        // Those that nothing is merged to are never compared.
        let mut scores = vec![-(merges.len() as f32) - 1.0; self.texts.len()];
        for (rank, merge) in merges.iter().enumerate().rev() {
            let merged: String = merge.split(' ').collect();
            if let Some(id) = self.ids.get(&merged) {
                scores[*id as usize] = -(rank as f32);
            }
        }
        scores
    }

    fn id(&self, text: &str) -> Option<u32> {
        self.ids.get(text).copied()
    }
}

/// Reads merges as `left right`.
fn merges(model: &Map<String, Json>) -> Result<Vec<String>, HuggingFaceError> {
    let merges = model.get("merges").and_then(Json::as_array).ok_or_else(|| fault("model.merges is missing"))?;
    let merge = |(index, merge): (usize, &Json)| {
        let wrong = || fault(format!("model.merges[{index}] is no pair of tokens"));
        match merge {
            Json::String(merge) => Ok(merge.clone()),
            Json::Array(pair) => match &pair[..] {
                [Json::String(left), Json::String(right)] if !left.contains(' ') && !right.contains(' ') => {
                    Ok(format!("{left} {right}"))
                }
                _ => Err(wrong()),
            },
            _ => Err(wrong()),
        }
    };
    merges.iter().enumerate().map(merge).collect()
}

fn is_byte(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|digits| digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

fn special_tokens(
    header: &mut Header,
    folder: &Path,
    tokenizer: &Map<String, Json>,
    config: &Map<String, Json>,
    settings: &Settings,
    generation: &Map<String, Json>,
    tokens: &Tokens,
) -> Result<(), HuggingFaceError> {
    let map = read_json(folder, "special_tokens_map.json")?.unwrap_or_default();
    let ends = ids(generation.get("eos_token_id").or_else(|| settings.get("eos_token_id")));
    let named = |role: &str| {
        let role = format!("{role}_token");
        [config, &map].into_iter().find_map(|file| tokens.id(token_text(file.get(&role)?)?))
    };
    let numbered = |role: &str| {
        let id = *ids(settings.get(&format!("{role}_token_id"))).first()?;
        (id < tokens.texts.len() as u32).then_some(id)
    };
    let find = |role: &str| named(role).or_else(|| numbered(role));
    let (bos, eos) = (find("bos"), find("eos"));
    for (key, id) in [("bos", bos), ("eos", eos), ("unknown", find("unk")), ("padding", find("pad"))] {
        if let Some(id) = id {
            header.set(&format!("tokenizer.ggml.{key}_token_id"), Value::U32(id));
        }
    }
    // Where a turn ends with another token than a text does.
    let turn = ends.into_iter().find(|id| Some(*id) != eos && (*id as usize) < tokens.texts.len());
    if let Some(turn) = turn {
        header.set("tokenizer.ggml.eot_token_id", Value::U32(turn));
    }
    let template = added_around(tokenizer);
    for (key, role, id, place) in [("add_bos_token", "bos", bos, 0), ("add_eos_token", "eos", eos, 1)] {
        let by_template = template.as_ref().map(|around| {
            let text = id.map(|id| &*tokens.texts[id as usize]);
            around[place].as_deref().is_some_and(|added| Some(added) == text)
        });
        let by_config = config.get(&format!("add_{role}_token")).and_then(Json::as_bool);
        header.set(&format!("tokenizer.ggml.{key}"), Value::Bool(by_template.or(by_config).unwrap_or(false)));
    }
    Ok(())
}

fn ids(value: Option<&Json>) -> Vec<u32> {
    let id = |value: &Json| value.as_u64().and_then(|id| u32::try_from(id).ok());
    match value {
        Some(Json::Array(list)) => list.iter().filter_map(id).collect(),
        Some(value) => id(value).into_iter().collect(),
        None => Vec::new(),
    }
}

/// A token is given as its text, or as an object.
fn token_text(value: &Json) -> Option<&str> {
    value.as_str().or_else(|| value["content"].as_str())
}

/// Returns the special tokens that the post-processor puts before and behind a text, if it says so.
fn added_around(tokenizer: &Map<String, Json>) -> Option<[Option<String>; 2]> {
    let post = tokenizer.get("post_processor")?;
    let all = post["processors"].as_array().map_or_else(|| vec![post], |all| all.iter().collect());
    let template = all.into_iter().find(|one| one["type"] == "TemplateProcessing")?;
    let single = template["single"].as_array()?;
    let special = |piece: Option<&Json>| Some(piece?["SpecialToken"]["id"].as_str()?.to_owned());
    Some([special(single.first()), special(single.last())])
}

fn chat_template(folder: &Path, config: &Map<String, Json>) -> Result<Option<String>, HuggingFaceError> {
    let file = "chat_template.jinja";
    if let Some(text) = read_file(folder, file)? {
        let text = String::from_utf8(text);
        return text.map(Some).map_err(|error| HuggingFaceError::Tokenizer { file, problem: error.to_string() });
    }
    let own = read_json(folder, "chat_template.json")?;
    let template = own.as_ref().and_then(|own| own.get("chat_template")).or_else(|| config.get("chat_template"));
    Ok(template
        .and_then(|template| match template {
            Json::Array(named) => named.iter().find(|one| one["name"] == "default")?["template"].as_str(),
            template => template.as_str(),
        })
        .map(str::to_owned))
}
