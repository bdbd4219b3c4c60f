//! Reads any text as an output format, and follows an answer that the text chooses through what compiles.
//!
//! The first byte says what kind of output format it is.

use ruvllm_text::{MatchError, Matcher, OutputFormat, Strictness, Tool, ToolChoice, ToolFormat};

use super::vocabulary::{COMPILER, TOKENIZER};

const STEPS_MAX: usize = 40;

pub fn run(bytes: &[u8]) {
    let Some((kind, source)) = bytes.split_first() else { return };
    let Ok(source) = std::str::from_utf8(source) else { return };
    if let Some(output_format) = output_format(*kind, source) {
        compile_and_follow(&output_format, source.as_bytes());
    }
}

fn output_format(kind: u8, source: &str) -> Option<OutputFormat> {
    Some(match kind % 5 {
        0 => OutputFormat::strict_schema(serde_json::from_str(source).ok()?),
        1 => OutputFormat::Regex(source.to_owned()),
        2 => OutputFormat::Gbnf(source.to_owned()),
        3 => OutputFormat::Lark(source.to_owned()),
        _ => {
            let parameters = serde_json::from_str(source).ok()?;
            let tool = Tool { name: "tool".into(), description: None, parameters, strictness: Strictness::Relaxed };
            ToolFormat::Hermes.output_format(&[tool], &ToolChoice::Auto, true).ok()??
        }
    })
}

/// Returns the answer, if there was one within the steps.
pub(super) fn compile_and_follow(output_format: &OutputFormat, choices: &[u8]) -> Option<Vec<u8>> {
    match COMPILER.compile(output_format) {
        Ok(matcher) => follow(matcher, choices),
        Err(error) => {
            assert!(error.to_string().len() < 5_000, "{error}");
            None
        }
    }
}

fn follow(mut matcher: Matcher, choices: &[u8]) -> Option<Vec<u8>> {
    let mut mask = Vec::new();
    let mut answer = Vec::new();
    for &choice in choices.iter().take(STEPS_MAX) {
        match step(&mut matcher, &mut mask, choice) {
            Ok(id) => answer.extend_from_slice(TOKENIZER.token_bytes(id)),
            // This vocabulary cannot write everything.
            Err(MatchError::TooComplex { .. } | MatchError::DeadEnd { .. }) => return None,
            Err(error) => panic!("{error}"),
        }
        if matcher.is_complete() {
            return Some(answer);
        }
    }
    None
}

/// Takes one of the tokens that may come; every other time it is taken back and taken again.
fn step(matcher: &mut Matcher, mask: &mut Vec<u32>, choice: u8) -> Result<u32, MatchError> {
    matcher.mask(mask)?;
    let is_allowed = |id: &u32| mask[*id as usize / 32] & (1 << (id % 32)) != 0;
    let allowed: Vec<u32> = (0..TOKENIZER.vocab_size() as u32).filter(is_allowed).collect();
    let id = allowed[usize::from(choice) % allowed.len()];
    matcher.accept(id)?;
    if choice & 1 == 1 {
        matcher.rollback(1)?;
        matcher.accept(id)?;
    }
    Ok(id)
}
