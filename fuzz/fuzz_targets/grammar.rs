//! Reads any bytes as a shape, and follows an answer that the bytes choose through what compiles.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use ruvllm_text::{GrammarCompiler, MatchError, Shape, TokenKind, Tokenizer, Tool, ToolChoice, ToolFormat, Vocabulary};

/// All of ASCII that can be seen, space, newline, a few words, and a token that ends the answer.
static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| {
    let bytes = ('!'..='~').chain(['Ġ', 'Ċ', 'Ã', '©']).map(String::from);
    let tokens: Vec<String> = bytes.chain(["{\"", "\":", "abc", "123", "true", "<|end|>"].map(String::from)).collect();
    let mut kinds = vec![TokenKind::Normal; tokens.len()];
    *kinds.last_mut().unwrap() = TokenKind::Control;
    let eos = Some(tokens.len() as u32 - 1);
    let (model, pre) = ("gpt2".to_owned(), Some("gpt-2".to_owned()));
    Arc::new(Tokenizer::from_vocabulary(Vocabulary { model, pre, tokens, kinds, eos, ..Default::default() }).unwrap())
});
static COMPILER: LazyLock<GrammarCompiler> = LazyLock::new(|| GrammarCompiler::new(&TOKENIZER).unwrap());

fuzz_target!(|input: (u8, &str)| {
    let (kind, source) = input;
    let Some(shape) = shape(kind, source) else { return };
    match COMPILER.compile(&shape) {
        Ok(matcher) => follow(matcher, source.as_bytes()),
        Err(error) => assert!(error.to_string().len() < 5_000, "{error}"),
    }
});

fn shape(kind: u8, source: &str) -> Option<Shape> {
    Some(match kind % 5 {
        0 => Shape::JsonSchema(serde_json::from_str(source).ok()?),
        1 => Shape::Regex(source.to_owned()),
        2 => Shape::Gbnf(source.to_owned()),
        3 => Shape::Lark(source.to_owned()),
        _ => {
            let parameters = serde_json::from_str(source).ok()?;
            let tool = Tool { name: "tool".into(), description: None, parameters };
            ToolFormat::Hermes.shape(&[tool], &ToolChoice::Auto, true).ok()??
        }
    })
}

fn follow(mut matcher: ruvllm_text::Matcher, choices: &[u8]) {
    let mut mask = Vec::new();
    for &choice in choices.iter().take(40) {
        let masked = matcher.mask(&mut mask);
        let allowed: Vec<u32> = (0..TOKENIZER.vocab_size() as u32)
            .filter(|&id| masked.is_ok() && mask[id as usize / 32] & (1 << (id % 32)) != 0)
            .collect();
        let step = masked.and_then(|()| {
            let id = allowed[usize::from(choice) % allowed.len()];
            matcher.accept(id)?;
            if choice & 1 == 1 {
                matcher.rollback(1)?;
                matcher.accept(id)?;
            }
            Ok(())
        });
        match step {
            Ok(()) if matcher.is_complete() => return,
            Ok(()) => {}
            // This vocabulary cannot write everything.
            Err(MatchError::TooComplex { .. } | MatchError::DeadEnd { .. }) => return,
            Err(error) => panic!("{error}"),
        }
    }
}
