//! What tests of grammars share: the default model's vocabulary, following given answers and making up random ones.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock};

use ruvllm_store::default_home;
use ruvllm_text::{GrammarCompiler, Matcher, SpecialTokens, Tokenizer};

use crate::support;

pub static TOKENIZER: LazyLock<Arc<Tokenizer>> =
    LazyLock::new(|| Arc::new(support::load_tokenizer(&support::default_model())));
pub static COMPILER: LazyLock<GrammarCompiler> = LazyLock::new(|| GrammarCompiler::new(&TOKENIZER).unwrap());

/// A folder with test data, fetched by `tests/fetch.py` the first time.
pub fn fetched(what: &str, folder: &str) -> PathBuf {
    let target = default_home().expect("a home folder").join("test-data").join(folder);
    if !target.is_dir() {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fetch.py");
        let status = Command::new("python3").arg(script).arg(what).arg(&target).status().expect("python3");
        assert!(status.success(), "{what} could not be fetched into {}", target.display());
    }
    target
}

pub fn is_allowed(mask: &[u32], id: u32) -> bool {
    mask[id as usize / 32] & (1 << (id % 32)) != 0
}

pub fn allowed_ids(mask: &[u32]) -> Vec<u32> {
    (0..mask.len() as u32 * 32).filter(|&id| is_allowed(mask, id)).collect()
}

/// Takes the text token by token. Fails with the part that was accepted; the end counts as a token.
///
/// Acceptance is what counts, not the mask: where text is forced, a mask has only the tokens that our tokenizer would
/// use for what is forced so far, and a text as a whole may be cut differently.
pub fn follow(matcher: &mut Matcher, text: &str) -> Result<(), String> {
    let ids = TOKENIZER.encode(text, SpecialTokens::AsText);
    let mut accepted = Vec::new();
    for &id in &ids {
        if matcher.accept(id).is_err() {
            return Err(String::from_utf8_lossy(&accepted).into_owned());
        }
        accepted.extend_from_slice(TOKENIZER.token_bytes(id));
    }
    match matcher.may_end() {
        Ok(true) => Ok(()),
        _ => Err(format!("{text} (and the end)")),
    }
}

/// Repeatable random numbers (xorshift64*).
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize) % limit
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// An answer of random allowed tokens. Tokens that lead towards an end are preferred, as random text in quotes would
/// never close them. `None` if there is no end within the limit.
pub fn random_answer(matcher: &mut Matcher, dice: &mut Dice, tokens_max: usize) -> Option<String> {
    random_answer_of(&TOKENIZER, matcher, dice, tokens_max)
}

pub fn random_answer_of(
    tokenizer: &Tokenizer,
    matcher: &mut Matcher,
    dice: &mut Dice,
    tokens_max: usize,
) -> Option<String> {
    let mut bytes = Vec::new();
    let mut mask = Vec::new();
    for _ in 0..tokens_max {
        if matcher.is_complete() {
            return Some(String::from_utf8(bytes).expect("answers are UTF-8"));
        }
        matcher.mask(&mut mask).unwrap_or_else(|error| panic!("{error} after {:?}", String::from_utf8_lossy(&bytes)));
        let allowed = allowed_ids(&mask);
        let closes = |&id: &u32| {
            tokenizer.is_end_of_generation(id)
                || matches!(tokenizer.token_bytes(id), b"\"" | b"}" | b"]" | b"\"}" | b"</" | b")" | b",")
        };
        let closing: Vec<u32> = allowed.iter().copied().filter(closes).collect();
        let id = if !closing.is_empty() && dice.below(3) > 0 { dice.pick(&closing) } else { dice.pick(&allowed) };
        // Speculation: what the mask allows is also allowed as a draft, and can be taken back.
        if dice.below(8) == 0 {
            assert_eq!(matcher.count_allowed(&[id]), 1);
            matcher.accept(id).unwrap();
            matcher.rollback(1).unwrap();
        }
        matcher.accept(id).unwrap_or_else(|error| panic!("{error} after {:?}", String::from_utf8_lossy(&bytes)));
        bytes.extend_from_slice(tokenizer.token_bytes(id));
    }
    None
}
